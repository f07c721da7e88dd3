"""What a core wants done, in the order it must be done. One record for both strategies.

    1. `sends_now`     may leave at once: nothing in them depends on what is not yet durable
    2. `persist`       write in this order; then one sync covers them (and whatever else waits for the same sync)
    3. `sends_synced`  may leave only after that sync                                             <- rule R0
    4. tell the core: `persisted(ticket)`, with the ticket of this record, after that sync

A core never learns of a sync it did not ask for and never assumes one: what it counts for itself (its own copy in a
quorum) moves only in `persisted`. Records must be performed in the order they were drained; syncs may be shared.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from avow.wire.messages import Entry, Message, Snapshot


class SaveState(Struct, frozen=True, gc=False):
    """A two-phase lane's promise and stamp. Written twice by storage: losing it means never voting as oneself again."""

    lane: int
    promised: int
    stamped: int


class SaveEntries(Struct, frozen=True, gc=False):
    """Contiguous entries. Whatever the lane held from the first one's position on is replaced."""

    lane: int
    entries: tuple[Entry, ...]


class SaveCut(Struct, frozen=True, gc=False):
    """Drop what lies after `end`."""

    lane: int
    end: int


class SaveSnapshot(Struct, frozen=True, gc=False):
    """The lane's state at snapshot.position. `reset`: it comes from another peer and replaces the whole log."""

    lane: int
    snapshot: Snapshot
    reset: bool


class SaveTrim(Struct, frozen=True, gc=False):
    """Entries up to and including `upto` may be deleted (never beyond the newest snapshot)."""

    lane: int
    upto: int


class SaveFence(Struct, frozen=True, gc=False):
    """A pub-sub lane takes nothing more from its owner. `end` >= 0: its end is decided."""

    lane: int
    end: int  # -1: fenced, end not decided yet


class SaveRun(Struct, frozen=True, gc=False):
    """This peer's incarnation, written before anything else in a run."""

    incarnation: int


Persist: TypeAlias = SaveState | SaveEntries | SaveCut | SaveSnapshot | SaveTrim | SaveFence | SaveRun


class Effects(Struct, gc=False):
    """See the module's head for the order. `ticket` is 0 when there is nothing to persist."""

    ticket: int
    sends_now: list[tuple[int, Message]]
    persist: list[Persist]
    sends_synced: list[tuple[int, Message]]


class LaneImage(Struct, gc=False):
    """What storage found of one lane at start. `entries` follow the snapshot (or position 0) without a gap.

    `damaged_from` > 0: entries from that position on were stored and cannot be read; `entries` ends before it.
    """

    promised: int = 0
    stamped: int = 0
    snapshot: Snapshot | None = None
    entries: list[Entry] = []
    damaged_from: int = 0
    fenced: bool = False
    decided_end: int = -1
