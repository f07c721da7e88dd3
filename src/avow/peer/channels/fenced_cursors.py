"""Cursors of a two-phase queue: one in each lane, moved by the reader that has fenced it.

A lane is taken over by a fence: a cursor command with version 0 and the epoch of the subscription. Its answer is the
version to begin after, and from there on earlier readers move the cursor no more. This reader moves it with the epoch
of its fence as long as the lane is its own, whatever epochs follow.

A subscriber that is not known in a lane begins at version 0, or, if its client says so, at the lane's end. The latter
is made durable before anything is read: whoever reads the lane next begins there too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from avow.peer.answers import Answer, Done
from avow.peer.channels.cursors import Cursors, LaneCursor, is_fenced
from avow.peer.channels.errands import Errand
from avow.peer.http.errors import error_of_answer
from avow.peer.lane import Write
from avow.queue.commands import CursorCommand, encode
from avow.queue.subscriptions import Subscription, lanes_of
from avow.wire.messages import Kind


class FencedCursors(Cursors):
    @property
    def busy(self) -> bool:
        return any(one.begun and one.errand is not None and not one.errand.over for one in self._lanes.values())

    def follow(self, subscription: Subscription) -> None:
        if self._ending is not None:
            return
        mine = lanes_of(subscription, self._reads.member, range(self._queue.lanes))
        if not self._give_up([lane for lane in self._lanes if lane not in mine], subscription):
            return
        for lane in mine:
            cursor = self._lanes.get(lane)
            if cursor is None:
                cursor = self._lanes[lane] = LaneCursor(lane)
            elif cursor.begun or not 0 < cursor.fenced_at < subscription.epoch:
                continue
            self._fence(cursor, subscription.epoch)

    def _fence(self, cursor: LaneCursor, epoch: int) -> None:
        cursor.epoch, cursor.fenced_at = epoch, 0
        if not self._reads.from_end:
            self._command(cursor, 0, self._fence_answered)
            return
        peer, number = self._peer, self._queue.first_lane + cursor.lane

        def ask(request: int) -> None:
            peer.node.reach(request, number, level="linearizable", version=0, now=peer.now())

        cursor.errand = Errand(peer, self._channel, ask, partial(self._caught_up, cursor))

    def _caught_up(self, cursor: LaneCursor, answer: Answer) -> None:
        """Whether the subscriber is new in this lane is known now, and not any more once it is fenced."""
        lane = self._peer.node.lanes.get(self._queue.first_lane + cursor.lane)
        if not isinstance(answer, Done) or lane is None:
            raise error_of_answer(answer)
        cursor.is_new = self._reads.subscriber not in lane.state.subscribers.by_name
        self._command(cursor, 0, self._fence_answered)

    def _command(self, cursor: LaneCursor, version: int, decided: Callable[[LaneCursor, Answer], None]) -> None:
        peer, number = self._peer, self._queue.first_lane + cursor.lane
        control = encode(CursorCommand(self._reads.subscriber, version, epoch=cursor.epoch))

        def ask(request: int) -> None:
            peer.node.write(request, number, Write(Kind.CURSOR, b"", control=control), peer.now())

        cursor.moving_to = version
        cursor.errand = Errand(peer, self._channel, ask, partial(decided, cursor))

    def _fence_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        if is_fenced(answer):
            self._await_news(cursor, cursor.epoch)
            return
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        lane = self._peer.node.lanes.get(self._queue.first_lane + cursor.lane)
        end = lane.state.end if lane is not None else 0
        if cursor.is_new and end and not answer.last_version:
            self._command(cursor, end, self._first_move_answered)
        else:
            self._begin(cursor, answer.last_version)

    def _first_move_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        """Nothing is read before it is certain that nobody will begin earlier."""
        if is_fenced(answer):
            self._await_news(cursor, cursor.epoch)
        elif isinstance(answer, Done):
            self._begin(cursor, answer.last_version)
        else:
            raise error_of_answer(answer)

    def _begin(self, cursor: LaneCursor, version: int) -> None:
        """A cursor at 0 begins with what is there; one that stands before what was removed has missed something."""
        number = self._queue.first_lane + cursor.lane
        lane = self._peer.node.lanes.get(number)
        trimmed_to = lane.state.trimmed_to if lane is not None else 0
        cursor.begun, cursor.errand = True, None
        cursor.acked = cursor.durable = cursor.moving_to = version
        self._reads.begin(cursor.lane, number=number, after=version or trimmed_to)

    def _move(self) -> None:
        for cursor in self._lanes.values():
            if cursor.behind and cursor.errand is None:
                self._command(cursor, cursor.acked, self._move_answered)

    def _move_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        if is_fenced(answer):
            self._await_news(cursor, cursor.epoch)
            return
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        cursor.errand, cursor.durable = None, max(cursor.durable, cursor.moving_to)
        self._reads.moved()
        self._move()
        self._end_when_settled()
