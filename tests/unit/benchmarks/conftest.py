from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository with one commit, `the first`, of a package avow."""
    if shutil.which("git") is None:
        pytest.skip("there is no git program")
    root = tmp_path / "checkout"
    package = root / "src" / "avow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("AGE = 1\n")
    author = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "the first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root
