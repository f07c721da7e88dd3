"""Builds of Avow to compare: the tree of a commit and the working tree, each unpacked into a folder of its own.

A build is a `src` folder that is put on PYTHONPATH; the interpreter and the libraries are the same for all builds. The
working tree is copied, so that an edit during a long run changes nothing.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
_GIT_S: Final = 60.0


class BuildError(Exception):
    """There is no such build; the text says why and what to do."""


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """`commit` is the full name of the commit the tree is at; `changed` counts files that differ from it."""

    name: str
    commit: str
    subject: str
    changed: int = 0

    def __str__(self) -> str:
        dirty = f", with {self.changed} uncommitted file{'s' * (self.changed != 1)}" if self.changed else ""
        return f"{self.name}: {self.commit[:10]} {self.subject!r}{dirty}"


def describe_commit(commit: str, *, root: Path = ROOT) -> Build:
    """Raises BuildError when `root` is no git checkout or has no such commit."""
    require_checkout(root)
    try:
        found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}", root=root).strip()
    except BuildError:
        raise BuildError(f"there is no commit {commit!r} in {root}; name one that `git log` shows") from None
    return Build(name="before", commit=found, subject=_subject(found, root=root))


def describe_tree(*, root: Path = ROOT) -> Build:
    """The working tree, whatever is committed of it."""
    require_checkout(root)
    head = _git("rev-parse", "HEAD", root=root).strip()
    changed = _git("status", "--porcelain", root=root).splitlines()
    return Build(name="after", commit=head, subject=_subject(head, root=root), changed=len(changed))


def require_checkout(root: Path) -> None:
    """`root` itself must be the top of a checkout: a copy without history may lie inside another project's."""
    try:
        top = _git("rev-parse", "--show-toplevel", root=root).strip()
    except BuildError:
        top = ""
    if not top or Path(top).resolve() != root.resolve():
        raise BuildError(f"{root} is not a git checkout; clone the repository with its history to compare commits")


def unpack_commit(build: Build, folder: Path, *, root: Path = ROOT) -> Path:
    """The `src` folder of a commit, below `folder`, which must not exist."""
    folder.mkdir(parents=True)
    archive = folder / "archive.tar"
    _git("archive", "--format=tar", f"--output={archive}", build.commit, "src", root=root)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    return folder / "src"


def copy_tree(folder: Path, *, root: Path = ROOT) -> Path:
    """A copy of the working tree's `src` folder, below `folder`, which must not exist."""
    copied = shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(copied)


def prepare_source(source: Path) -> None:
    """Compile a build, and make sure that a process with it on PYTHONPATH runs this code and no other."""
    compileall.compile_dir(str(source), quiet=1)
    done = subprocess.run(
        [sys.executable, "-c", "import avow; print(avow.__file__)"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=_GIT_S,
        check=False,
    )
    found = done.stdout.strip()
    if done.returncode or Path(found).resolve().parent != (source / "avow").resolve():
        said = found or (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BuildError(f"a process with {source} on PYTHONPATH does not import avow from there: {said}")


def _subject(commit: str, *, root: Path) -> str:
    return _git("show", "--no-patch", "--format=%s", commit, root=root).strip()


def _git(*words: str, root: Path) -> str:
    git = shutil.which("git")
    if git is None:
        raise BuildError("there is no git program; install git to compare commits")
    done = subprocess.run([git, *words], cwd=root, capture_output=True, text=True, timeout=_GIT_S, check=False)
    if done.returncode:
        raise BuildError(f"git {' '.join(words)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
