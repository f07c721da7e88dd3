"""The writes of one producer to one lane: in order and exactly once, also when the lane's coordinator changes.

Writes are sent in groups. One group is in flight at a time, so no write can overtake another; writes that arrive
meanwhile form the next group. After a transient refusal, or when no answer came, the rest of the group is sent again,
in the same order and with the same write ids (`avow.writer`, with a window of one group).

This keeps the order only if a lane that refuses one write of a group refuses all that follow it:

    this peer appends        the lane checks the whole group in one turn of the loop, in which its free space can only
                             shrink. A group has any number of writes
    another peer appends     it gets the writes one by one, and may gain free space between two. A group is one write:
                             many small ones merged into one record, or a single one

A record is merged for the first attempt only. A retried write is sent by itself, with its age, so that the lane can
check whether it is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from avow.errors import UnknownQueue
from avow.limits import MIB
from avow.node.answers import LOST, Answer, Done, Stored, error_of_answer
from avow.node.lane.two_phase_lane import Write
from avow.node.merging import UNMERGEABLE, Held, shape_of
from avow.node.records import Merged
from avow.node_client import NodeWriter, step_of_answer
from avow.server.channels.node_requests import guarded
from avow.server.http.write_body import WriteBody
from avow.wire.messages import Kind
from avow.writer.steps import Pauses, Request, Settings, Step, Verdict

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.queue.records import Queue
    from avow.server.process import Peer

GROUP_SIZE_BYTES: Final = 4 * MIB
GROUP_COUNT_MAX: Final = 4_096
PATIENCE_S: Final = 2.0  # then the channel ends and the client tries another peer
_SETTINGS: Final = Settings(
    window=1, pauses=Pauses(first_s=0.01, max_s=0.2), ordered=True, patience_s=PATIENCE_S, waits_for_answer=True
)


class ProducerWrite(Struct, gc=False):
    """The `ordinal`th write of a producer. `age_ms`: its age when it arrived. `tried`: it was sent before."""

    ordinal: int
    taken: WriteBody
    write_id: bytes
    age_ms: int
    arrived: float
    tried: bool = False

    @property
    def old(self) -> bool:
        """It may already be in the lane."""
        return self.tried or self.age_ms > 0

    def write(self, now: float) -> Write:
        taken = self.taken
        return Write(
            kind=Kind.DATA,
            write_id=self.write_id,
            count=taken.count,
            created_ms=taken.created_ms,
            batch=taken.section,
            mergeable=taken.mergeable,
            age_ms=self.age_ms + max(1, round((now - self.arrived) * 1000)) if self.old else 0,
        )


class LaneAccess(Protocol):
    """Writes to one lane through the node."""

    def appends_here(self, now: float) -> bool:
        """Whether this peer itself appends to the lane."""
        ...

    def write(self, request: int, write: Write, now: float) -> None: ...

    def check(self) -> None:
        """Raises UnknownQueue when the lane was removed."""
        ...


class TwoPhaseAccess:
    def __init__(self, peer: Peer, queue: Queue, lane: int) -> None:
        self._peer, self._queue, self._number = peer, queue, queue.first_lane + lane

    def appends_here(self, now: float) -> bool:
        lane = self._peer.node.lanes.get(self._number)
        return lane is not None and lane.core.live_coordinator(now) == self._peer.number

    def write(self, request: int, write: Write, now: float) -> None:
        self._peer.node.write(request, self._number, write, now)

    def check(self) -> None:
        check_there(self._peer, self._queue)


class PubSubAccess:
    """`lane` is the one to which the writes are bound."""

    def __init__(self, peer: Peer, queue: Queue, lane: int) -> None:
        self._peer, self._queue, self._lane = peer, queue, lane

    def appends_here(self, now: float) -> bool:  # noqa: ARG002
        return True

    def write(self, request: int, write: Write, now: float) -> None:
        self._peer.node.write_pubsub(request, self._queue.name, write, now, lane=self._lane)

    def check(self) -> None:
        check_there(self._peer, self._queue)


def check_there(peer: Peer, queue: Queue) -> None:
    """Raises UnknownQueue when the queue was deleted, also if a new queue has its name."""
    known = peer.node.metadata.state.catalog.by_name.get(queue.name)
    if known is None or known.first_lane != queue.first_lane:
        raise UnknownQueue(f"queue {queue.name!r} was deleted; what was not acknowledged was not stored")


class WriteGroup(Request):
    """The writes of one attempt. `merged`: they are one record, with one answer."""

    __slots__ = ("answers", "left", "merged", "refused", "writes")

    def __init__(self, writes: list[ProducerWrite], *, merged: Merged | None = None) -> None:
        super().__init__()
        self.writes, self.merged = writes, merged
        self.answers: list[Answer | None] = []
        self.left = 0  # outstanding answers
        self.refused = False  # by an error that is not transient


class WaitingWrites:
    """The writes that wait for a lane, and the group to send next. A group that failed comes before all others."""

    def __init__(self, peer: Peer, access: LaneAccess) -> None:
        self._peer, self._access = peer, access
        self.waiting: deque[ProducerWrite] = deque()
        self.in_flight: WriteGroup | None = None  # taken, and not done
        self._failed: WriteGroup | None = None
        self._last_number = 0

    def __len__(self) -> int:
        return len(self.waiting) + (self._failed is not None)

    def take(self) -> WriteGroup | None:
        group, self._failed = self._failed, None
        if group is None and not self.waiting:
            return None
        now = self._peer.now()
        here = self._access.appends_here(now)
        if group is None:
            group = WriteGroup(self._take_many()) if here else self._take_one(now)
            self._last_number += 1
            group.number = self._last_number
        elif not here and len(group.writes) > 1:
            self.waiting.extendleft(reversed(group.writes[1:]))
            group.writes = group.writes[:1]
        self.in_flight = group
        return group

    def put_back(self, groups: Sequence[WriteGroup], /) -> None:
        self._failed = groups[0]

    def expired(self, now: float) -> list[WriteGroup]:
        if self._failed is None or self._failed.deadline > now:
            return []
        late, self._failed = self._failed, None
        return [late]

    def first_deadline(self) -> float:
        return inf if self._failed is None else self._failed.deadline

    def _take_many(self) -> list[ProducerWrite]:
        taken: list[ProducerWrite] = []
        size = 0
        while self.waiting and size < GROUP_SIZE_BYTES and len(taken) < GROUP_COUNT_MAX:
            sent = self.waiting.popleft()
            size += len(sent.taken.section)
            taken.append(sent)
        return taken

    def _take_one(self, now: float) -> WriteGroup:
        """One write: the waiting writes that can be merged, or the first one."""
        held: Held[int] = Held()
        writes: list[ProducerWrite] = []
        while self.waiting and not self.waiting[0].old:
            write = self.waiting[0].write(now)
            shape = shape_of(write)
            if shape == UNMERGEABLE or write.write_id in held.writes or not held.has_room(write, shape):
                break
            held.add(write, shape, 0)
            writes.append(self.waiting.popleft())
        if not writes:
            return WriteGroup([self.waiting.popleft()])
        return WriteGroup(writes, merged=held.take()[0])


class LaneWriter:
    """`on_done` is called after each group. A write that is refused ends the channel."""

    def __init__(self, peer: Peer, channel: Channel, access: LaneAccess, on_done: Callable[[LaneWriter], None]) -> None:
        self._peer, self._channel, self._access, self._on_done = peer, channel, access, on_done
        self._waiting = WaitingWrites(peer, access)
        self._writer: NodeWriter[WriteGroup] = NodeWriter(
            peer,
            _SETTINGS,
            send=self._send,
            on_decided=self._decided,
            source=self._waiting,
            guard=partial(guarded, channel),
        )

    @property
    def idle(self) -> bool:
        return self._waiting.in_flight is None and not self._waiting.waiting

    @property
    def first(self) -> int:
        """The ordinal of the oldest write that is not done. Must not be called while idle."""
        in_flight = self._waiting.in_flight
        return (self._waiting.waiting if in_flight is None else in_flight.writes)[0].ordinal

    def put(self, sent: ProducerWrite) -> None:
        self._waiting.waiting.append(sent)

    def send(self) -> None:
        """Send the next group, if none is in flight."""
        self._writer.pump()

    def stop(self) -> None:
        """Writes in flight may still be stored; their answers are ignored."""
        self._waiting.waiting.clear()
        self._writer.stop()

    # ------------------------------------------------------------------ sending

    def _send(self, group: WriteGroup, now: float) -> None:
        peer, access, channel, answered = self._peer, self._access, self._channel, self._answered
        writes = [sent.write(now) for sent in group.writes] if group.merged is None else [_write_of(group.merged)]
        group.merged = None  # from the second attempt on each write is sent by itself
        group.answers, group.left = [None] * len(writes), len(writes)
        for sent in group.writes:
            sent.tried = True
        for index, write in enumerate(writes):
            access.write(peer.expect(partial(guarded, channel, answered, group, index)), write, now)
        peer.wake()

    # ------------------------------------------------------------------ answers

    def _answered(self, group: WriteGroup, index: int, answer: Answer) -> None:
        if type(answer) is Stored:
            return
        group.answers[index] = answer
        group.left -= 1
        if not group.left:
            self._finish(group)

    def _finish(self, group: WriteGroup) -> None:
        answers = group.answers
        bad = [answer for answer in answers if answer is not None and not isinstance(answer, Done)]
        if not bad:
            self._writer.answered(group, Step.DONE)
            return
        steps = [step_of_answer(answer) for answer in bad]
        if Step.REFUSED in steps:
            group.refused = True
            self._writer.answered(group, Step.REFUSED, error_of_answer(bad[steps.index(Step.REFUSED)]))
            return
        self._access.check()
        if len(answers) == len(group.writes) > len(bad):
            group.writes = [s for s, a in zip(group.writes, answers, strict=True) if not isinstance(a, Done)]
            group.deadline = inf  # some writes are done, so the group gets a new deadline
        step = Step.UNCERTAIN if Step.UNCERTAIN in steps else Step.ELSEWHERE
        self._writer.answered(group, step, error_of_answer(bad[0]))

    def _decided(self, group: WriteGroup, verdict: Verdict) -> None:
        if verdict is not Verdict.DONE:
            is_refused = group.refused or verdict is Verdict.REFUSED
            raise group.error if is_refused and group.error is not None else error_of_answer(LOST)
        if self._waiting.in_flight is group:
            self._waiting.in_flight = None
        self._on_done(self)


def _write_of(merged: Merged) -> Write:
    return Write(Kind.DATA, merged.write_id, merged.count, -1, merged.created_ms, b"", merged.batch)
