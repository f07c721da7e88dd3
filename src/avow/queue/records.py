"""The values of the state machines: what a lane and the metadata lane consist of, and what their snapshots contain.

The classes with `array_like` are part of snapshots, as msgpack arrays in the order of the fields. Fields are only ever
added at the end, with a default: a later version must read the snapshots of an earlier one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from avow import limits
from avow.queue.commands import RetentionRules, Strategy
from avow.queue.entry_outcome import Outcome
from avow.wire.versions import FIRST

Fate: TypeAlias = Literal["published", "discarded", "expired"]
PeerState: TypeAlias = Literal["joining", "ready", "leaving", "gone"]
Run: TypeAlias = tuple[int, int, str, int]  # peer, incarnation, queue, route


# ------------------------------------------------------------------ one two-phase lane


class StoredFile(Struct, frozen=True, gc=False):
    """One file of a lane. `newest_ms` is the latest creation time of its messages, since 1970."""

    last_position: int
    size_bytes: int
    newest_ms: int


class VisibleRange(Struct, frozen=True, gc=False):
    """`count` messages with consecutive versions, all in the batch at `position`, from its message `offset` on."""

    position: int
    offset: int
    first_version: int
    count: int


class Bounds(Struct, frozen=True, array_like=True, gc=False):
    """Sizes of the lane's windows. They decide outcomes, so all peers use the same ones and snapshots contain them."""

    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    decided_transactions: int = limits.DECIDED_TRANSACTIONS_COUNT
    open_transactions: int = limits.OPEN_TRANSACTIONS_COUNT
    staged_batches: int = limits.STAGED_BATCHES_COUNT
    subscribers: int = limits.SUBSCRIBERS_COUNT


class Subscriber(Struct, frozen=True, array_like=True, gc=False):
    version: int
    hold: bool
    epoch: int = 0  # of the last reader that took over the lane


class Decision(Struct, frozen=True, array_like=True, gc=False):
    """The versions are 0 unless published; a published transaction without messages has last = first - 1."""

    fate: Fate
    first_version: int = 0
    last_version: int = 0


class QueueStatistics(Struct, frozen=True, gc=False):
    """One lane at one position. Counts are not in bytes unless the name says so."""

    position: int
    end: int
    trimmed_to: int
    visible_batches: int
    index_size_bytes: int
    write_ids: int
    open_transactions: int
    staged_messages: int
    decided_transactions: int
    subscribers: int
    refused_entries: int


class OpenTransactionRecord(Struct, frozen=True, array_like=True):
    txn: bytes
    deadline_ms: int
    positions: bytes
    counts: bytes
    parts: bytes = b""  # empty: none of the batches has one


class BoundTransactionRecord(Struct, frozen=True, array_like=True):
    """What an open transaction has besides, if it is bound."""

    txn: bytes
    home: int
    opened_at: int
    changed_at: int
    parted: bool
    prepared: list[tuple[int, tuple[tuple[int, int], ...]]]


class LaneSnapshot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    position: int
    refused: int
    bounds: Bounds
    end: int
    trimmed_to: int
    dropped: int
    index: tuple[bytes, bytes, bytes, bytes]  # rows, starts, positions, offsets
    write_ids: tuple[list[bytes], list[Outcome]]
    opened: list[OpenTransactionRecord]
    decided: tuple[list[bytes], list[Decision]]
    subscribers: dict[str, Subscriber]


class BoundLaneSnapshot(LaneSnapshot, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The snapshot of a lane that has part in bound transactions, which there are once the cluster's level is 2. Peers
    of the first release cannot read these fields, so other snapshots do not have them."""

    bound: list[BoundTransactionRecord] = []
    following: list[tuple[bytes, tuple[tuple[int, int], ...]]] = []


# ------------------------------------------------------------------ the metadata lane


class Member(Struct, frozen=True, array_like=True, gc=False):
    """A reader. `name` is empty for one that reads alone; `epoch` is that of its join."""

    name: str
    peer: int
    channel: bytes
    epoch: int


class Subscription(Struct, frozen=True, array_like=True, gc=False):
    """`members` has at least one, ordered by name. `before` is the previous epoch, or 0."""

    epoch: int
    members: tuple[Member, ...]
    before: int = 0


class VectorCursor(Struct, frozen=True, array_like=True):
    """Lanes missing in `versions` were not read yet."""

    versions: dict[int, int] = {}
    hold: bool = False


class Queue(Struct, frozen=True, array_like=True):
    """`first_lane`: for two-phase, the first of `lanes` consecutive lane numbers; for pub-sub, the number in frames
    about the queue, whose lanes get their numbers when runs of peers open them. `founders` are the first voters of a
    two-phase queue's lanes: a founder that holds nothing of a lane begins it with the initial snapshot."""

    name: str
    strategy: Strategy
    lanes: int
    first_lane: int
    retention: RetentionRules
    subscribers: dict[str, VectorCursor] = {}
    peers: tuple[int, ...] = ()  # the peers that hold it; empty: every voter of the cluster
    founders: tuple[int, ...] = ()
    subscriptions: dict[str, Subscription] = {}  # by subscriber; only those with a reader


class Lane(Struct, frozen=True, array_like=True, gc=False):
    """`end` -1: not decided. `epoch` counts the memberships before the one it was opened under."""

    number: int
    peer: int
    incarnation: int
    queue: str
    route: int
    voters: tuple[int, ...]
    epoch: int
    orphaned: bool = False
    end: int = -1
    ended_by: int = -1
    trimmed_to: int = 0
    last_version: int = -1  # the version its last entry ends with; -1: not decided

    @property
    def ended(self) -> bool:
        return self.end >= 0

    @property
    def run(self) -> Run:
        return self.peer, self.incarnation, self.queue, self.route


class PeerInfo(Struct, frozen=True, array_like=True, gc=False):
    number: int
    identity: bytes
    link: str
    api: str
    state: PeerState


class MetadataBounds(Struct, frozen=True, array_like=True, gc=False):
    """Like `Bounds`: they decide outcomes, so snapshots contain them."""

    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    queues: int = limits.QUEUES_COUNT
    lanes: int = limits.LANES_COUNT
    subscribers: int = limits.SUBSCRIBERS_COUNT  # of one queue
    subscriptions: int = limits.SUBSCRIPTIONS_COUNT  # of one queue
    members: int = limits.MEMBERS_COUNT  # of one subscription


class MetadataStatistics(Struct, frozen=True, gc=False):
    position: int
    epoch: int
    voters: int
    learners: int
    queues: int
    lanes: int
    open_lanes: int
    orphaned_lanes: int
    write_ids: int
    refused_entries: int
    readers: int  # members of all subscriptions


class MetadataSnapshot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    position: int
    refused: int
    bounds: MetadataBounds
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    epoch: int
    next_number: int
    lanes: list[Lane]
    open_lanes: list[int]
    incarnations: dict[int, int]
    queues: list[Queue]
    write_ids: tuple[list[bytes], list[Outcome]]
    peers: list[PeerInfo] = []


class LeveledMetadataSnapshot(MetadataSnapshot, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The snapshot of a cluster whose level was raised. Peers of the first release cannot read this field, so the
    snapshot does not have it before."""

    level: int = FIRST
