"""What the messages of one lane of pledges make: a table of pledges and topics. Pure and the same on every peer.

Messages are applied in the order of their versions. Whether an operation takes effect is decided here and nowhere else:
an insert if the gid is not there, a swap if the revision is the one it names. A deposed coordinator's late swap finds
another revision, and does nothing.

A lane is trimmed, so a table must come out the same whether it was built from the first message on or from a trim.
`base` is the version of the last message that carries a pledge whole (its insert, or a Put), and a trim stops below the
lowest base. Whoever begins behind a trim meets messages about pledges that it does not have yet, or has an older state
of. Until the Put comes it may take a swap that was refused, or an insert; but its revision is never ahead of the right
one, since it starts lower and each message raises it by one at most. So a Put, which is ignored only by those who are
ahead of it, corrects it. That holds if a Put is of the pledge's last birth: whoever forgets a pledge has no Put of it
on its way, and the other way round. The lane's coordinator, who alone does either, does one after the other.

When a trim is seen in a lane, all Puts that it needs are before the lane's end: there the table is right.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import MsgspecError, Struct

from avow.peer.pledges.operations import (
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
from avow.pledge.record import Pledge
from avow.pledge.store import Topic

Place: TypeAlias = tuple[int, str]  # created_ms, gid: the order in which pledges are listed


_NEWEST_COUNT: Final = 64  # most pledges come among the last so many, where they are found without a long search


class Kept(Struct, gc=False):
    """A pledge in the table. `run` changed it last."""

    pledge: Pledge
    base: int
    run: int


class KeptTopic(Struct):
    """`topic` without subscribers: it was removed. What remains keeps the count of its changes."""

    topic: Topic
    edition: int
    base: int


class Outcome(Struct, frozen=True, gc=False):
    """Of one operation. `done`: it took effect. `pledge`: of an Insert or a Swap, as it is now; None: there is none."""

    operation: Operation
    done: bool
    pledge: Pledge | None = None


class LaneTable:
    """`applied` is the version of the last message that is in it."""

    def __init__(self, *, applied: int = 0) -> None:
        self.applied = applied
        self.pledges: dict[str, Kept] = {}
        self.topics: dict[str, KeptTopic] = {}
        self.malformed = 0
        self._places: list[Place] = []  # sorted
        self._pieces: list[bytes] = []
        self._begun_at = 0  # version of the first of them

    def apply(self, version: int, message: bytes, operation: Operation | None = None) -> Outcome | None:
        """`operation` is what the message says, where that is known. None: it is a part of one, or none at all."""
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
                self.malformed += 1  # the rest of an operation that a trim has cut
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
        """True: it carries the pledge from now on."""
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
        self.pledges[pledge.content.gid] = Kept(pledge, self._begun_at, run)
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
        self.topics[change.name] = KeptTopic(topic, change.edition + 1, base)
        return True

    def _put_topic(self, change: PutTopic) -> bool:
        known = self.topics.get(change.name)
        if known is not None and known.edition > change.edition:
            return False
        topic = Topic(change.name, change.subscribers, change.version, change.created_ms, change.updated_ms)
        self.topics[change.name] = KeptTopic(topic, change.edition, self._begun_at)
        return True

    # ------------------------------------------------------------------ compaction

    def trim_limit(self) -> int:
        """Nothing up to this version is needed any more."""
        bases = [kept.base for kept in self.pledges.values()] + [kept.base for kept in self.topics.values()]
        return min(bases, default=self.applied + 1) - 1

    def below(self, cut: int) -> list[str]:
        """Pledges that have to be written again before the lane can be trimmed to `cut`."""
        return [gid for gid, kept in self.pledges.items() if kept.base <= cut]

    def topics_below(self, cut: int) -> list[str]:
        return [name for name, kept in self.topics.items() if kept.base <= cut]

    # ------------------------------------------------------------------ lists

    def before(self, place: Place | None) -> Iterator[Pledge]:
        """Pledges that come before a place, newest first; None: from the newest on. Not while it changes."""
        at = len(self._places) if place is None else bisect_left(self._places, place)
        for index in range(at - 1, -1, -1):
            yield self.pledges[self._places[index][1]].pledge


def _place(pledge: Pledge) -> Place:
    """Creation never changes."""
    return pledge.progress.created_ms, pledge.content.gid


def put_of(kept: Kept) -> Put:
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


def put_topic_of(kept: KeptTopic) -> PutTopic:
    topic = kept.topic
    return PutTopic(topic.name, topic.subscribers, topic.version, topic.created_ms, topic.updated_ms, kept.edition)
