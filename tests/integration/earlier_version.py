"""The packages of an earlier version, taken out of the history of this repository, for peers that run them."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from avow.testing.cluster_process import environment_of

COMMIT = "dcd3e62"
REPOSITORY = Path(__file__).parents[2]


def has_history(commit: str) -> bool:
    """False in a shallow clone, in an unpacked source distribution, and where git is not installed."""
    if shutil.which("git") is None:
        return False
    named = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    return named.returncode == 0


def unpack(commit: str, folder: Path) -> Path:
    """The folder to put on PYTHONPATH. Python is asked whether it finds the packages there and not the installed."""
    archive = _git("archive", commit, "src")
    archive.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    code = folder / "src"
    asked = [sys.executable, "-c", "import avow.peer.serve; print(avow.__file__)"]
    found = subprocess.run(asked, env=environment_of("", code=code), capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(code), f"{found.stdout.strip()} is not in {code}"
    return code


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=False)
