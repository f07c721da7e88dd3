"""Effects: the output of a core, in one record for both strategies.

    1. `sends`     send at once: they do not depend on anything that is not yet durable (see `effect_buffer`)
    2. `persist`   write in this order; one sync covers them (and others that wait for the same sync)
    3. if there was something to persist: call `persisted(proof)` with the receipt of that write

A core never assumes a sync: its own copy counts towards a quorum only after `persisted`. Records must be written in the
order they were drained, and their receipts passed on in that order; syncs may be shared.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from avow.wire.messages import Entry, Message, Snapshot


class SaveState(Struct, frozen=True, gc=False):
    """A two-phase lane's promise and stamp. Storage writes it twice: a peer that loses it must not vote again."""

    lane: int
    promised: int
    stamped: int


class SaveEntries(Struct, frozen=True, gc=False):
    """Contiguous entries. They replace everything in the lane from the first one's position on."""

    lane: int
    entries: tuple[Entry, ...]


class SaveCut(Struct, frozen=True, gc=False):
    """Drop the entries after `end`."""

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
    """A pub-sub lane accepts nothing more from its owner. `end` >= 0: its end is decided."""

    lane: int
    end: int  # -1: fenced, end not decided yet


class SaveRun(Struct, frozen=True, gc=False):
    """This peer's incarnation, written before anything else in a run."""

    incarnation: int


class SaveLossBound(Struct, frozen=True, gc=False):
    """After a loss: lanes from `below` on were created later, so storage that has nothing of them lost nothing."""

    below: int


Persist: TypeAlias = SaveState | SaveEntries | SaveCut | SaveSnapshot | SaveTrim | SaveFence | SaveRun | SaveLossBound


class Effects(Struct, gc=False):
    """See the module's docstring for the order."""

    sends: list[tuple[int, Message]]
    persist: list[Persist]


class LaneImage(Struct, gc=False):
    """What storage found of one lane at start. `entries` follow the snapshot (or position 0) without gaps.

    `damaged_from` > 0: entries from that position on were stored and cannot be read; `entries` ends before it.
    `unreadable_upto` > 0: of the entries up to there, which the snapshot covers, some are missing.
    """

    promised: int = 0
    stamped: int = 0
    snapshot: Snapshot | None = None
    entries: list[Entry] = []
    damaged_from: int = 0
    fenced: bool = False
    decided_end: int = -1
    unreadable_upto: int = 0
