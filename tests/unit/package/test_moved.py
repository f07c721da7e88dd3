"""An import of a path that moved is an error that names the new place, and CHANGELOG.md has the same table."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from avow.moved import MOVED

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
PACKAGES = {"avow.channel.protocol", "avow.spark.source", "avow.spark.sink"}  # some of their names moved out of them


def is_name(path: str) -> bool:
    return path.rpartition(".")[0] in PACKAGES


@pytest.mark.parametrize("old", sorted(old for old in MOVED if not is_name(old)))
def test_a_moved_module_names_its_new_place(old: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"{re.escape(old)} does not exist any more. Use {MOVED[old]};"):
        import_module(old)


@pytest.mark.parametrize("old", sorted(old for old in MOVED if is_name(old)))
def test_a_moved_name_names_its_new_place(old: str) -> None:
    module, _, name = old.rpartition(".")
    with pytest.raises(ImportError, match=re.escape(MOVED[old])):
        getattr(import_module(module), name)
    new, _, name = MOVED[old].rpartition(".")
    assert hasattr(import_module(new), name)


@pytest.mark.parametrize(
    ("statement", "new"),
    [
        ("import avow.testing.nursery", "avow_lab.campaigns.harness.fork_server"),
        ("from avow.testing import nursery", "avow_lab.campaigns.harness.fork_server"),
        ("from avow.testing.nursery import Nursery", "avow_lab.campaigns.harness.fork_server"),
        ("from avow.channel.protocol import Bounds", "avow.channel.protocol.events.Bounds"),
        ("import avow.peer.http.api", "avow.server, avow.node"),
    ],
)
def test_every_form_of_import_names_the_new_place(statement: str, new: str) -> None:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Use {new}; CHANGELOG.md lists everything that moved" in done.stderr


@pytest.mark.parametrize("old", sorted(old for old in MOVED if not is_name(old)))
def test_the_new_place_of_a_module_exists(old: str) -> None:
    assert all(find_spec(new) is not None for new in MOVED[old].split(", "))


def test_another_module_that_is_missing_is_reported_by_python() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'avow\.nowhere'"):
        import_module("avow.nowhere")


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_another_name_that_is_missing_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        getattr(import_module(package), "Nonsense")  # noqa: B009


def test_the_changelog_has_the_table_of_moves() -> None:
    _, _, table = CHANGELOG.read_text().partition("| old path | new path |")
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w., ]+)` \|", table, re.MULTILINE)
    assert dict(rows) == MOVED
    assert len(rows) == len(MOVED)
