"""Builds from a small repository of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks.builds import (
    Build,
    BuildError,
    copy_tree,
    describe_commit,
    describe_tree,
    prepare_source,
    unpack_commit,
)


def test_a_commit_is_unpacked_and_the_working_tree_is_copied_unchanged(checkout: Path, tmp_path: Path) -> None:
    module = Path("avow") / "__init__.py"
    (checkout / "src" / module).write_text("AGE = 2\n")
    before = unpack_commit(describe_commit("HEAD", root=checkout), tmp_path / "before", root=checkout)
    after = copy_tree(tmp_path / "after", root=checkout)
    assert (before / module).read_text() == "AGE = 1\n"
    assert (after / module).read_text() == "AGE = 2\n"
    prepare_source(before)
    prepare_source(after)


def test_uncommitted_files_are_reported(checkout: Path) -> None:
    clean = describe_tree(root=checkout)
    assert (clean.changed, clean.subject) == (0, "the first")
    (checkout / "src" / "avow" / "new.py").write_text("")
    assert describe_tree(root=checkout).changed == 1
    assert "with 1 uncommitted file" in str(describe_tree(root=checkout))
    assert "uncommitted" not in str(clean)


def test_an_unknown_commit_is_refused(checkout: Path) -> None:
    with pytest.raises(BuildError, match="no commit 'abcdef'"):
        describe_commit("abcdef", root=checkout)


def test_a_commit_that_looks_like_an_option_is_refused(checkout: Path) -> None:
    with pytest.raises(BuildError, match="no commit '--all'"):
        describe_commit("--all", root=checkout)


def test_a_folder_without_history_is_refused(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a git checkout"):
        describe_tree(root=tmp_path)
    with pytest.raises(BuildError, match="not a git checkout"):  # a copy inside another project's checkout
        describe_commit("HEAD", root=checkout / "src")


def test_a_build_that_a_process_would_not_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(BuildError, match="does not import avow from there"):
        prepare_source(tmp_path / "src")


def test_a_commit_without_sources_is_refused(checkout: Path, tmp_path: Path) -> None:
    head = describe_commit("HEAD", root=checkout)
    empty = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--stdin"], cwd=checkout, input=b"", capture_output=True, check=True
    )
    tree = Build(name="before", commit=empty.stdout.decode().strip(), subject=head.subject)
    with pytest.raises(BuildError, match="failed"):
        unpack_commit(tree, tmp_path / "before", root=checkout)
