"""The commands in entries, as values, and their encoding.

An entry without messages carries a command in `control`: publish this transaction, move that cursor. The bytes come
from clients and other peers, and every peer applies them once they are committed. Where requests enter, `encode` and
`decode` raise an error before anything is stored. A state machine calls the same `decode` before it changes anything,
and the error's code becomes the entry's outcome.

The bytes are msgpack arrays in the order of the fields, with those that have a default. Fields are only ever added at
the end, with a default. An array with more fields than this version knows is refused, because applying half a command
would make peers differ; so a command with a new field is a subclass, written once the cluster's level allows it.
Limits of names and numbers are in the types: a version fits in 62 bits, so sums of versions fit in 64.

CURSOR and TRIM have different commands in a queue's own lane and in the metadata lane, where a pub-sub queue has many
lanes and its cursors are vectors. Hence two tables.
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
DecisionStep: TypeAlias = Literal["prepare", "decide", "follow", "close"]
TrimRule: TypeAlias = Literal["asked", "age", "size", "passed"]
Strategy: TypeAlias = Literal["two-phase", "pub-sub"]
Action: TypeAlias = Literal["create", "change", "delete"]
PeerAction: TypeAlias = Literal["announce", "join", "ready", "leave", "gone"]
SubscriptionAction: TypeAlias = Literal["join", "leave", "forget"]


class Command(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array of fields; see the module's docstring."""


class StageCommand(Command, frozen=True, gc=False):
    """The entry's batch belongs to `txn`. The latest deadline of a transaction's stages applies."""

    txn: TransactionName
    deadline_ms: Natural  # milliseconds since 1970
    part: Natural = 0  # one of several writers, or one attempt of a writer; 0: no parts


class TransactionCommand(Command, frozen=True, gc=False):
    """PUBLISH or DISCARD. Reason `deadline`: a coordinator discards an undecided transaction.

    `parts`: only these parts, each with its number of messages (ignored by a discard).
    """

    txn: TransactionName
    reason: Reason = "client"
    parts: Parts = ()


class BoundStageCommand(StageCommand, frozen=True, gc=False):
    """`home`: the lane that decides the transaction; this lane follows it. Without messages, in the home lane: opens
    the transaction there, before anything is staged elsewhere."""

    home: Natural = 0


class DecisionCommand(TransactionCommand, frozen=True, gc=False):
    """One step of a decision about a bound transaction (`transactions`).

    PUBLISH prepare    a follower keeps what is staged until the home lane has decided; its outcome has its position
    PUBLISH decide     the home lane publishes its own batches; `lanes` are its followers, each with the position of
                       its prepare. `at`: where the transaction was opened in the home lane
    PUBLISH follow     a follower publishes what it prepared at `at`
    PUBLISH close      every follower has followed, so the home lane may forget `lanes`
    DISCARD follow     a follower drops a transaction that has not changed since `at`
    """

    step: DecisionStep = "decide"
    at: Natural = 0
    lanes: Annotated[tuple[tuple[Positive, Positive], ...], Meta(max_length=limits.LANES_PER_QUEUE_MAX)] = ()


class CursorCommand(Command, frozen=True, gc=False):
    """A subscriber has processed everything up to `version`. `hold` None leaves the hold unchanged.

    `epoch` identifies the reader. With version 0 and a higher epoch than the lane has seen, the command is a fence:
    this reader owns the lane from here on. A reader moves the cursor only with the epoch of its fence, even if its
    subscription has a later epoch by then: see `subscriptions`.
    """

    subscriber: SubscriberName
    version: Natural = 0
    hold: bool | None = None
    reset: bool = False  # the cursor becomes `version`, even if that is lower
    remove: bool = False
    epoch: Natural = 0  # 0: the command comes from a client with the right to move cursors, not from a reader


class TrimCommand(Command, frozen=True, gc=False):
    """Remove versions up to and including this one, as far as holds allow. `rule` is the reason, for people."""

    upto_version: Natural
    rule: TrimRule = "asked"


class MembersCommand(Command, frozen=True, gc=False):
    voters: Annotated[Peers, Meta(min_length=1)]
    learners: Peers = ()


class RetentionRules(Command, frozen=True, gc=False):
    """What may be removed. Any rule that is set allows removal on its own; with none set, everything is kept."""

    age_s: Natural | None = None
    size_bytes: Natural | None = None
    passed: bool = False  # versions that every subscriber has passed, if there is a subscriber


class QueueCommand(Command, frozen=True, gc=False):
    """`change` replaces the retention rules; strategy and lanes never change. `delete` reads only the name."""

    action: Action
    name: QueueName
    strategy: Strategy = "two-phase"
    lanes: LaneCount = 1
    retention: RetentionRules = RetentionRules()
    peers: Peers = ()  # two-phase only: the peers that hold it; empty: every voter of the cluster


class PeerCommand(Command, frozen=True, gc=False):
    """A peer announces itself (announce, ready), an operator changes the cluster (join, leave), the end of a peer
    (gone)."""

    action: PeerAction
    number: PeerNumber = 0  # 0 in a join: the answer contains the assigned number
    identity: Identity = b""  # the uuid of its data folder
    link: Address = ""  # host:port for other peers
    api: Address = ""  # URL for clients


class LaneOpenCommand(Command, frozen=True, gc=False):
    """A run of a peer requests a lane of its own. `queue` may be empty: a lane that belongs to no queue."""

    peer: PeerNumber
    incarnation: Positive
    queue: Annotated[str, Meta(max_length=limits.QUEUE_NAME_CHARS_MAX)] = ""
    route: Annotated[int, Meta(ge=0, lt=limits.LANES_PER_QUEUE_MAX)] = 0


class LaneEndCommand(Command, frozen=True, gc=False):
    """`end` is a position (entries, for replication), `last_version` a version (messages, for cursors)."""

    lane: Positive
    end: Natural
    proposer: PeerNumber
    last_version: Natural | None = None  # None: one message in each entry


class LaneCursorsCommand(Command, frozen=True, gc=False):
    """CURSOR in the metadata lane: (lane, version) pairs. `reset` replaces the whole vector.

    An `epoch` must be the subscription's current one, and every lane named must belong to `member`.
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
    """Changes the readers of a subscriber: `member` (empty: reads alone) over `channel`, which ends at `peer`.

    `join` without a name takes over from all members. `leave` reads member and channel and does nothing unless both
    still match. `forget` reads only the peer: it removes all members at that peer, in every queue.
    """

    queue: Annotated[str, Meta(max_length=limits.QUEUE_NAME_CHARS_MAX)]
    subscriber: Annotated[str, Meta(max_length=limits.SUBSCRIBER_NAME_CHARS_MAX)]
    member: MemberName
    peer: PeerNumber
    channel: ChannelId
    action: SubscriptionAction


class LevelCommand(Command, frozen=True, gc=False):
    """From here on the cluster may use this version of the protocol (`avow.wire.versions`). A lower one changes
    nothing."""

    level: Annotated[int, Meta(ge=1, le=255)]


class LaneTrimCommand(Command, frozen=True, gc=False):
    """TRIM in the metadata lane. An ended lane that is trimmed to its end is removed."""

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
    Kind.LEVEL: LevelCommand,
}

# The subclass with fields of version 2, and the first byte of its array: the encoding always has all fields.
_LATER: Final[Mapping[type[Command], tuple[type[Command], int]]] = {
    StageCommand: (BoundStageCommand, 0x94),
    TransactionCommand: (DecisionCommand, 0x96),
}

_encoder: Final = Encoder()
_EVERY: Final[tuple[type[Command], ...]] = (
    *QUEUE_COMMANDS.values(),
    *METADATA_COMMANDS.values(),
    *(later for later, _ in _LATER.values()),
)
_decoders: Final[dict[type[Command], Decoder[Command]]] = {command: Decoder(command) for command in _EVERY}


def encode(command: Command) -> bytes:
    """The control bytes of a command. Raises what `decode` would raise, before anything is stored."""
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
        raise InvalidRequest(f"entries of kind {name} have no command in this lane; nothing was changed")
    later = _LATER.get(command)
    if later is not None and control[:1] == bytes([later[1]]):
        command = later[0]
    return _decode(command, control)


def decode_or_code(kind: int, control: bytes, *, metadata: bool = False) -> Command | str:
    """Like `decode`, but returns the code of an error instead of raising it: a state machine must not raise."""
    try:
        return decode(kind, control, metadata=metadata)
    except AvowError as error:
        return error.code


def _decode(command: type[Command], control: bytes) -> Command:
    name = command.__name__
    if len(control) > limits.CONTROL_SIZE_BYTES_MAX:
        raise TooLarge(
            f"{name} has {len(control)} bytes, more than the maximum of {limits.CONTROL_SIZE_BYTES_MAX}; nothing was "
            "changed. Name fewer lanes, peers or parts"
        )
    try:
        return _decoders[command].decode(control)
    except ValidationError as cause:
        raise InvalidRequest(f"{name}: {cause}; nothing was changed") from cause
    except ValueError as cause:  # msgspec's DecodeError, and UnicodeDecodeError from inside a name
        raise Malformed(name, expected="its fields as msgpack", found=str(cause)) from cause
