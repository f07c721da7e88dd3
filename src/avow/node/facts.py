"""Facts: decisions of the metadata lane, as they are reported to the pub-sub queues of the same peer."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from avow.queue.records import Lane


class LaneOpened(Struct, frozen=True, gc=False):
    lane: Lane


class LaneOrphaned(Struct, frozen=True, gc=False):
    number: int


class EndDecided(Struct, frozen=True, gc=False):
    number: int
    end: int


class LaneTrimmed(Struct, frozen=True, gc=False):
    """Versions up to and including this one were removed."""

    number: int
    upto_version: int


class LaneForgotten(Struct, frozen=True, gc=False):
    """Trimmed to its end, or its queue was deleted: it is never read again and needs no end."""

    number: int


class MembersChanged(Struct, frozen=True, gc=False):
    voters: tuple[int, ...]
    learners: tuple[int, ...]


class LanesListed(Struct, frozen=True):
    """All lanes were reported just before this. A number below `next_number` that is not in `numbers` (lanes of either
    strategy, and pub-sub queues) belongs to a lane that was removed."""

    next_number: int
    numbers: frozenset[int]

    def forgets(self, number: int) -> bool:
        return number < self.next_number and number not in self.numbers


Fact: TypeAlias = LaneOpened | LaneOrphaned | EndDecided | LaneTrimmed | LaneForgotten | MembersChanged | LanesListed
