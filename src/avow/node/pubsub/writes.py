"""Writes to a pub-sub queue at one peer, and what a client may conclude from the answers.

A write is bound to one lane, by the client (`lane=`) or by the peer it arrived at. `Stored` names the lane at once,
`Done` means committed. LANE_ENDED is definite for that lane: the write is not in it and never will be, so it may be
sent to another lane. If no answer came, the client asks this run again with the same lane and write id, or asks any
peer with `lookup` once the owner is gone; while the outcome is open that answers OFFLINE. A client that writes to
another lane before it got a definite answer may write a message twice, and no peer can detect that.

    write     own lane holds the write id          wait for it, or its outcome at once
              bound to a lane of an earlier run    as `lookup`
              bound to a lane closed in this run   LANE_ENDED: only this process could have appended it
    lookup    readable here                        Done
              lane ended, this copy complete       Done or LANE_ENDED
              the same, but ids were forgotten     OFFLINE if not found: the outcome can no longer be determined
              anything else                        OFFLINE: ask again, or ask another peer

Ids are forgotten (`lane_index`), so "not found" is definite only for recent writes. If the client says which version
the lane had when it first sent the write (`since`), or how long ago that was (`age_ms`), a retry is never treated as a
new write, however late it comes; it is answered OFFLINE once its id may have been forgotten.

Small writes that wait for the same sync become one entry (`merging`). A held write was never appended: if the lane is
lost meanwhile, the answer is LANE_ENDED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from avow.errors import InvalidRequest, LaneEnded, Offline, Refused, TooMany
from avow.limits import VISIBLE_BATCHES_COUNT, WAITING_REQUESTS_MAX
from avow.node.answers import LOST, Answer, Done, Refusal, Stored
from avow.node.lane.two_phase_lane import Write
from avow.node.merging import UNMERGEABLE, Held, shape_of
from avow.node.pubsub.lanes import QueueLanes
from avow.node.pubsub.rules import QueueRules
from avow.replication.pubsub.core import PubSubCore
from avow.wire.messages import Kind

UNKNOWN: Final = -1  # `since` of a write whose client did not give it
_MARK_EVERY_S: Final = 0.25
_MARKS_COUNT: Final = 1_024
_CLOCKS_DIFFER: Final = 1.25  # a second of a client's clock may last this many of ours


class OwnLane:
    """A lane this process opened: the requests that wait for versions, and samples of (time, last version)."""

    __slots__ = ("marks", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int], list[int]] = {}  # (last, first version) -> requests, in order
        self.marks: deque[tuple[float, int]] = deque(maxlen=_MARKS_COUNT)  # time, last version then

    def mark(self, now: float, version: int) -> None:
        if not self.marks or now - self.marks[-1][0] >= _MARK_EVERY_S:
            self.marks.append((now, version))

    def version_before(self, time: float) -> int:
        """A version that the lane had reached at that time; 0: the time is before the oldest sample."""
        return next((version for at, version in reversed(self.marks) if at <= time), 0)


class Writes:
    """Writes and lookups, each answered by `answer(request, ...)`, once or twice."""

    def __init__(
        self, core: PubSubCore, lanes: QueueLanes, rules: QueueRules, answer: Callable[[int, Answer], None]
    ) -> None:
        self._core, self._lanes, self._rules, self._answer = core, lanes, rules, answer
        self._indexes = lanes.by_number
        self._own: dict[int, OwnLane] = {}
        self.held: Held[int] = Held()
        self._held_for = 0  # the lane to which the held writes will be appended

    @property
    def waiting(self) -> int:
        return sum(len(own.waiting) for own in self._own.values())

    # ------------------------------------------------------------------ writes

    def write(self, request: int, write: Write, now: float, *, lane: int, since: int) -> None:
        """To the own lane, or bound to `lane` if that is not 0; `since`: a version it had at the first attempt."""
        if self.held.writes and self._held_for != self._core.own_lane:
            self.append_held(now)
        refusal = _unfit(write)
        if refusal:
            self._answer(request, Refusal(InvalidRequest.code, reason=refusal))
            return
        held_in = self._find_mine(lane, write.write_id)
        if held_in:
            self._join(request, held_in, write.write_id)
        elif lane and lane not in self._own:
            self.lookup(request, lane, write.write_id, since=max(since, 0))
        elif lane and lane != self._core.own_lane:
            self._refuse_absent(request, lane, since=max(since, 0))  # only this process could have appended it
        elif not self.held.join(write.write_id, request):
            self._take(request, write, since if lane else UNKNOWN, now)

    def _find_mine(self, lane: int, write_id: bytes) -> int:
        """The lane of this process that holds the write; 0: none. Without a lane, all of them are searched."""
        for number in (lane,) if lane else reversed(self._own):
            if number in self._own and self._rules.holds_write(self._indexes[number], write_id):
                return number
        return 0

    def _take(self, request: int, write: Write, since: int, now: float) -> None:
        lane = self._core.own_lane
        if lane is None or len(self._own[lane].waiting) >= WAITING_REQUESTS_MAX:
            self._answer(request, Refusal(Offline.code))
        elif len(self._indexes[lane].visible.rows) >= VISIBLE_BATCHES_COUNT:
            reason = (
                f"lane {lane} holds {VISIBLE_BATCHES_COUNT} batches, the maximum; nothing was stored. Trim the queue"
            )
            self._answer(request, Refusal(TooMany.code, reason=reason))
        elif not self._is_new(lane, write, since, now):
            self._refuse_unknown(request, lane)
        elif (shape := shape_of(write)) == UNMERGEABLE:
            self.append_held(now)
            self._append(write, [(request, 0, write.count)], now)
        else:
            self._hold(request, lane, write, shape, now)

    def _hold(self, request: int, lane: int, write: Write, shape: int, now: float) -> None:
        """Refuse the write now if the lane cannot append."""
        try:
            self._core.check_writable(now)
        except Refused as error:
            self._answer(request, Refusal(error.code, reason=str(error)))
            return
        if lane != self._held_for or not self.held.has_room(write, shape):
            self.append_held(now)
        self._held_for = lane
        self.held.add(write, shape, request)

    def append_held(self, now: float) -> None:
        """Append the held writes as one entry."""
        if not self.held.writes:
            return
        if self._held_for != self._core.own_lane:
            self._refuse_held()
            return
        merged, waiting = self.held.take()
        places = {write_id: (offset, count) for write_id, offset, count in merged.writes}
        whole = (0, merged.count)
        askers = [(request, *places.get(write_id, whole)) for request, write_id in waiting]
        write = Write(Kind.DATA, merged.write_id, merged.count, -1, merged.created_ms, b"", merged.batch)
        self._append(write, askers, now)

    def _refuse_held(self) -> None:
        for request in self.held.drop():
            self._answer(request, Refusal(LaneEnded.code))

    def _append(self, write: Write, askers: list[tuple[int, int, int]], now: float) -> None:
        """Append to the own lane. `askers`: (request, offset, count) of the messages that each request waits for."""
        try:
            position = self._core.enqueue(
                write.kind,
                count=write.count,
                write_id=write.write_id,
                now=now,
                created_ms=write.created_ms,
                control=write.control,
                batch=write.batch,
            )
        except Refused as error:
            for request, _, _ in askers:
                self._answer(request, Refusal(error.code, reason=str(error)))
            return
        lane = self._core.own_lane
        assert lane is not None, "enqueue appended to it"
        self._lanes.extend(lane, position)
        own, last = self._own[lane], self._indexes[lane].version_at(position)
        own.mark(now, last)
        for request, offset, count in askers:
            first = last - write.count + offset + 1
            self._answer(request, Stored(lane, first))
            own.waiting.setdefault((first + count - 1, first), []).append(request)

    def _join(self, request: int, lane: int, write_id: bytes) -> None:
        """Answer a repeated write: with its outcome if that is known, else when it is."""
        index = self._indexes[lane]
        found = index.window.find(write_id)
        assert found is not None, "holds_write found it"
        first, last = found
        self._answer(request, Stored(lane, first))
        if last <= index.version_at(self._core.cursor_of(lane)):
            self._answer(request, Done(first, last))
            return
        self._own[lane].waiting.setdefault((last, first), []).append(request)

    # ------------------------------------------------------------------ outcomes

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int) -> None:
        """The outcome of a write whose owner may be gone: Done, LANE_ENDED, or OFFLINE while it is open."""
        index = self._indexes.get(lane)
        found = index.window.find(write_id) if index is not None else None
        if index is not None and found is not None and found[1] <= index.visible.end:
            self._answer(request, Done(*found))
        elif index is not None and found is None and self._rules.absence_is_final(self._core, lane):
            self._refuse_absent(request, lane, since=since)
        else:
            if self._lanes.is_forgotten(lane):
                reason = f"lane {lane} was removed, so the outcome of its writes can no longer be determined"
            else:
                reason = f"this peer does not know the outcome of writes to lane {lane} yet. Retry, or ask another peer"
            self._answer(request, Refusal(Offline.code, reason=reason))

    def _refuse_absent(self, request: int, lane: int, *, since: int) -> None:
        """The write is not in this complete copy: a definite refusal, unless its id may have been forgotten."""
        if self._rules.may_refuse_absent(self._indexes[lane], since=since):
            self._answer(request, Refusal(LaneEnded.code))
        else:
            self._refuse_unknown(request, lane)

    def _refuse_unknown(self, request: int, lane: int) -> None:
        reason = (
            f"the write may be among those of lane {lane} whose ids were forgotten, so its outcome can no longer be "
            "determined"
        )
        self._answer(request, Refusal(Offline.code, reason=reason))

    def _is_new(self, lane: int, write: Write, since: int, now: float) -> bool:
        """Whether the write is certainly not in the own lane: a first attempt, or a retry whose id would be known."""
        if since == UNKNOWN:
            if not write.age_ms:
                return True
            since = self._own[lane].version_before(now - _CLOCKS_DIFFER * write.age_ms / 1000.0)
        return self._rules.may_take_as_new(self._indexes[lane], since=since)

    # ------------------------------------------------------------------ notifications of the lanes

    def own_opened(self, lane: int) -> None:
        """This run may append to the lane from now on."""
        self._own[lane] = OwnLane()

    def accepted(self, lane: int, to: int) -> None:
        """Everything this run wrote to its lane, up to this position, is committed."""
        waiting, version = self._own[lane].waiting, self._indexes[lane].version_at(to)
        while waiting and (versions := next(iter(waiting)))[0] <= version:
            last, first = versions  # the dict is in the order of versions: a repeated write joins an existing key
            for request in waiting.pop(versions):
                self._answer(request, Done(first, last))

    def refused_beyond(self, lane: int, end: int) -> None:
        """Entries of this run after this position will never be committed."""
        waiting, version = self._own[lane].waiting, self._indexes[lane].version_at(end)
        for versions in [versions for versions in waiting if versions[0] > version]:
            for request in waiting.pop(versions):
                self._answer(request, Refusal(LaneEnded.code))

    def dropped(self, lane: int) -> None:
        """The lane was removed: answer everything that waited there."""
        own = self._own.pop(lane, None)
        for requests in own.waiting.values() if own is not None else ():
            for request in requests:
                self._answer(request, LOST)
        if lane == self._held_for:
            self._refuse_held()


def _unfit(write: Write) -> str:
    """Why a pub-sub queue cannot accept this write; empty: it can."""
    if write.expected >= 0:
        return "a pub-sub queue has no single end to compare with; nothing was stored. Omit `expected`"
    if write.kind != Kind.DATA or write.count < 1:
        return (
            "a pub-sub queue accepts only batches with at least one message and no staged ones; nothing was stored. "
            "Use a two-phase queue for transactions"
        )
    return ""
