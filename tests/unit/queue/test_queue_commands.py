"""Bad control bytes are a named error at the edge and a code inside a state machine, never anything else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import PROPERTY

from avow.errors import InvalidRequest, Malformed, TooLarge
from avow.limits import CONTROL_SIZE_BYTES_MAX
from avow.queue.commands import (
    Command,
    CursorCommand,
    LaneCursorsCommand,
    LaneEndCommand,
    LaneOpenCommand,
    LaneTrimCommand,
    MembersCommand,
    QueueCommand,
    RetentionRules,
    StageCommand,
    SubscriptionCommand,
    TransactionCommand,
    TrimCommand,
    decode,
    decode_or_code,
    encode,
)
from avow.wire.messages import Kind

QUEUE_EXAMPLES = [
    (Kind.STAGE, StageCommand(b"t", 5)),
    (Kind.PUBLISH, TransactionCommand(b"t")),
    (Kind.DISCARD, TransactionCommand(b"t", "deadline")),
    (Kind.CURSOR, CursorCommand("reader", 9, hold=True, reset=True, remove=False)),
    (Kind.CURSOR, CursorCommand("reader", 9, epoch=17)),
    (Kind.TRIM, TrimCommand(4, "age")),
    (Kind.MEMBERS, MembersCommand((1, 2), (3,))),
]
METADATA_EXAMPLES = [
    (Kind.CURSOR, LaneCursorsCommand("q", "reader", ((1, 5), (2, 0)), hold=False)),
    (Kind.TRIM, LaneTrimCommand(3, 8, "passed")),
    (Kind.MEMBERS, MembersCommand((1,))),
    (Kind.QUEUE, QueueCommand("create", "q", "pub-sub", 4, RetentionRules(age_s=60, passed=True))),
    (Kind.LANE_OPEN, LaneOpenCommand(1, 2, "q", 3)),
    (Kind.LANE_END, LaneEndCommand(1, 7, 2)),
    (Kind.CURSOR, LaneCursorsCommand("q", "reader", ((1, 5),), epoch=17, member="a")),
    (Kind.SUBSCRIPTION, SubscriptionCommand("q", "reader", "", 2, b"c" * 16, "join")),
    (Kind.SUBSCRIPTION, SubscriptionCommand("", "", "", 2, b"", "forget")),
]


@pytest.mark.parametrize(("kind", "command"), QUEUE_EXAMPLES)
def test_a_queue_command_is_decoded_as_it_was_encoded(kind: int, command: Command) -> None:
    assert decode(kind, encode(command)) == command


@pytest.mark.parametrize(("kind", "command"), METADATA_EXAMPLES)
def test_a_metadata_command_is_decoded_as_it_was_encoded(kind: int, command: Command) -> None:
    assert decode(kind, encode(command), metadata=True) == command


@pytest.mark.parametrize(
    "command",
    [
        StageCommand(b"", 5),
        StageCommand(b"t" * 201, 5),
        StageCommand(b"t", -1),
        StageCommand(b"t", 1 << 63),
        StageCommand(b"t", 1 << 70),
        CursorCommand("", 1),
        CursorCommand("r" * 201, 1),
        CursorCommand("\ud800", 1),
        TrimCommand(-1),
        MembersCommand(()),
        MembersCommand(tuple(range(32))),
        QueueCommand("create", "q", lanes=0),
        QueueCommand("create", "q", lanes=1025),
        QueueCommand("rename", "q"),  # type: ignore[arg-type]
        LaneOpenCommand(1, 0),
        LaneOpenCommand(70_000, 1),
        CursorCommand("r", 1, epoch=-1),
        SubscriptionCommand("q", "r", "m" * 201, 1, b"c" * 16, "join"),
        SubscriptionCommand("q", "r", "m", 1, b"c" * 17, "join"),
        SubscriptionCommand("q", "r", "m", 1, b"c" * 16, "replace"),  # type: ignore[arg-type]
    ],
)
def test_a_command_out_of_bounds_is_refused_before_it_is_stored(command: Command) -> None:
    with pytest.raises(InvalidRequest):
        encode(command)


def test_a_command_too_long_for_an_entry_is_too_large() -> None:
    with pytest.raises(TooLarge):
        decode(Kind.TRIM, bytes(CONTROL_SIZE_BYTES_MAX + 1))


def test_invalid_msgpack_is_malformed_and_wrong_fields_are_an_invalid_request() -> None:
    with pytest.raises(Malformed):
        decode(Kind.TRIM, b"\xc1")
    with pytest.raises(Malformed):
        decode(Kind.CURSOR, b"\x91\xa1\xff")  # a name that is not UTF-8
    with pytest.raises(InvalidRequest):
        decode(Kind.TRIM, msgspec.msgpack.encode(["four"]))


def test_a_command_from_before_epochs_existed_names_no_reader() -> None:
    assert decode(Kind.CURSOR, msgspec.msgpack.encode(["r", 4, None, False, False])) == CursorCommand("r", 4)
    old = msgspec.msgpack.encode(["q", "r", [[1, 5]], None, False, False])
    assert decode(Kind.CURSOR, old, metadata=True) == LaneCursorsCommand("q", "r", ((1, 5),))


def test_an_unknown_field_is_refused_rather_than_ignored() -> None:
    with pytest.raises(InvalidRequest):
        decode(Kind.STAGE, msgspec.msgpack.encode([b"t", 5, "new"]))


@pytest.mark.parametrize("kind", [Kind.NOOP, Kind.DATA, Kind.QUEUE, Kind.LANE_OPEN, 11, 99, -1])
def test_a_kind_without_a_command_in_this_lane_is_an_invalid_request(kind: int) -> None:
    with pytest.raises(InvalidRequest):
        decode(kind, b"")


@PROPERTY
@given(st.integers(-1, 12), st.binary(max_size=24), st.booleans())
def test_any_bytes_decode_to_a_command_or_to_a_code(kind: int, control: bytes, metadata: bool) -> None:
    found = decode_or_code(kind, control, metadata=metadata)
    if isinstance(found, str):
        assert found in {"MALFORMED", "INVALID_REQUEST"}
    else:
        assert decode(kind, encode(found), metadata=metadata) == found
