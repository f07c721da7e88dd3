"""The commands inside entries, as values, and their bytes.

An entry without messages carries a command in `control`: publish this transaction, move that cursor. The bytes come
from clients and from other peers, and once committed they are applied by every peer, so two places read them with
different manners. At the edge, before anything is stored, `encode` and `decode` raise a named error. In the state
machines the same `decode` is called first, before anything is changed, and its error becomes the entry's outcome.

The bytes are msgpack arrays in the order of the fields. Fields are only ever added at the end, with a default. An
array with more fields than this version knows is refused, because applying half a command would make peers differ.
Bounds on names and numbers are in the types: a version fits 62 bits, so no sum of versions leaves 64.

Two kinds mean different things in a queue's own lane and in the metadata lane (CURSOR, TRIM): there, a pub-sub queue
has many lanes and its cursors are vectors. Hence two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from avow import limits
from avow.errors import AvowError, InvalidRequest, Malformed, TooLarge
from avow.wire.messages import Kind

Natural = Annotated[int, Meta(ge=0, le=(1 << 62))]
Positive = Annotated[int, Meta(ge=1, le=(1 << 62))]
PeerNumber = Annotated[int, Meta(ge=0, le=limits.PEER_NUMBER_MAX)]
Peers = Annotated[tuple[PeerNumber, ...], Meta(max_length=limits.PEERS_MAX)]
TransactionName = Annotated[bytes, Meta(min_length=1, max_length=limits.TRANSACTION_NAME_BYTES_MAX)]
QueueName = Annotated[str, Meta(min_length=1, max_length=limits.QUEUE_NAME_CHARS_MAX)]
SubscriberName = Annotated[str, Meta(min_length=1, max_length=limits.SUBSCRIBER_NAME_CHARS_MAX)]
MemberName = Annotated[str, Meta(max_length=limits.MEMBER_NAME_CHARS_MAX)]
ChannelId = Annotated[bytes, Meta(max_length=limits.CHANNEL_ID_SIZE_BYTES)]
Identity = Annotated[bytes, Meta(max_length=16)]
Address = Annotated[str, Meta(max_length=limits.ADDRESS_CHARS_MAX)]
LaneCount = Annotated[int, Meta(ge=1, le=limits.LANES_PER_QUEUE_MAX)]
Parts = Annotated[tuple[tuple[Positive, Natural], ...], Meta(max_length=limits.TRANSACTION_PARTS_COUNT_MAX)]

Reason: TypeAlias = Literal["client", "deadline"]
TrimRule: TypeAlias = Literal["asked", "age", "size", "passed"]
Strategy: TypeAlias = Literal["two-phase", "pub-sub"]
Action: TypeAlias = Literal["create", "change", "delete"]
PeerAction: TypeAlias = Literal["announce", "join", "ready", "leave", "gone"]
SubscriptionAction: TypeAlias = Literal["join", "leave", "forget"]


class Command(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array of fields; see the head of the module."""


class StageCommand(Command, frozen=True, gc=False):
    """The batch beside it belongs to `txn`. The latest deadline of a transaction's stages holds."""

    txn: TransactionName
    deadline_ms: Natural  # milliseconds since 1970
    part: Natural = 0  # one of several writers, or an attempt of one; 0: there are no parts


class TransactionCommand(Command, frozen=True, gc=False):
    """PUBLISH or DISCARD. `deadline`: a coordinator discards what its client left undecided.

    `parts`: of these parts only, each with the number of its messages (of a discard any number will do).
    """

    txn: TransactionName
    reason: Reason = "client"
    parts: Parts = ()


class CursorCommand(Command, frozen=True, gc=False):
    """A subscriber has everything up to `version`. `hold` None leaves the hold as it is.

    `epoch` names the reader. With version 0 and a higher epoch than the lane has heard it is a fence: the lane is this
    reader's from here on. A reader moves the cursor with the epoch it fenced the lane with, and with no other, also
    when its subscription has a later one by now: see `subscriptions`.
    """

    subscriber: SubscriberName
    version: Natural = 0
    hold: bool | None = None
    reset: bool = False  # the cursor becomes `version` even if that is a step back
    remove: bool = False
    epoch: Natural = 0  # 0: no reader of a subscription, but whoever may move cursors


class TrimCommand(Command, frozen=True, gc=False):
    """Remove versions up to and including this one, as far as holds allow. `rule` says why, for people."""

    upto_version: Natural
    rule: TrimRule = "asked"


class MembersCommand(Command, frozen=True, gc=False):
    voters: Annotated[Peers, Meta(min_length=1)]
    learners: Peers = ()


class RetentionRules(Command, frozen=True, gc=False):
    """What may be removed. Any rule that is set allows removal on its own; with none set, everything is kept."""

    age_s: Natural | None = None
    size_bytes: Natural | None = None
    passed: bool = False  # what every subscriber has passed (and there is at least one)


class QueueCommand(Command, frozen=True, gc=False):
    """`change` replaces the retention rules; strategy and lanes are for life. `delete` reads the name only."""

    action: Action
    name: QueueName
    strategy: Strategy = "two-phase"
    lanes: LaneCount = 1
    retention: RetentionRules = RetentionRules()
    peers: Peers = ()  # two-phase only: who holds it; empty: every voter of the cluster


class PeerCommand(Command, frozen=True, gc=False):
    """What a peer says of itself (announce, ready), what is asked for it (join, leave), and the end of it (gone)."""

    action: PeerAction
    number: PeerNumber = 0  # of a join: 0, the answer names the number it got
    identity: Identity = b""  # the uuid of its data folder
    link: Address = ""  # host:port other peers reach it at
    api: Address = ""  # the URL clients reach it at


class LaneOpenCommand(Command, frozen=True, gc=False):
    """A run of a peer asks for a lane of its own. `queue` may be empty: a lane that serves no queue in particular."""

    peer: PeerNumber
    incarnation: Positive
    queue: Annotated[str, Meta(max_length=limits.QUEUE_NAME_CHARS_MAX)] = ""
    route: Annotated[int, Meta(ge=0, lt=limits.LANES_PER_QUEUE_MAX)] = 0


class LaneEndCommand(Command, frozen=True, gc=False):
    """`end` counts entries, which peers replicate; `last_version` counts messages, which cursors name."""

    lane: Positive
    end: Natural
    proposer: PeerNumber
    last_version: Natural | None = None  # None: one message in each entry


class LaneCursorsCommand(Command, frozen=True, gc=False):
    """CURSOR in the metadata lane: (lane, version) pairs. `reset` replaces the whole vector.

    With an `epoch` it must be the subscription's present one, and every lane named must be `member`'s.
    """

    queue: QueueName
    subscriber: SubscriberName
    versions: Annotated[tuple[tuple[Positive, Natural], ...], Meta(max_length=4096)] = ()
    hold: bool | None = None
    reset: bool = False
    remove: bool = False
    epoch: Natural = 0  # as in `CursorCommand`
    member: MemberName = ""


class SubscriptionCommand(Command, frozen=True, gc=False):
    """Who reads for a subscriber: `member` (may be empty: alone) over `channel`, which ends at `peer`.

    `join` without a name takes over from everybody. `leave` reads member and channel, and does nothing unless both are
    there still. `forget` reads the peer only: none of its channels, in whichever queue, reads for anybody any more.
    """

    queue: Annotated[str, Meta(max_length=limits.QUEUE_NAME_CHARS_MAX)]
    subscriber: Annotated[str, Meta(max_length=limits.SUBSCRIBER_NAME_CHARS_MAX)]
    member: MemberName
    peer: PeerNumber
    channel: ChannelId
    action: SubscriptionAction


class LaneTrimCommand(Command, frozen=True, gc=False):
    """TRIM in the metadata lane. An ended lane trimmed to its end is forgotten."""

    lane: Positive
    upto_version: Natural
    rule: TrimRule = "asked"


QUEUE_COMMANDS: Final[Mapping[int, type[Command]]] = {
    Kind.STAGE: StageCommand,
    Kind.PUBLISH: TransactionCommand,
    Kind.DISCARD: TransactionCommand,
    Kind.CURSOR: CursorCommand,
    Kind.TRIM: TrimCommand,
    Kind.MEMBERS: MembersCommand,
}
METADATA_COMMANDS: Final[Mapping[int, type[Command]]] = {
    Kind.CURSOR: LaneCursorsCommand,
    Kind.TRIM: LaneTrimCommand,
    Kind.MEMBERS: MembersCommand,
    Kind.QUEUE: QueueCommand,
    Kind.LANE_OPEN: LaneOpenCommand,
    Kind.LANE_END: LaneEndCommand,
    Kind.PEER: PeerCommand,
    Kind.SUBSCRIPTION: SubscriptionCommand,
}

_encoder: Final = Encoder()
_decoders: Final[dict[type[Command], Decoder[Command]]] = {
    command: Decoder(command) for command in (*QUEUE_COMMANDS.values(), *METADATA_COMMANDS.values())
}


def encode(command: Command) -> bytes:
    """The control bytes of a command. What `decode` would refuse is refused here, before anything is stored."""
    try:
        control = _encoder.encode(command)
    except (OverflowError, UnicodeEncodeError) as cause:
        raise InvalidRequest(f"{type(command).__name__}: {cause}; nothing was stored") from cause
    _decode(type(command), control)
    return control


def decode(kind: int, control: bytes, *, metadata: bool = False) -> Command:
    """The command in an entry of this kind. Raises Malformed, InvalidRequest or TooLarge, and nothing else."""
    command = (METADATA_COMMANDS if metadata else QUEUE_COMMANDS).get(kind)
    if command is None:
        name = Kind.NAMES[kind] if 0 <= kind < len(Kind.NAMES) else kind
        raise InvalidRequest(f"an entry of kind {name} carries no command in this lane; nothing was changed")
    return _decode(command, control)


def decode_or_code(kind: int, control: bytes, *, metadata: bool = False) -> Command | str:
    """As `decode`, with the error's code in place of the error: for a state machine, which must not raise."""
    try:
        return decode(kind, control, metadata=metadata)
    except AvowError as error:
        return error.code


def _decode(command: type[Command], control: bytes) -> Command:
    name = command.__name__
    if len(control) > limits.CONTROL_SIZE_BYTES_MAX:
        raise TooLarge(f"{name}: {len(control)} bytes, at most {limits.CONTROL_SIZE_BYTES_MAX}; nothing was changed")
    try:
        return _decoders[command].decode(control)
    except ValidationError as cause:
        raise InvalidRequest(f"{name}: {cause}; nothing was changed") from cause
    except ValueError as cause:  # msgspec's DecodeError, and UnicodeDecodeError from inside a name
        raise Malformed(name, expected="the msgpack of its fields", found=str(cause)) from cause
