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
MODULES_BEFORE = Path(__file__).with_name("modules_before_moves.txt")  # all that `avow` had in the earlier build
ADVICE = re.compile(r"(?P<old>[\w.]+) does not exist any more\. Use (?P<new>[\w., ]+);")
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


def is_found_or_reported(module: str) -> bool:
    """Whether an import finds it or raises an error that names a place that exists. Only packages are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        advice = ADVICE.match(str(error))
    if advice is None or not f"{module}.".startswith(f"{advice['old']}."):
        return False
    return all(find_spec(new) is not None for new in advice["new"].split(", "))


def test_no_module_of_the_earlier_build_is_missing_without_a_new_place() -> None:
    modules = MODULES_BEFORE.read_text().split()
    assert len(modules) == len(set(modules)) == 501
    assert [module for module in modules if not is_found_or_reported(module)] == []


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
