"""Values name their writer; rows are read back from their file unchanged."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from avow_lab.campaigns.peers.history import (
    COUNT_MAX,
    History,
    Kind,
    Outcome,
    code_of,
    codes_of,
    load_history,
    parse_value,
    value_of,
    values_of,
)


@pytest.mark.parametrize("number", [1, 77, 123_456_789])
@pytest.mark.parametrize("index", [0, 1, COUNT_MAX - 1])
def test_a_value_names_the_operation_that_wrote_it(number: int, index: int) -> None:
    assert parse_value(value_of(number, index)) == code_of(number, index)


def test_messages_written_together_have_consecutive_codes() -> None:
    codes = codes_of(values_of(9, 5))
    assert list(codes) == list(range(codes[0], codes[0] + 5))


@pytest.mark.parametrize("value", [b"", b"hello", b"1", b"1.", b"1.zz.", b"-1.0.", b"1.0.x", b"1.ffff."])
def test_a_value_that_nobody_writes_is_foreign(value: bytes) -> None:
    assert parse_value(value) < 0


def test_any_changed_byte_makes_a_value_foreign_or_another() -> None:
    value = value_of(41, 2)
    for at in range(len(value)):
        changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        assert parse_value(changed) != parse_value(value)


def test_rows_are_read_back_from_their_file(tmp_path: Path) -> None:
    history = History(count(1).__next__, path=tmp_path / "history.jsonl")
    unanswered = history.begin(Kind.READ, "q", 2, level="local", lane=0)
    op = history.begin(Kind.WRITE, "q", 1, count=3, expected=5)
    history.end(op, Outcome.DONE, spans=[(0, 6, 8)])
    assert unanswered.ended_ns is None
    assert op.ended_ns == 3
    history.close()
    assert load_history(tmp_path / "history.jsonl") == history.ops == [unanswered, op]
