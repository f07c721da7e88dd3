"""The rule of the walk, on calls that are written here, and the page that shows it."""

from __future__ import annotations

import pytest
from benchmarks.builds import BuildError
from benchmarks.walk import BEGIN, END, Call, Hop, Walk, hops_of, markdown, page_with, walk_of


def call(file: str, function: str = "f", *, by: int = -1, changes: bool = True) -> Call:
    return Call(f"{file}.py", function, 1, by, changes)


def files(*calls: Call) -> list[str]:
    return [hop.file.removesuffix(".py") for hop in hops_of(calls)]


def test_a_call_within_a_file_is_not_a_hop() -> None:
    assert files(call("a"), call("a", by=0), call("b", by=1), call("b", by=2)) == ["a", "b"]


def test_returning_from_a_call_is_not_a_hop() -> None:
    assert files(call("a"), call("b", by=0), call("c", by=0)) == ["a", "b", "c"]


def test_a_callback_from_the_event_loop_is_a_hop() -> None:
    assert files(call("a"), call("b", by=0), call("a")) == ["a", "b", "a"]


def test_consecutive_calls_into_a_file_are_one_hop() -> None:
    (_, second) = hops_of([call("a"), call("b", "x", by=0), call("b", "y", by=0), call("b", "x", by=0)])
    assert second == Hop("b.py", ["x", "y"], returns=False)


def test_a_hop_into_a_file_that_was_visited_before_is_a_return() -> None:
    hops = hops_of([call("a"), call("b", by=0), call("c", by=0), call("b", by=0), call("a", by=3)])
    assert [hop.returns for hop in hops] == [False, False, False, True, True]


def test_a_query_is_not_a_hop() -> None:
    assert files(call("a"), call("b", by=0, changes=False), call("c", by=1, changes=False)) == ["a"]


def test_a_call_that_changes_state_indirectly_is_a_hop() -> None:
    calls = [call("a", changes=False), call("b", by=0, changes=False), call("b", by=1, changes=False), call("c", by=2)]
    assert files(*calls) == ["a", "b", "c"]


def test_queries_are_counted_as_calls() -> None:
    walk = walk_of([call("a"), call("b", by=0, changes=False), call("c", by=0)], name="tree")
    assert (len(walk.hops), walk.files, walk.returns, walk.calls) == (2, 2, 0, 3)


def test_the_table_numbers_the_hops_and_marks_returns() -> None:
    hops = [Hop("client/queue.py", ["Queue.enqueue"], returns=False), Hop("b.py", ["f", "g"], returns=True)]
    lines = markdown(Walk(name="tree", hops=hops, calls=2)).splitlines()
    assert lines[0] == "**2 hops** through **2 files**, **1** of them returns (↩)."
    assert lines[-2].startswith("| 1 |  | `client/queue.py` | `Queue.enqueue` | the caller's message")
    assert lines[-1] == "| 2 | ↩ | `b.py` | `f`, `g` |  |"


def test_the_table_is_replaced_between_its_markers() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert page_with(page, "new\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(BuildError, match="no lines"):
        page_with("no markers", "new\n")
