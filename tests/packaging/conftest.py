"""The wheel, built once, and an environment in which it alone is installed, with what it needs and no extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.packaging.locking import ROOT, lock


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder. Versions are those the other tests run with."""
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    pins = folder / "pins.txt"
    pinned = (block.split(" ")[0].strip() for _, block in lock.pinned(lock.PINS.read_text()))
    pins.write_text("\n".join(line for line in pinned if "[" not in line))
    run("--python", str(folder / "bin" / "python"), "install", "--constraint", str(pins), str(wheel))
    return folder


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
