"""The state tables contain every transition of the core, every row is reached, and the diagrams match them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.channel.core_pair import CAP_COUNT, Pair, core, hello, packet_of

from avow.channel.protocol import core as protocol
from avow.channel.protocol import states
from avow.channel.protocol.frames import EndCode, hello_bytes
from avow.channel.protocol.states import LINK, MACHINES, RECEIVER, SENDER, Link, Receiver, Sender, diagram
from avow_lab.channel_machine.walk import walk

TABLES: dict[str, Any] = {"LINK": LINK, "SENDER": SENDER, "RECEIVER": RECEIVER}


class Recorded(dict[Any, Any]):
    """A table that records which of its rows were used."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.used: set[Any] = set()

    def __getitem__(self, row: Any) -> Any:
        after = super().__getitem__(row)
        self.used.add(row)
        return after


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorded]:
    tables = {name: Recorded(table) for name, table in TABLES.items()}
    for name, table in tables.items():
        monkeypatch.setattr(states, name, table)
    return tables


def events_in_the_code() -> Iterator[tuple[str, object]]:
    """(table, event) of each lookup `states.TABLE[state, "event"]`, and of what is passed to one."""
    for node in ast.walk(ast.parse(inspect.getsource(protocol))):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr in TABLES:
            for part in ast.walk(node.slice):
                if isinstance(part, ast.Constant):
                    yield node.value.attr, part.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_suspend":
            assert isinstance(node.args[0], ast.Constant)
            yield "SENDER", node.args[0].value
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "which":
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant):
                    yield "RECEIVER", part.value


def test_every_event_of_the_code_is_in_its_table_except_sending_which_changes_nothing() -> None:
    used = set(events_in_the_code())
    listed = {(name, event) for name, table in TABLES.items() for _, event in table}
    assert used <= listed
    assert listed - used == {("SENDER", "send")}
    assert SENDER[Sender.FLOWING, "send"] is Sender.FLOWING


def test_every_state_can_end_and_ended_is_final() -> None:
    for table, kind in ((LINK, Link), (SENDER, Sender), (RECEIVER, Receiver)):
        alive = [state for state in kind if state.value != "ended"]
        assert all(table[state, "end"].value == "ended" for state in alive)  # type: ignore[index]
        assert all(before.value != "ended" for before, _ in table)


def test_every_state_is_reachable() -> None:
    for name, table in MACHINES.items():
        reached = {next(iter(table))[0]}
        for _ in table:
            reached |= {after for (before, _), after in table.items() if before in reached}
        kind: Any = type(next(iter(reached)))
        assert reached == set(kind), name


def test_handwritten_cases_reach_every_row(recorded: dict[str, Recorded]) -> None:
    reach_links()
    reach_limits()
    reach_acks()
    reach_ends()
    missing = {name: set(table) - table.used for name, table in recorded.items()}
    assert missing == {"LINK": set(), "SENDER": {(Sender.FLOWING, "send")}, "RECEIVER": set()}


def reach_links() -> None:
    pair = Pair()
    pair.left.socket()
    pair.left.socket()
    pair.left.lost(2)
    pair.connect().connect().cut()


def reach_limits() -> None:
    pair = Pair(core(pending_count=4)).connect()
    pair.left.send(b"a")
    pair.left.commit()
    for _ in range(3):
        pair.left.send(b"b")
    pair.left.commit()
    pair.flow()
    pair.right.ack_commit(1)
    pair.flow()
    assert pair.left.suspended
    pair.right.ack_commit(2)
    pair.flow()
    assert not pair.left.suspended
    pair.right.ack_commit(3)
    pair.flow()
    reach_a_lower_cap()


def reach_a_lower_cap() -> None:
    end = core(pending_count=100_000)
    for cap_count in (CAP_COUNT + 9, CAP_COUNT):
        generation = end.socket()
        packet_of(end)
        end.received(generation, hello_bytes(hello(generation, cap_count=cap_count)))
        while not end.suspended and end.non_acked_message_count < CAP_COUNT + 5:
            end.send(b"")
    assert end.suspended


def reach_acks() -> None:
    pair = Pair().connect()
    pair.left.send(b"a")
    pair.flow()
    for _ in range(2):
        pair.left.commit()
        pair.left.send(b"a")
    pair.flow()
    pair.right.ack_commit(1)
    pair.right.ack_commit(2)
    assert pair.right.receiver is Receiver.CLEAR


def reach_ends() -> None:
    core().end(EndCode.ABORTED)
    greeting = core(pending_count=1)
    greeting.socket()
    greeting.send(b"a")
    greeting.end(EndCode.ABORTED)
    pair = Pair().connect()
    pair.left.commit()
    pair.flow()
    pair.right.end(EndCode.ABORTED)


def test_random_walks_stay_within_the_tables_and_reach_nearly_all_of_them(recorded: dict[str, Recorded]) -> None:
    for seed in range(150):
        assert not walk(seed).violation
    missing = {row for table in recorded.values() for row in set(table) - table.used}
    assert missing == {(Sender.FLOWING, "send"), (Sender.FLOWING, "commit at the limit")}


def test_a_move_that_is_not_in_a_table_raises() -> None:
    end = core()
    end.end(EndCode.CLOSED)
    with pytest.raises(KeyError):
        end.socket()


@pytest.mark.parametrize("name", MACHINES)
def test_a_diagram_has_exactly_the_moves_of_its_table(name: str) -> None:
    table = MACHINES[name]
    head, first, *arrows, last, empty = diagram(table).split("\n")
    assert (head, last, empty) == ("stateDiagram-v2", "    ended --> [*]", "")
    assert first == f"    [*] --> {next(iter(table))[0]}"
    drawn = set()
    for arrow in arrows:
        moves, events = arrow.strip().split(": ")
        before, after = moves.split(" --> ")
        drawn |= {(before, event, after) for event in events.split(", ")}
    assert drawn == {(before.value, event, after.value) for (before, event), after in table.items()}


def test_moves_between_the_same_two_states_share_an_arrow() -> None:
    assert "    flowing --> flowing: send, commit, ack\n" in diagram(SENDER)
