"""Writes to a pub-sub queue at one peer, and what a client may conclude from the answers.

A write is bound to one lane, by the client (`lane=`) or by where it arrived. `Stored` names the lane at once, `Done`
says committed. LANE_ENDED is definite for that lane: the write is not in it and never will be, so it may be sent
elsewhere. After an answer that did not come, the client asks this run again with the same lane and write id, or asks
any peer with `lookup` once the owner is gone; while nobody can know yet that answers OFFLINE. Writing to another lane
before one of these was definite is how a message gets in twice, and no peer could notice.

    write     own lane holds the write id          wait for it, or its outcome at once
              bound to a lane of an earlier run    as `lookup`
              bound to a lane closed in this run   LANE_ENDED: only this process could have put it there
    lookup    readable here                        Done
              lane ended, held to its end          Done or LANE_ENDED
              the same, but ids were forgotten     OFFLINE for what is not found: nobody can know any more
              anything else                        OFFLINE: ask again, or ask another peer

Ids are forgotten (`pubsub_book`), so "not found" is only as good as memory reaches. If the client says which version
the lane had when it first sent the write (`since`), or how long ago that was (`age_ms`), no retry is taken for a new
write, however late it comes; it is answered OFFLINE once its id may be among the forgotten.

Small writes that wait for the same sync become one entry (`merging`). What is held was never appended: if the lane is
lost meanwhile, the answer is LANE_ENDED.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from avow.errors import InvalidRequest, LaneEnded, Offline, Refused, TooMany
from avow.limits import VISIBLE_BATCHES_COUNT, WAITING_REQUESTS_MAX
from avow.peer.answers import LOST, Done, Refusal, Stored
from avow.peer.lane import Write
from avow.peer.merging import UNMERGEABLE, Held, shape_of
from avow.peer.pubsub_lanes import PubSubLanes
from avow.replication.effects import Effects
from avow.wire.messages import Kind

UNKNOWN: Final = -1  # `since` of a write whose client did not say
_MARK_EVERY_S: Final = 0.25
_MARKS_COUNT: Final = 1_024
_CLOCKS_DIFFER: Final = 1.25  # a client's second may be this much of ours


class OwnLane:
    """A lane this process opened: who waits for which versions, and when it had how many."""

    __slots__ = ("marks", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int], list[int]] = {}  # (last, first version) -> requests, in order
        self.marks: deque[tuple[float, int]] = deque(maxlen=_MARKS_COUNT)  # time, last version then

    def mark(self, now: float, version: int) -> None:
        if not self.marks or now - self.marks[-1][0] >= _MARK_EVERY_S:
            self.marks.append((now, version))

    def version_before(self, time: float) -> int:
        """A version the lane had by then; 0 when it is too long ago to say."""
        return next((version for at, version in reversed(self.marks) if at <= time), 0)


class PubSubWrites(PubSubLanes):
    visible_batches_max = VISIBLE_BATCHES_COUNT

    def _prepare(self) -> None:
        self._own: dict[int, OwnLane] = {}
        self._held: Held[int] = Held()
        self._held_for = 0  # the lane they will go to

    # ------------------------------------------------------------------ writes

    def write(self, request: int, write: Write, now: float, *, lane: int = 0, since: int = UNKNOWN) -> None:
        """Append to the own lane; `lane` other than 0 binds the write to that one, which is what a retry needs.

        `since`: a version the bound lane had when the write was first sent. Drain after this, and after `persisted`:
        that is when small writes are appended.
        """
        self._now = now
        if self._held.writes and self._held_for != self.core.own_lane:
            self._append_held()
        refusal = _unfit(write)
        if refusal:
            self.answers.append((request, Refusal(InvalidRequest.code, reason=refusal)))
            return
        held_in = self._find_mine(lane, write.write_id)
        if held_in:
            self._join(request, held_in, write.write_id)
        elif lane and lane not in self._own:
            self.lookup(request, lane, write.write_id, since=max(since, 0))
        elif lane and lane != self.core.own_lane:
            self._refuse_absent(request, lane, since=max(since, 0))  # only this process could have put it there
        elif not self._held.join(write.write_id, request):
            self._take(request, write, since if lane else UNKNOWN)
        if self.core.has_news:
            self._take_news()

    def _find_mine(self, lane: int, write_id: bytes) -> int:
        """The lane of this process that holds the write; 0: none. Without a lane, all of them are searched."""
        for number in (lane,) if lane else reversed(self._own):
            if number in self._own and self._books[number].window.find(write_id) is not None:
                return number
        return 0

    def _take(self, request: int, write: Write, since: int) -> None:
        lane = self.core.own_lane
        if lane is None or len(self._own[lane].waiting) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Refusal(Offline.code)))
        elif len(self._books[lane].index.rows) >= self.visible_batches_max:
            self.answers.append((request, Refusal(TooMany.code, reason="the lane holds too many batches; trim it")))
        elif not self._is_new(lane, write, since):
            self._refuse_unknown(request, lane)
        elif (shape := shape_of(write)) == UNMERGEABLE:
            self._append_held()
            self._append(write, [(request, 0, write.count)])
        else:
            self._hold(request, lane, write, shape)

    def _hold(self, request: int, lane: int, write: Write, shape: int) -> None:
        """Refused now rather than later, if the lane takes nothing."""
        try:
            self.core.check_writable(self._now)
        except Refused as error:
            self.answers.append((request, Refusal(error.code, reason=str(error))))
            return
        if lane != self._held_for or not self._held.has_room(write, shape):
            self._append_held()
        self._held_for = lane
        self._held.add(write, shape, request)

    def _append_held(self) -> None:
        if not self._held.writes:
            return
        if self._held_for != self.core.own_lane:
            self.answers += [(request, Refusal(LaneEnded.code)) for request in self._held.drop()]
            return
        merged, waiting = self._held.take()
        places = {write_id: (offset, count) for write_id, offset, count in merged.writes}
        whole = (0, merged.count)
        askers = [(request, *places.get(write_id, whole)) for request, write_id in waiting]
        write = Write(Kind.DATA, merged.write_id, merged.count, -1, merged.created_ms, b"", merged.batch)
        self._append(write, askers)

    def _append(self, write: Write, askers: list[tuple[int, int, int]]) -> None:
        """To the own lane. `askers`: request, and which messages of the batch it waits for (offset, count)."""
        try:
            position = self.core.enqueue(
                write.kind,
                count=write.count,
                write_id=write.write_id,
                now=self._now,
                created_ms=write.created_ms,
                control=write.control,
                batch=write.batch,
            )
        except Refused as error:
            self.answers += [(request, Refusal(error.code, reason=str(error))) for request, _, _ in askers]
            return
        lane = self.core.own_lane
        assert lane is not None, "it was written to a moment ago"
        self._extend(lane, position)
        own, last = self._own[lane], self._books[lane].version_at(position)
        own.mark(self._now, last)
        for request, offset, count in askers:
            first = last - write.count + offset + 1
            self.answers.append((request, Stored(lane, first)))
            own.waiting.setdefault((first + count - 1, first), []).append(request)

    def _join(self, request: int, lane: int, write_id: bytes) -> None:
        """Wait for what is on its way, or hear the outcome if it is known."""
        book = self._books[lane]
        found = book.window.find(write_id)
        assert found is not None, "it was found a moment ago"
        first, last = found
        self.answers.append((request, Stored(lane, first)))
        if last <= book.version_at(self.core.cursor_of(lane)):
            self.answers.append((request, Done(first, last)))
            return
        self._own[lane].waiting.setdefault((last, first), []).append(request)

    def drain(self) -> Effects | None:
        if self._held.writes and not self.core.own_unsynced:
            self._append_held()
            if self.core.has_news:
                self._take_news()
        return super().drain()

    # ------------------------------------------------------------------ what became of a write

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int = 0) -> None:
        """What became of a write whose owner may be gone: Done, LANE_ENDED, or OFFLINE while that is open."""
        book = self._books.get(lane)
        found = book.window.find(write_id) if book is not None else None
        if book is not None and found is not None and found[1] <= book.index.end:
            self.answers.append((request, Done(*found)))
        elif book is not None and found is None and self.core.ended_here(lane):
            self._refuse_absent(request, lane, since=since)
        else:
            gone = "was removed long ago; nobody can know" if self._is_forgotten(lane) else "is not known here yet"
            reason = f"what became of writes to lane {lane} {gone}. Ask another peer, or again later"
            self.answers.append((request, Refusal(Offline.code, reason=reason)))

    def _refuse_absent(self, request: int, lane: int, *, since: int) -> None:
        """Not among the writes this copy remembers, and no more can come: definite, unless some were forgotten."""
        if self._remembers(lane, since=since):
            self.answers.append((request, Refusal(LaneEnded.code)))
        else:
            self._refuse_unknown(request, lane)

    def _refuse_unknown(self, request: int, lane: int) -> None:
        reason = f"the oldest write ids of lane {lane} were forgotten: whether this one was among them nobody can know"
        self.answers.append((request, Refusal(Offline.code, reason=reason)))

    def _is_new(self, lane: int, write: Write, since: int) -> bool:
        """Not in the own lane, for certain: a first attempt, or a retry that would have been found."""
        if since == UNKNOWN:
            if not write.age_ms:
                return True
            since = self._own[lane].version_before(self._now - _CLOCKS_DIFFER * write.age_ms / 1000.0)
        return self._remembers(lane, since=since)

    # ------------------------------------------------------------------ what the lanes say

    def _own_opened(self, lane: int) -> None:
        self._own[lane] = OwnLane()

    def _accepted(self, lane: int, to: int) -> None:
        if self.on_accepted is not None:
            self.on_accepted(lane, to)
        waiting, version = self._own[lane].waiting, self._books[lane].version_at(to)
        while waiting and (versions := next(iter(waiting)))[0] <= version:
            last, first = versions  # in the order of versions: whoever joins later joins one that is there
            self.answers += [(request, Done(first, last)) for request in waiting.pop(versions)]

    def _refused_beyond(self, lane: int, end: int) -> None:
        waiting, version = self._own[lane].waiting, self._books[lane].version_at(end)
        for versions in [versions for versions in waiting if versions[0] > version]:
            self.answers += [(request, Refusal(LaneEnded.code)) for request in waiting.pop(versions)]

    def _dropped(self, lane: int) -> None:
        own = self._own.pop(lane, None)
        for requests in own.waiting.values() if own is not None else ():
            self.answers += [(request, LOST) for request in requests]
        if lane == self._held_for:
            self.answers += [(request, Refusal(LaneEnded.code)) for request in self._held.drop()]
        self._shown()

    # ------------------------------------------------------------------ the rules, one by one

    def _remembers(self, lane: int, *, since: int) -> bool:
        """No id of a write behind `since` was ever forgotten here."""
        return self._books[lane].window.forgotten_to <= since


def _unfit(write: Write) -> str:
    """Why a pub-sub queue cannot take this write; empty: it can."""
    if write.expected >= 0:
        return "a pub-sub queue has no single end to compare with; nothing was stored. Leave `expected` out"
    if write.kind != Kind.DATA or write.count < 1:
        return "a pub-sub queue takes batches of at least one message, and no staged ones; nothing was stored"
    return ""
