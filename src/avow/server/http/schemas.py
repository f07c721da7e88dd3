"""The JSON of the API as types: parameters, request bodies and answers.

Each definition has three uses: requests are checked against it, answers are encoded from it, and the OpenAPI document
is generated from it, so the document always agrees with the peer. Fields with a default may be left out of a request;
answers always have all their fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from avow import limits
from avow.queue.commands import Strategy
from avow.server.access import QueueRight
from avow.wire.versions import FIRST

ChannelRole: TypeAlias = Literal["producer", "subscriber", "reader", "observer"]
Level: TypeAlias = Literal["local", "at_least", "linearizable"]
Version = Annotated[int, Meta(ge=0, le=1 << 62)]
LaneNumber = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
PartNumber = Annotated[int, Meta(ge=0, le=(1 << 62))]
Milliseconds = Annotated[int, Meta(ge=1, le=limits.WRITE_AGE_UNKNOWN_MS * 10)]  # since 1970
PeerNumber = Annotated[int, Meta(ge=1, le=limits.PEER_NUMBER_MAX)]
QueueName = Annotated[str, Meta(min_length=1, max_length=limits.QUEUE_NAME_CHARS_MAX)]
SubscriberName = Annotated[str, Meta(min_length=1, max_length=limits.SUBSCRIBER_NAME_CHARS_MAX)]
TransactionName = Annotated[str, Meta(min_length=1, max_length=limits.TRANSACTION_NAME_BYTES_MAX)]
Hex32 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$", max_length=32)]
Seconds = Annotated[float, Meta(gt=0, le=60)]
Address = Annotated[str, Meta(max_length=limits.ADDRESS_CHARS_MAX)]

TIMEOUT_S: Final = 10.0
READ_MESSAGES_MAX: Final = 100_000
LINES_MAX: Final = 10_000  # messages of one JSON answer; encoding more would delay other clients

# ---------------------------------------------------------------------- parameters: path and query


class NoParameters(Struct, frozen=True, kw_only=True):
    pass


class PeerParameters(Struct, frozen=True, kw_only=True):
    number: PeerNumber


class ListParameters(Struct, frozen=True, kw_only=True):
    """`internal`: also the cluster's own queues."""

    internal: bool = False


class QueueParameters(Struct, frozen=True, kw_only=True):
    queue: QueueName


class SubscriberParameters(QueueParameters, frozen=True, kw_only=True):
    name: SubscriberName


class EnqueueParameters(QueueParameters, frozen=True, kw_only=True):
    lane: LaneNumber | None = None
    expected: Version | None = None
    write_id: Hex32 | None = None
    created_ms: Milliseconds | None = None
    timeout_s: Seconds = TIMEOUT_S
    redirect: bool = False


class LookupParameters(QueueParameters, frozen=True, kw_only=True):
    write_id: Hex32
    lane: LaneNumber | None = None
    since: Version = 0
    timeout_s: Seconds = TIMEOUT_S


class TransactionParameters(QueueParameters, frozen=True, kw_only=True):
    txn: TransactionName
    lane: LaneNumber | None = None
    timeout_s: Seconds = TIMEOUT_S


class StageParameters(TransactionParameters, frozen=True, kw_only=True):
    write_id: Hex32 | None = None
    created_ms: Milliseconds | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=limits.STAGE_DEADLINE_S_MAX)] = 60.0
    part: PartNumber = 0


class ReadParameters(QueueParameters, frozen=True, kw_only=True):
    lane: LaneNumber | None = None
    after: Version = 0
    max: Annotated[int, Meta(ge=1, le=READ_MESSAGES_MAX)] = 1_000
    max_bytes: Annotated[int, Meta(ge=1, le=limits.BATCH_SIZE_BYTES_MAX)] = limits.MIB
    level: Level = "local"
    at_least: Version | None = None
    wait_s: Annotated[float, Meta(ge=0, le=30)] = 0.0
    timeout_s: Seconds = TIMEOUT_S


class ChannelParameters(QueueParameters, frozen=True, kw_only=True, rename={"from_": "from"}):
    """`channels.opening` says which parameters each role has."""

    role: ChannelRole
    format: Literal["records", "ranges", "json"] | None = None
    producer: Hex32 | None = None
    tried: Version | None = None
    created_ms: Milliseconds | None = None
    subscriber: SubscriberName | None = None
    member: Annotated[str, Meta(max_length=limits.MEMBER_NAME_CHARS_MAX)] = ""
    lane: LaneNumber | None = None
    after: Annotated[str, Meta(pattern=r"^\d{1,10}:\d{1,18}(,\d{1,10}:\d{1,18})*$", max_length=24_576)] | None = None
    from_: Literal["start", "end"] = "start"


class MessageParameters(QueueParameters, frozen=True, kw_only=True):
    lane: LaneNumber
    version: Annotated[int, Meta(ge=1, le=1 << 62)]


class LifeParameters(MessageParameters, frozen=True, kw_only=True):
    """`redirect`: redirect to the lane's coordinator, which knows most."""

    redirect: bool = False


# ---------------------------------------------------------------------- cluster


class Health(Struct, frozen=True):
    status: Literal["alive", "ready"]


class Me(Struct, frozen=True):
    """`token`: this peer requires one. `rights`: by pattern of queue names; every pattern that matches counts."""

    name: str
    token: bool
    admin: bool
    rights: dict[str, list[QueueRight]]


class Peer(Struct, frozen=True):
    """`identity` is the uuid of its data folder as 32 hex digits; `connected`: the answering peer has a link to it.
    `newest`: the version of the protocol up to which it can read, as of its last link; 0: not known to the answering
    peer."""

    number: int
    identity: str
    link: str
    api: str
    state: Literal["joining", "ready", "leaving", "gone"]
    voter: bool
    connected: bool
    newest: int = 0


class Peers(Struct, frozen=True):
    """`level`: the version of the protocol that the cluster uses."""

    peers: list[Peer]
    level: int = FIRST


class RaiseLevel(Struct, frozen=True, forbid_unknown_fields=True):
    """`level` 0: the newest version of the protocol that the answering peer can read."""

    level: Annotated[int, Meta(ge=0, le=255)] = 0


class ClusterLevel(Struct, frozen=True):
    level: int


class Join(Struct, frozen=True, forbid_unknown_fields=True):
    identity: Hex32
    link: Address
    api: Address = ""


class Joined(Struct, frozen=True):
    cluster: str
    number: int
    peers: list[Peer]


class Leaving(Struct, frozen=True):
    number: int
    state: Literal["leaving", "gone"]


class Status(Struct, frozen=True):
    """One peer's view of the cluster. `version`: of the software that this peer runs. `level`: of the protocol that the
    cluster uses. `removed`: why the peer serves nothing any more; empty: it does. `not_understood`: lanes for which a
    newer peer sent what this one cannot read."""

    cluster: str
    version: str
    removed: str
    peer: int
    incarnation: int
    peers: list[dict[str, Any]]
    metadata: dict[str, Any]
    lanes: list[dict[str, Any]]
    storage: dict[str, Any]
    disk_full: bool
    level: int
    not_understood: list[dict[str, Any]]


# ---------------------------------------------------------------------- queues


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """Each rule that is set allows removal by itself; if none is set, nothing is removed."""

    age_s: Version | None = None
    size_bytes: Version | None = None
    passed: bool = False


class NewQueue(Struct, frozen=True, forbid_unknown_fields=True):
    name: QueueName
    strategy: Strategy = "two-phase"
    lanes: Annotated[int, Meta(ge=1, le=limits.LANES_PER_QUEUE_MAX)] = 1
    peers: Annotated[list[PeerNumber], Meta(max_length=limits.PEERS_MAX)] = []
    retention: Retention = Retention()


class ChangedQueue(Struct, frozen=True, forbid_unknown_fields=True):
    retention: Retention


class Lane(Struct, frozen=True):
    """`held`: this peer has a copy of the lane; without one `end` and `trimmed_to` are 0 and have no meaning."""

    lane: int
    number: int
    end: int
    trimmed_to: int
    coordinator: int | None
    voters: list[int]
    owner: int | None
    ended: bool
    held: bool


class Queue(Struct, frozen=True):
    """`open_lane`: the lane of a pub-sub queue to which this peer writes."""

    name: str
    strategy: Strategy
    peers: list[int]
    retention: Retention
    open_lane: int | None
    lanes: list[Lane]


class Queues(Struct, frozen=True):
    queues: list[Queue]


class Deleted(Struct, frozen=True):
    name: str
    deleted: bool


class Trim(Struct, frozen=True, forbid_unknown_fields=True):
    upto_version: Version
    lane: LaneNumber = 0


class TrimmedTo(Struct, frozen=True):
    lane: int
    trimmed_to: int


# ---------------------------------------------------------------------- messages


class NewMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """Either `value` or `value_base64`; the key likewise, which is optional."""

    value: str | None = None
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, str] = {}
    time_ms: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None


class NewMessages(Struct, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=limits.BATCH_COUNT_MAX)]


class Written(Struct, frozen=True):
    lane: int
    first_version: int
    last_version: int


class Enqueued(Struct, frozen=True):
    write_id: str
    written: list[Written]


class LaneOnly(Struct, frozen=True):
    lane: int


class Staged(Struct, frozen=True):
    write_id: str
    staged: list[LaneOnly]


class Part(Struct, frozen=True):
    part: Annotated[int, Meta(ge=1, le=(1 << 62))]
    messages: Version = 0


PartList = Annotated[tuple[Part, ...], Meta(min_length=1, max_length=limits.TRANSACTION_PARTS_COUNT_MAX)]


class LaneParts(Struct, frozen=True):
    lane: LaneNumber
    parts: PartList


class Parts(Struct, frozen=True):
    """The parts of a transaction that count, in all its lanes together, or lane by lane; without a body, everything."""

    parts: PartList | None = None
    lanes: Annotated[tuple[LaneParts, ...], Meta(min_length=1, max_length=limits.LANES_PER_QUEUE_MAX)] | None = None


class Published(Struct, frozen=True):
    published: list[Written]


class Discarded(Struct, frozen=True):
    discarded: list[LaneOnly]


class Message(Struct, frozen=True, omit_defaults=True):
    """`value` is text; a value that is not UTF-8 is in `value_base64`. The same holds for keys and header values."""

    lane: int
    version: int
    time_ms: int
    value: str | None = None
    value_base64: bytes | None = None
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, str] = {}
    headers_base64: dict[str, bytes] = {}


class NamedMessage(Message, frozen=True, omit_defaults=True, kw_only=True):
    committed: bool
    stored_by: list[int]


class StoredAt(Struct, frozen=True):
    """`stored` null: this peer does not know."""

    peer: int
    stored: bool | None


class Reader(Struct, frozen=True):
    """A subscriber and its cursor in the message's lane; `read`: the cursor has reached the message."""

    name: str
    cursor: int
    read: bool


class Life(Struct, frozen=True):
    """What `peer` knows about a message. `coordinator` is null if unknown, and for pub-sub, where `owner` wrote it."""

    queue: str
    lane: int
    version: int
    peer: int
    created_ms: int
    coordinator: int | None
    owner: int | None
    committed: bool
    visible: bool
    stored: list[StoredAt]
    subscribers: list[Reader]
    message: NamedMessage


# ---------------------------------------------------------------------- subscribers


class Member(Struct, frozen=True):
    """A channel at `peer` that reads for a subscriber. `member` is empty if it is the only reader."""

    member: str
    peer: int
    lanes: list[int]


class Subscriber(Struct, frozen=True):
    """`versions`: lane -> the last version it has processed. `epoch`: of its subscription; 0 without members."""

    name: str
    versions: dict[str, int]
    hold: bool
    epoch: int = 0
    members: list[Member] = []


class Subscribers(Struct, frozen=True):
    subscribers: list[Subscriber]


class Cursor(Struct, frozen=True, forbid_unknown_fields=True):
    """`hold` null leaves it unchanged. `reset`: set the cursor to the given versions, even if it moves back."""

    versions: Annotated[dict[LaneNumber, Version], Meta(max_length=4096)] = {}
    hold: bool | None = None
    reset: bool = False


class Removed(Struct, frozen=True):
    name: str
    removed: bool


# ---------------------------------------------------------------------- errors


class Error(Struct, frozen=True):
    """An error may have more fields with details: `cursor`, `write_id`, `coordinator`, `api`, ..."""

    code: str
    message: str
    definite: bool
    retriable: bool


class ErrorAnswer(Struct, frozen=True):
    error: Error
