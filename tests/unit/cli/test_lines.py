"""Lines of the input as messages, in groups that do not wait for each other."""

from __future__ import annotations

import os
import re
import threading

import pytest

from avow.cli.enqueue import Lines, Shown, Stored, from_arguments, from_descriptor, write
from avow.client.outcomes import Done
from avow.errors import InvalidRequest
from avow.limits import MESSAGE_SIZE_BYTES_MAX


def lines_of(data: bytes, *, batch: int = 100, separator: bytes = b"") -> list[Lines]:
    reading, writing = os.pipe()

    def feed() -> None:
        os.write(writing, data)
        os.close(writing)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        return list(from_descriptor(reading, batch=batch, separator=separator))
    finally:
        feeder.join()
        os.close(reading)


def values_of(groups: list[Lines]) -> list[bytes]:
    return [bytes(value) for group in groups for value in group.values]


def test_each_line_is_a_message_and_the_last_needs_no_newline() -> None:
    assert values_of(lines_of(b"one\ntwo\n\nfour")) == [b"one", b"two", b"", b"four"]
    assert values_of(lines_of(b"one\n")) == [b"one"]
    assert lines_of(b"") == []


def test_no_group_is_larger_than_the_batch_and_all_bytes_are_accounted_for() -> None:
    data = b"".join(b"%d\n" % number for number in range(25))
    groups = lines_of(data, batch=10)
    assert [len(group.values) for group in groups] == [10, 10, 5]
    assert sum(group.read_bytes for group in groups) == len(data)


def test_a_complete_line_does_not_wait_for_the_next_one() -> None:
    reading, writing = os.pipe()
    try:
        source = from_descriptor(reading, batch=1000, separator=b"")
        os.write(writing, b"now\nlat")
        assert list(next(source).values) == [b"now"]
        os.write(writing, b"er\n")
        assert list(next(source).values) == [b"later"]
    finally:
        os.close(writing)
        os.close(reading)


def test_keys_stand_before_the_first_separator() -> None:
    (group,) = lines_of(b"a=1\nb=2=3\n", separator=b"=")
    assert (list(group.keys or ()), list(group.values)) == ([b"a", b"b"], [b"1", b"2=3"])
    (group,) = from_arguments(["k:v"], batch=10, separator=b":")
    assert (list(group.keys or ()), list(group.values)) == ([b"k"], [b"v"])


def test_a_line_without_the_separator_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the line 'no key here' has no separator '='"):
        lines_of(b"a=1\nno key here\n", separator=b"=")


def test_a_line_without_a_newline_does_not_fill_the_memory() -> None:
    with pytest.raises(InvalidRequest, match="longer than the largest message"):
        lines_of(b"x" * (MESSAGE_SIZE_BYTES_MAX + 2))


class Lane:
    """A lane that stores all messages, like the client's queue."""

    def __init__(self) -> None:
        self.end = 0
        self.expected: list[int | None] = []

    def enqueue_many(self, values: list[bytes], *, keys: object, expected: int | None, lane: int | None) -> list[Done]:
        self.expected.append(expected)
        first, self.end = self.end + 1, self.end + len(values)
        return [Done("orders", lane or 0, first, self.end, b"")]


def test_an_expected_version_advances_from_group_to_group() -> None:
    lane, stored = Lane(), Stored("orders")
    groups = from_arguments(["a", "b", "c", "d", "e"], batch=2, separator=b"")
    write(lane, groups, stored, Shown(None, None), expected=0, lane=None)  # type: ignore[arg-type]
    assert lane.expected == [0, 2, 4]
    assert re.match(r"5 messages stored in orders \(lane 0 versions 1 to 5, [\d,]+/s\)", stored.sentence())
    assert stored.as_object() == {
        "queue": "orders",
        "messages": 5,
        "written": [{"lane": 0, "first_version": 1, "last_version": 5, "messages": 5}],
    }


def test_the_summary_names_every_lane() -> None:
    stored = Stored("orders")
    stored.add(Done("orders", 2, 7, 7, b""))
    stored.add(Done("orders", 0, 1, 3, b""))
    assert stored.sentence().startswith("4 messages stored in orders (lane 0 versions 1 to 3; lane 2 version 7")
