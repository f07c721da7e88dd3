"""The messages between peers, as values. `frames` encodes and decodes them.

A message does not contain its sender, receiver or lane: the frame around it does (see `frames`). Positions are entry
positions in a lane's log, from 1; 0 means "before the first". A version is a message's number among the messages that
readers see; one entry (a batch) has `count` versions. Ballots are integers (see `ids`).

The structs are frozen and not tracked by the garbage collector, because they never form cycles.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from avow.ids import ballot_text


class Kind:
    """What an entry does to the state of its lane. Numbers are on disk: never reuse one."""

    NOOP = 0
    DATA = 1  # a batch of messages, visible when committed
    STAGE = 2  # a batch of messages, invisible until its transaction is published
    PUBLISH = 3
    DISCARD = 4
    CURSOR = 5  # subscriber cursors
    TRIM = 6
    MEMBERS = 7  # the lane's voters and learners from here on
    QUEUE = 8  # metadata lane: create, change, delete a queue
    LANE_OPEN = 9  # metadata lane: a run of a peer opens a pub-sub lane
    LANE_END = 10  # metadata lane: the end of a pub-sub lane, decided once
    PEER = 11  # metadata lane: identity, addresses and state of a peer
    SUBSCRIPTION = 12  # metadata lane: the readers of a subscriber
    LEVEL = 13  # metadata lane: the version of the protocol that may be used from here on, see `versions`

    NAMES = (
        "noop",
        "data",
        "stage",
        "publish",
        "discard",
        "cursor",
        "trim",
        "members",
        "queue",
        "lane-open",
        "lane-end",
        "peer",
        "subscription",
        "level",
    )


Section: TypeAlias = bytes | memoryview  # of a batch; a view keeps the memory of the request or frame it came in


class Entry(Struct, frozen=True, gc=False):
    """One record of a lane: a batch or a command, as the log stores it and as peers send it.

    `control` is the msgpack of the command, for kinds that have one. `batch` is the encoded batch section (see
    `columns`), which a peer never takes apart. `count` is the number of messages in the batch.
    """

    position: int
    origin: int  # the ballot (two-phase) or owner run (pub-sub) that first appended it
    kind: int
    count: int = 0
    write_id: bytes = b""  # 16 bytes; empty for entries that no client wrote
    created_ms: int = 0
    control: bytes = b""
    batch: Section = b""


class Snapshot(Struct, frozen=True, gc=False):
    """A lane's state after applying every entry up to `position`, whose origin was `origin`."""

    position: int
    origin: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    state: bytes


# ------------------------------------------------------------------ two-phase


class Probe(Struct, frozen=True, gc=False):
    """Do you hear a live coordinator? Sent before a claim, so that a peer that was cut off does not disturb the
    lane."""

    ballot: int  # that the sender would claim


class ProbeAnswer(Struct, frozen=True, gc=False):
    ballot: int  # of the probe
    hears: bool  # a live coordinator
    promised: int


class Claim(Struct, frozen=True, gc=False):
    ballot: int


class Promise(Struct, frozen=True, gc=False):
    """The sender will store nothing under a lower ballot. The fields describe its log."""

    ballot: int
    stamped: int  # the last ballot whose whole take-over log the sender holds
    end: int
    damaged_from: int  # 0: undamaged


class Nack(Struct, frozen=True, gc=False):
    ballot: int  # of the message refused
    promised: int


class Fetch(Struct, frozen=True, gc=False):
    """Request entries after `after`. With a ballot: from a take-over's donor, all entries. Without: only committed
    ones."""

    ballot: int
    after: int
    origin: int  # of the requester's entry at `after`; the other side answers only if its own is equal


class Fetched(Struct, frozen=True, gc=False):
    ballot: int
    after: int
    origin: int  # of the sender's entry at `after`
    entries: tuple[Entry, ...]
    end: int  # of what the sender can send: its log's end (take-over) or its committed cursor (repair)
    cursor: int


class Enqueue(Struct, frozen=True, gc=False):
    """Phase one: store these entries. Includes phase two (`cursor`) for earlier entries."""

    ballot: int
    after: int
    origin: int  # of the coordinator's entry at `after`
    entries: tuple[Entry, ...]
    takeover_end: int  # hold all entries up to here before taking the stamp
    cursor: int


class Ready(Struct, frozen=True, gc=False):
    """Stored and synced: the sender's log equals the coordinator's up to `matched_to`."""

    ballot: int
    matched_to: int
    stamped: bool


class Reject(Struct, frozen=True, gc=False):
    """The entries do not continue the sender's log: step back to its committed cursor."""

    ballot: int
    committed: int
    damaged_from: int


class Install(Struct, frozen=True, gc=False):
    """A snapshot for a peer that needs entries which the log no longer has."""

    ballot: int
    snapshot: Snapshot
    takeover_end: int
    cursor: int


class Heartbeat(Struct, frozen=True, gc=False):
    """The sender is alive and has accepted entries up to `cursor`. From the coordinator also: move your cursor."""

    ballot: int  # promised; if `coordinating`, the sender's own; 0: the sender knows no coordinator
    coordinating: bool
    cursor: int


class Confirm(Struct, frozen=True, gc=False):
    """Asks whether the sender still coordinates. One round answers every waiting read."""

    ballot: int
    round: int


class Confirmed(Struct, frozen=True, gc=False):
    ballot: int
    round: int


class ReadIndex(Struct, frozen=True, gc=False):
    """From a peer that serves a linearizable read: asks for the cursor it must have reached."""

    request: int


class ReadIndexAnswer(Struct, frozen=True, gc=False):
    request: int
    cursor: int  # -1: the sender is not the coordinator


class Forward(Struct, frozen=True, gc=False):
    """A client's write, forwarded to the coordinator. `expected` -1: no condition."""

    request: int
    expected: int
    entry: Entry
    age_ms: int = 0  # since the client first sent this write id; 0: a first attempt
    mergeable: bool = False


class Forwarded(Struct, frozen=True, gc=False):
    """The outcome of a forwarded write; `code` is an error's code; empty: done."""

    request: int
    code: str
    first_version: int
    last_version: int


# -------------------------------------------------------------------- pub-sub


class LaneEnqueue(Struct, frozen=True, gc=False):
    """The owner's entries for its own lane."""

    lane: int
    after: int
    entries: tuple[Entry, ...]
    cursor: int


class Stored(Struct, frozen=True, gc=False):
    """Synced at the sender up to `to`. Sent to all peers: each counts the quorum by itself."""

    lane: int
    to: int


class LaneReject(Struct, frozen=True, gc=False):
    """The lane is fenced at the sender: nothing more is accepted from its owner."""

    lane: int
    end: int


class LaneFetch(Struct, frozen=True, gc=False):
    lane: int
    after: int


class LaneFetched(Struct, frozen=True, gc=False):
    lane: int
    after: int
    entries: tuple[Entry, ...]


class Fence(Struct, frozen=True, gc=False):
    """Accept nothing more from the owner of this lane, and report how much of it you hold."""

    lane: int
    attempt: int


class Fenced(Struct, frozen=True, gc=False):
    lane: int
    attempt: int
    end: int
    damaged_from: int


class Refill(Struct, frozen=True, gc=False):
    """Entries of the longest copy, to be stored after the fence. Never counted as Stored."""

    lane: int
    attempt: int
    after: int
    entries: tuple[Entry, ...]


class Refilled(Struct, frozen=True, gc=False):
    lane: int
    attempt: int
    to: int


class LaneHeartbeat(Struct, frozen=True, gc=False):
    """The sender is alive; (lane, stored to, cursor) of the lanes that have not ended."""

    lanes: tuple[tuple[int, int, int], ...]


class Welcome(Struct, frozen=True, gc=False):
    """Sent once on each link: the sender accepted this peer's Hello. See `node.founding`."""


Message: TypeAlias = (
    Probe
    | ProbeAnswer
    | Claim
    | Promise
    | Nack
    | Fetch
    | Fetched
    | Enqueue
    | Ready
    | Reject
    | Install
    | Heartbeat
    | Confirm
    | Confirmed
    | ReadIndex
    | ReadIndexAnswer
    | Forward
    | Forwarded
    | LaneEnqueue
    | Stored
    | LaneReject
    | LaneFetch
    | LaneFetched
    | Fence
    | Fenced
    | Refill
    | Refilled
    | LaneHeartbeat
    | Welcome
)

_BALLOTS: Final = frozenset({"ballot", "promised", "stamped", "origin"})
_OMITTED_IF_FALSE: Final = frozenset({"damaged_from", "age_ms", "mergeable"})


def describe(message: object) -> str:
    """One line for traces and transcripts: `Enqueue 2.1 after=3 origin=1.1 [data@4] takeover_end=0 cursor=3`."""
    parts = [type(message).__name__]
    for field in message.__struct_fields__:  # type: ignore[attr-defined]
        value = getattr(message, field)
        if field == "entries":
            parts.append("[" + " ".join(f"{Kind.NAMES[e.kind]}@{e.position}" for e in value) + "]")
        elif field in _OMITTED_IF_FALSE and not value:
            continue
        elif isinstance(value, bool):
            parts.append(f"{field}={'yes' if value else 'no'}")
        elif field == "ballot":
            parts.append(ballot_text(value))
        elif field in _BALLOTS:
            parts.append(f"{field}={ballot_text(value)}")
        elif isinstance(value, Snapshot):
            parts.append(f"snapshot@{value.position}")
        elif isinstance(value, Entry):
            parts.append(Kind.NAMES[value.kind])
        else:
            parts.append(f"{field}={value}")
    return " ".join(parts)
