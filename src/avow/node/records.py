"""The values of a node: what it drains, what it merges and serves, and what it reports to people and programs."""

from __future__ import annotations

from msgspec import Struct

from avow import limits
from avow.replication.effects import Persist
from avow.wire.messages import Entry, Message, Section


class NodeEffects(Struct, gc=False):
    """Like `replication.effects.Effects`, with the route of each message."""

    sends: list[tuple[int, int, Message]]
    persist: list[Persist]


class Pace(Struct, frozen=True, gc=False):
    """Intervals and limits of housekeeping."""

    every_s: float = 0.2
    retention_every_s: float = 5.0
    repeat_s: float = 1.0  # until a proposal without visible effect is repeated
    silent_s: float = limits.SUBSCRIPTION_SILENT_S  # a peer that sends nothing for this long loses its subscriptions
    behind_entries_max: int = 256  # a learner this close to the end may become a voter
    opened_max: int = limits.LANES_OPENED_MAX  # lanes opened in one tick


class Merged(Struct, frozen=True, gc=False):
    """What to append. `writes` has (write id, offset, count) for each write; empty for a single write."""

    count: int
    write_id: bytes
    created_ms: int
    batch: Section
    writes: list[tuple[bytes, int, int]]


class PubSubBounds(Struct, frozen=True, gc=False):
    """For each lane. Large snapshots are written less often: at most `snapshot_bytes_per_entry`."""

    memory_entries: int = limits.PUBSUB_MEMORY_ENTRIES_MAX
    memory_bytes: int = limits.PUBSUB_MEMORY_BYTES_MAX
    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    snapshot_entries: int = limits.PUBSUB_SNAPSHOT_ENTRIES
    snapshot_bytes: int = limits.PUBSUB_SNAPSHOT_BYTES
    snapshot_bytes_per_entry: int = limits.PUBSUB_SNAPSHOT_BYTES_PER_ENTRY


class PubSubLaneSnapshot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    position: int
    end: int
    trimmed_to: int
    dropped: int
    visible: tuple[bytes, bytes, bytes, bytes]  # rows, starts, positions, offsets
    write_ids: list[bytes]
    places: bytes
    forgotten_to: int


class MessageTrace(Struct, frozen=True):
    """`offset`: of the message in the entry's batch. `stored`: peer -> whether it stored the entry; None: not known."""

    entry: Entry
    offset: int
    committed: bool
    visible: bool
    stored: dict[int, bool | None]
    coordinator: int = 0
    owner: int = 0


class Served(Struct, frozen=True, gc=False):
    """`count` messages of the entry's batch from `offset` on; the first has version `first_version`."""

    first_version: int
    offset: int
    count: int
    entry: Entry


class LaneView(Struct, frozen=True):
    """A lane of either strategy as this peer knows it. Positions count entries, versions messages.

    `coordinator` is 0 when none is known, and always for pub-sub; `owner` is 0 for two-phase. `known_committed` is the
    highest cursor that any peer reported: `known_committed - applied` is this peer's lag in entries.
    """

    queue: str
    lane: int
    number: int
    strategy: str
    end: int
    trimmed_to: int
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    coordinator: int = 0
    role: str = ""
    ballot: str = "-"
    committed: int = 0
    applied: int = 0
    known_committed: int = 0
    log_end: int = 0
    repairing: bool = False
    whole: bool = True
    owner: int = 0
    ended: bool = False
    open_transactions: int = 0
