"""The table of pledges and topics that the messages of one lane produce. Pure, and the same on every peer.

Messages are applied in the order of their versions. Only this table decides whether an operation takes effect: an
insert if the gid does not exist, a swap if the revision is equal. A late swap of a deposed coordinator has a wrong
revision and no effect.

Lanes are trimmed, so a table built after a trim must become equal to one built from the first message. `base` is the
version of the last message with a complete pledge (its insert, or a Put), and a trim stops below the lowest base. A
peer that begins after a trim gets messages about pledges that it does not have, or of which it has an older state.
Before the Put it may accept a swap or an insert that the others refused. But its revision is never ahead of the correct
one, since it starts lower and each message increments it by at most one. So the Put, which is ignored only if the table
is ahead of it, corrects the pledge. This requires that a Put is about the current pledge with that gid: no Put of a
pledge may be in flight while it is removed, and vice versa. The lane's coordinator, the only peer that does either,
does one after the other.

When a peer sees a trim, all Puts that it needs are before the lane's end: there its table is correct.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import MsgspecError, Struct

from avow.pledge.record import Pledge
from avow.pledge.store import Topic
from avow.pledge.stores.lane.operations import (
    MORE,
    Change,
    Forget,
    Insert,
    Operation,
    Put,
    PutTopic,
    Swap,
    SwapTopic,
    decode,
    joined,
)

Place: TypeAlias = tuple[int, str]  # (created_ms, gid), the order in which pledges are listed


_NEWEST_COUNT: Final = 64  # most pledges are inserted among the last so many places, where the search is short


class StoredPledge(Struct, gc=False):
    """A pledge in the table. `run` is the one that changed it last."""

    pledge: Pledge
    base: int
    run: int


class StoredTopic(Struct):
    """A topic in the table. Without subscribers it was removed; the entry remains for the count of its changes."""

    topic: Topic
    edition: int
    base: int


class Outcome(Struct, frozen=True, gc=False):
    """Outcome of an operation. `done`: it took effect. `pledge`: its current state, after an Insert or Swap, if any."""

    operation: Operation
    done: bool
    pledge: Pledge | None = None


class LaneTable:
    """`applied` is the version of the last message that was applied."""

    def __init__(self, *, applied: int = 0) -> None:
        self.applied = applied
        self.pledges: dict[str, StoredPledge] = {}
        self.topics: dict[str, StoredTopic] = {}
        self.malformed = 0
        self._places: list[Place] = []  # sorted
        self._pieces: list[bytes] = []
        self._begun_at = 0  # version of the first of them

    def apply(self, version: int, message: bytes, operation: Operation | None = None) -> Outcome | None:
        """`operation`: the decoded message, if known. Returns None for a part of a message, or an invalid one."""
        assert version == self.applied + 1, f"version {version} cannot follow {self.applied}"
        self.applied = version
        if not self._pieces:
            self._begun_at = version
        if message[:1] == MORE:
            self._pieces.append(message)
            return None
        if operation is None or self._pieces:
            body = joined((*self._pieces, message)) if self._pieces else message[1:]
            self._pieces = []
            try:
                operation = decode(body)
            except (MsgspecError, UnicodeDecodeError):
                self.malformed += 1  # the last pieces of an operation whose first pieces were trimmed
                return None
        return self._perform(operation, operation.change)

    def _perform(self, operation: Operation, change: Change) -> Outcome:
        match change:
            case Swap():
                done, pledge = self._swap(change, operation.run)
                return Outcome(operation, done, pledge)
            case Insert():
                done, pledge = self._insert(change, operation.run)
                return Outcome(operation, done, pledge)
            case Forget():
                for gid in change.gids:
                    self._remove(gid)
                return Outcome(operation, done=True)
            case SwapTopic():
                return Outcome(operation, self._swap_topic(change))
            case Put():
                return Outcome(operation, self._put(change))
            case PutTopic():
                return Outcome(operation, self._put_topic(change))

    # ------------------------------------------------------------------ pledges

    def _insert(self, change: Insert, run: int) -> tuple[bool, Pledge]:
        known = self.pledges.get(change.content.gid)
        if known is not None:
            return False, known.pledge
        pledge = Pledge(
            change.content,
            change.progress,
            fence=change.fence,
            owner=change.owner,
            lease_until_ms=change.lease_until_ms,
        )
        self._add(pledge, run)
        return True, pledge

    def _swap(self, change: Swap, run: int) -> tuple[bool, Pledge | None]:
        known = self.pledges.get(change.gid)
        if known is None:
            return False, None
        before = known.pledge
        if (before.revision, before.progress.created_ms) != (change.revision, change.created_ms):
            return False, before
        owner, lease_until_ms = ("", 0) if change.release else (before.owner, before.lease_until_ms)
        known.pledge = Pledge(before.content, change.progress, before.revision + 1, before.fence, owner, lease_until_ms)
        known.run = run
        return True, known.pledge

    def _put(self, change: Put) -> bool:
        """True: it is the new base of the pledge."""
        gid = change.content.gid
        known = self.pledges.get(gid)
        if known is not None and known.pledge.revision > change.revision:
            return False
        self._remove(gid)
        owner, lease_until_ms = change.owner, change.lease_until_ms
        self._add(
            Pledge(change.content, change.progress, change.revision, change.fence, owner, lease_until_ms), change.run
        )
        return True

    def _add(self, pledge: Pledge, run: int) -> None:
        self.pledges[pledge.content.gid] = StoredPledge(pledge, self._begun_at, run)
        places, place = self._places, _place(pledge)
        near = len(places) - _NEWEST_COUNT
        insort(places, place, near if near > 0 and places[near] < place else 0)

    def _remove(self, gid: str) -> None:
        known = self.pledges.pop(gid, None)
        if known is not None:
            at = bisect_left(self._places, _place(known.pledge))
            del self._places[at]

    # ------------------------------------------------------------------ topics

    def _swap_topic(self, change: SwapTopic) -> bool:
        known = self.topics.get(change.name)
        if change.edition != (known.edition if known is not None else 0):
            return False
        before = known.topic if known is not None and known.topic.subscribers else None
        topic = Topic(
            change.name,
            change.subscribers,
            before.version + 1 if before is not None else 1,
            before.created_ms if before is not None else change.now_ms,
            change.now_ms,
        )
        base = known.base if known is not None else self._begun_at
        self.topics[change.name] = StoredTopic(topic, change.edition + 1, base)
        return True

    def _put_topic(self, change: PutTopic) -> bool:
        known = self.topics.get(change.name)
        if known is not None and known.edition > change.edition:
            return False
        topic = Topic(change.name, change.subscribers, change.version, change.created_ms, change.updated_ms)
        self.topics[change.name] = StoredTopic(topic, change.edition, self._begun_at)
        return True

    # ------------------------------------------------------------------ compaction

    def trim_limit(self) -> int:
        """Messages up to this version are not needed any more."""
        bases = [kept.base for kept in self.pledges.values()] + [kept.base for kept in self.topics.values()]
        return min(bases, default=self.applied + 1) - 1

    def below(self, cut: int) -> list[str]:
        """Pledges that must be rewritten before the lane can be trimmed to `cut`."""
        return [gid for gid, kept in self.pledges.items() if kept.base <= cut]

    def topics_below(self, cut: int) -> list[str]:
        return [name for name, kept in self.topics.items() if kept.base <= cut]

    # ------------------------------------------------------------------ lists

    def before(self, place: Place | None) -> Iterator[Pledge]:
        """Pledges before a place, newest first; None: all. The table must not change during the iteration."""
        at = len(self._places) if place is None else bisect_left(self._places, place)
        for index in range(at - 1, -1, -1):
            yield self.pledges[self._places[index][1]].pledge


def _place(pledge: Pledge) -> Place:
    """Constant for a pledge, because its creation time is."""
    return pledge.progress.created_ms, pledge.content.gid


def put_of(kept: StoredPledge) -> Put:
    pledge = kept.pledge
    return Put(
        pledge.content,
        pledge.progress,
        pledge.revision,
        pledge.fence,
        pledge.owner,
        pledge.lease_until_ms,
        kept.run,
    )


def put_topic_of(kept: StoredTopic) -> PutTopic:
    topic = kept.topic
    return PutTopic(topic.name, topic.subscribers, topic.version, topic.created_ms, topic.updated_ms, kept.edition)
