"""A lane's state is changed in one file, and mutations replace objects: both are read from the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from avow.replication.pubsub import state
from avow.replication.pubsub.state import LaneState
from avow_lab.mutations import pubsub
from avow_lab.mutations.delegate import Delegate

FOLDER = Path(inspect.getfile(state)).parent
OTHERS = sorted(path for path in FOLDER.glob("*.py") if path.name != "state.py")


def changed(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are assigned, deleted, or of which an item is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.attr
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and isinstance(node.value, ast.Attribute)
        ):
            yield node.value.attr


def test_the_source_check_detects_each_kind_of_change() -> None:
    source = "a.one = 1\na.two += 1\na.three, b = 1, 2\ndel a.four\na.five[0] = 1\ndel a.six[0]\nx = a.seven"
    assert set(changed(ast.parse(source))) == {"one", "two", "three", "four", "five", "six"}


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_no_other_module_changes_what_a_lane_state_owns(path: Path) -> None:
    assert not set(LaneState.__slots__) & set(changed(ast.parse(path.read_text())))


def test_no_mutation_subclasses_a_shipped_class() -> None:
    made = [kind for _, kind in inspect.getmembers(pubsub, inspect.isclass)]
    mistaken = [kind for kind in made if kind.__module__ == pubsub.__name__ and hasattr(kind, "__getattr__")]
    assert len(mistaken) > 15
    for kind in mistaken:
        parents = [parent for parent in kind.__mro__ if parent.__module__ != pubsub.__name__]
        assert parents == [Delegate, object], kind
