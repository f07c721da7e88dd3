"""The writes of one producer to one lane: in order, each once, whatever happens to the lane's coordinator.

A *flight* is what is under way. There is one at a time, so nothing can overtake it; while it is out, what comes waits
and makes the next. A refusal that passes by itself, or an answer that did not come, leads to another attempt with what
is left of the flight, in its order and under the same write ids.

That keeps the order only if a lane that refuses one write of a flight refuses all that follow it:

    this peer appends        the lane looks at all of the flight in one turn of the loop, in which its room can only
                             shrink. Any number of writes may fly
    another peer appends     it hears of them one by one, and may have found room between two. One write flies: many
                             small ones merged into one record, or a single one

A merged record is for a first attempt only. Whether an older write is known is asked for it alone, with its age.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from avow.errors import UnknownQueue
from avow.limits import MIB
from avow.peer.answers import LOST, Answer, Done, Refusal, Stored
from avow.peer.channels.guards import guarded, is_passing
from avow.peer.http.errors import error_of_answer
from avow.peer.http.intake import Taken
from avow.peer.lane import Write
from avow.peer.merging import UNMERGEABLE, Held, shape_of
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue

FLIGHT_SIZE_BYTES: Final = 4 * MIB
FLIGHT_COUNT_MAX: Final = 4_096
PATIENCE_S: Final = 2.0  # then the client goes to another peer
_PAUSES_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)


class Sent(Struct, gc=False):
    """One write of a producer, the `ordinal`th. `age_ms`: how old it was when it came. `tried`: it flew before."""

    ordinal: int
    taken: Taken
    write_id: bytes
    age_ms: int
    arrived: float
    tried: bool = False

    @property
    def old(self) -> bool:
        """It may be in the lane already."""
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


class Port(Protocol):
    """How a lane is written to."""

    def appends_here(self, now: float) -> bool:
        """Whether this very peer puts what is written now into the lane."""
        ...

    def write(self, request: int, write: Write, now: float) -> None: ...

    def check(self) -> None:
        """Raises UnknownQueue when there is no such lane any more."""
        ...


class TwoPhasePort:
    def __init__(self, peer: Peer, queue: Queue, lane: int) -> None:
        self._peer, self._queue, self._number = peer, queue, queue.first_lane + lane

    def appends_here(self, now: float) -> bool:
        lane = self._peer.node.lanes.get(self._number)
        return lane is not None and lane.core.live_coordinator(now) == self._peer.number

    def write(self, request: int, write: Write, now: float) -> None:
        self._peer.node.write(request, self._number, write, now)

    def check(self) -> None:
        check_there(self._peer, self._queue)


class PubSubPort:
    """`lane` is the one that the writes are bound to."""

    def __init__(self, peer: Peer, queue: Queue, lane: int) -> None:
        self._peer, self._queue, self._lane = peer, queue, lane

    def appends_here(self, now: float) -> bool:  # noqa: ARG002
        return True

    def write(self, request: int, write: Write, now: float) -> None:
        self._peer.node.write_pubsub(request, self._queue.name, write, now, lane=self._lane)

    def check(self) -> None:
        check_there(self._peer, self._queue)


def check_there(peer: Peer, queue: Queue) -> None:
    """Raises UnknownQueue when the queue was deleted, also if another has its name now."""
    known = peer.node.metadata.state.catalog.by_name.get(queue.name)
    if known is None or known.first_lane != queue.first_lane:
        raise UnknownQueue(f"queue {queue.name!r} was deleted; what was not acknowledged was not stored")


class LaneFlights:
    """`landed` is told after each flight. What cannot be written ends the channel."""

    def __init__(self, peer: Peer, channel: Channel, port: Port, landed: Callable[[LaneFlights], None]) -> None:
        self._peer, self._channel, self._port, self._landed = peer, channel, port, landed
        self._waiting: deque[Sent] = deque()
        self._flying: list[Sent] = []
        self._answers: list[Answer | None] = []
        self._left = 0  # answers that have not come
        self._failing_since = 0.0  # 0: not failing
        self._attempts = 0
        self._again: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return not self._flying and not self._waiting

    @property
    def first(self) -> int:
        """The ordinal of the oldest write that is not done. Not asked while idle."""
        return (self._flying or self._waiting)[0].ordinal

    def put(self, sent: Sent) -> None:
        self._waiting.append(sent)

    def fly(self) -> None:
        """Begin the next flight, if none is out."""
        if self._waiting and not self._flying:
            now = self._peer.now()
            if self._port.appends_here(now):
                self._fly_many(self._take_many(), now)
            else:
                self._fly_one(now)

    def stop(self) -> None:
        """What is out goes on; nobody waits for it."""
        self._waiting.clear()
        if self._again is not None:
            self._again.cancel()

    # ------------------------------------------------------------------ departures

    def _take_many(self) -> list[Sent]:
        taken: list[Sent] = []
        size = 0
        while self._waiting and size < FLIGHT_SIZE_BYTES and len(taken) < FLIGHT_COUNT_MAX:
            sent = self._waiting.popleft()
            size += len(sent.taken.section)
            taken.append(sent)
        return taken

    def _fly_many(self, flight: list[Sent], now: float) -> None:
        peer, channel, port = self._peer, self._channel, self._port
        self._depart(flight, len(flight))
        for index, sent in enumerate(flight):
            write = sent.write(now)
            sent.tried = True
            port.write(peer.expect(partial(guarded, channel, self._hear, index)), write, now)
        peer.wake()

    def _fly_one(self, now: float) -> None:
        """One write: what waits, as far as it can be merged, or the first."""
        held: Held[int] = Held()
        flight: list[Sent] = []
        while self._waiting and not self._waiting[0].old:
            write = self._waiting[0].write(now)
            shape = shape_of(write)
            if shape == UNMERGEABLE or write.write_id in held.writes or not held.has_room(write, shape):
                break
            held.add(write, shape, 0)
            flight.append(self._waiting.popleft())
        if not flight:
            self._fly_many([self._waiting.popleft()], now)
            return
        merged, _ = held.take()
        self._depart(flight, 1)
        for sent in flight:
            sent.tried = True
        write = Write(Kind.DATA, merged.write_id, merged.count, -1, merged.created_ms, b"", merged.batch)
        self._port.write(self._peer.expect(partial(guarded, self._channel, self._hear, 0)), write, now)
        self._peer.wake()

    def _depart(self, flight: list[Sent], writes: int) -> None:
        self._flying = flight
        self._answers = [None] * writes
        self._left = writes

    # ------------------------------------------------------------------ answers

    def _hear(self, index: int, answer: Answer) -> None:
        if type(answer) is Stored:
            return
        self._answers[index] = answer
        self._left -= 1
        if not self._left:
            self._land()

    def _land(self) -> None:
        flight, answers = self._flying, self._answers
        merged = len(answers) < len(flight)
        bad = [answer for answer in answers if not isinstance(answer, Done)]
        if not bad:
            self._flying, self._failing_since, self._attempts = [], 0.0, 0
            self._landed(self)
            return
        for answer in bad:
            if answer is not None and not is_passing(answer):
                raise error_of_answer(answer)
        left = flight if merged else [s for s, a in zip(flight, answers, strict=True) if not isinstance(a, Done)]
        if len(left) < len(flight):
            self._failing_since = 0.0
        self._try_later(left, bad)

    def _try_later(self, left: list[Sent], answers: Sequence[Answer | None]) -> None:
        self._port.check()
        self._flying = left
        now = self._peer.now()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > PATIENCE_S:
            unsure = any(not isinstance(answer, Refusal) for answer in answers)
            raise error_of_answer(LOST if unsure else answers[0] or LOST)
        pause_s = _PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)]
        self._attempts += 1
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(pause_s, guarded, self._channel, self._fly_again, left)

    def _fly_again(self, left: list[Sent]) -> None:
        """The same writes, before all that waits."""
        self._again = None
        now = self._peer.now()
        if not self._port.appends_here(now) and len(left) > 1:
            self._waiting.extendleft(reversed(left[1:]))
            left = left[:1]
        self._fly_many(left, now)
