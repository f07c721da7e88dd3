"""What one peer writes into one lane of pledges: operations that come together as one batch, until it is there.

A *flight* is a batch on its way, under a write id. What comes in one turn of the loop leaves at its end; what comes
while a flight is out waits for it and makes the next. A refusal that passes, or an answer that does not come, is
followed by the same flight again, so nothing is written twice. When that goes on for too long its operations have not
happened (Offline), or nobody knows (Unknown) because one of the attempts may have got through.

Whoever waits for an operation is answered by the one who applies the lane (`answer`), which comes before or after the
lane's own answer to the flight.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from avow.errors import AvowError, InvalidRequest, Offline, TooLarge, Unknown
from avow.limits import BATCH_COUNT_MAX, MERGEABLE_SIZE_BYTES_MAX, MIB
from avow.peer.answers import Answer, Done, Lost, Refusal
from avow.peer.http.errors import error_of_answer
from avow.peer.lane import Write
from avow.peer.pledges.host import PATIENCE_S, PAUSE_S, PAUSE_S_MAX, Host, is_passing
from avow.peer.pledges.lane_table import Outcome
from avow.peer.pledges.operations import Change, Operation, pieces_of
from avow.wire.batch import encode_batch
from avow.wire.messages import Kind
from avow.wire.record import unpack_entry

ANSWER_S: Final = 10.0  # until what was written must have been applied here
FLIGHT_SIZE_BYTES: Final = 4 * MIB
FINISH_S: Final = 2.0
OPERATION_SIZE_BYTES_MAX: Final = 7 * MIB  # so that it fits into a batch also with what is noted of it later
_SWEEP_S: Final = 1.0

_Item: TypeAlias = tuple[int, list[bytes], int]  # the number of an operation, its messages, their size


class Flight(Struct):
    """`unsure`: an attempt may have got through. `last_version`: of its messages, once known."""

    write: Write
    numbers: tuple[int, ...]
    messages: list[bytes]
    began: float
    once: bool = False
    unsure: bool = False
    pause_s: float = PAUSE_S
    last_version: int = 0


class LaneWriting:
    """`applied` is the version up to which `answer` was called."""

    def __init__(self, host: Host, lane: int, *, run: int, applied: Callable[[], int]) -> None:
        self._host, self._lane, self._run, self._applied = host, lane, run, applied
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}  # by the number of the operation
        self._in_hand: dict[bytes, Operation] = {}  # of what waits, by the message that is all of it
        self._number = 0
        self._turn: list[_Item] = []  # what leaves next
        self._out = 0  # flights that it waits for
        self._flights: dict[bytes, Flight] = {}  # by write id
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = self._stopped = False

    def __len__(self) -> int:
        return len(self._flights)

    def send(self, change: Change) -> asyncio.Future[Outcome]:
        """Raises TooLarge; the future Offline or Unknown."""
        item, future = self._begin(change)
        if not self._turn and not self._out:
            self._loop.call_soon(self._depart)
        self._turn.append(item)
        return future

    async def append(self, changes: Sequence[Change]) -> None:
        """One attempt, made now. Raises Offline, Unknown."""
        begun = [self._begin(change) for change in changes]
        for flight in self._flights_of([item for item, _ in begun], once=True):
            self._send(flight)
        for outcome in await asyncio.gather(*[future for _, future in begun], return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def answer(self, number: int, outcome: Outcome | AvowError) -> None:
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, Outcome):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def in_hand(self, message: bytes) -> Operation | None:
        """What this very message was made of, once, if that is remembered: it need not be read again."""
        return self._in_hand.pop(message, None)

    def land(self) -> None:
        """More was applied: flights may be over."""
        applied = self._applied()
        for flight in [flight for flight in self._flights.values() if 0 < flight.last_version <= applied]:
            self._landed(flight)

    async def finish(self) -> None:
        """Nothing more is taken. What is on its way has a moment to arrive; it may still happen later."""
        self._closing = True
        for _ in range(round(FINISH_S / PAUSE_S)):
            if not self._turn and not self._flights:
                break
            await asyncio.sleep(PAUSE_S)
        self._stop()

    def _stop(self) -> None:
        self._stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for flight in list(self._flights.values()):
            self._fail(flight, Unknown("this peer is going down; it may or may not have happened. Ask another peer"))
        for number, _, _ in self._turn:
            self.answer(number, Offline("this peer is going down; nothing was changed. Ask another peer"))

    # ------------------------------------------------------------------ departures

    def _begin(self, change: Change) -> tuple[_Item, asyncio.Future[Outcome]]:
        if self._closing:
            raise Offline("this peer is going down; nothing was changed. Ask another peer")
        self._number += 1
        operation = Operation(self._run, self._number, change)
        try:
            pieces = pieces_of(operation)
        except UnicodeEncodeError as cause:
            raise InvalidRequest(f"a text in it is no UTF-8 ({cause.reason}); nothing was changed") from cause
        if len(pieces) == 1:
            size = len(pieces[0])
            self._in_hand[pieces[0]] = operation
        elif (size := sum(map(len, pieces))) > OPERATION_SIZE_BYTES_MAX:
            raise TooLarge(f"a pledge of {size} bytes is more than a lane takes; nothing was changed. Send less")
        future = self._waiting[self._number] = self._loop.create_future()
        return (self._number, pieces, size), future

    def _depart(self) -> None:
        if self._stopped or self._out:
            return
        turn, self._turn = self._turn, []
        for flight in self._flights_of(turn):
            self._out += 1
            self._send(flight)

    def _flights_of(self, turn: Sequence[_Item], *, once: bool = False) -> Iterator[Flight]:
        numbers: list[int] = []
        values: list[bytes] = []
        size = 0
        for number, pieces, length in turn:
            size += length
            if values and (size > FLIGHT_SIZE_BYTES or len(values) + len(pieces) > BATCH_COUNT_MAX):
                yield self._flight(numbers, values, once=once)
                numbers, values, size = [], [], length
            numbers.append(number)
            values += pieces
        if values:
            yield self._flight(numbers, values, once=once)

    def _flight(self, numbers: list[int], values: list[bytes], *, once: bool) -> Flight:
        write_id = os.urandom(16)
        record = encode_batch(values, write_id=write_id, created_ms=self._host.now_ms())
        entry = unpack_entry(bytes(record), verify=False)
        mergeable = not once and len(entry.batch) <= MERGEABLE_SIZE_BYTES_MAX
        write = Write(
            Kind.DATA, write_id, entry.count, created_ms=entry.created_ms, batch=entry.batch, mergeable=mergeable
        )
        return Flight(write, tuple(numbers), values, self._host.now(), once)

    def _send(self, flight: Flight, *, age_ms: int = 0) -> None:
        host, write = self._host, flight.write
        self._flights[write.write_id] = flight
        request = host.expect(lambda answer: self._hear(flight, answer))
        host.node.write(request, self._lane, replace(write, age_ms=age_ms) if age_ms else write, host.now())
        host.wake()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    # ------------------------------------------------------------------ answers of the lane

    def _hear(self, flight: Flight, answer: Answer) -> None:
        """Called in the middle of the peer's own work: nothing may be raised here."""
        if isinstance(answer, Done):
            flight.last_version = answer.last_version
            if flight.last_version <= self._applied():
                self._landed(flight)
        elif self._stopped or flight.once or not is_passing(answer):
            self._give_up(flight, answer)
        else:
            flight.unsure = flight.unsure or isinstance(answer, Lost)
            if self._host.now() - flight.began > PATIENCE_S:
                self._give_up(flight, answer)
            else:
                self._loop.call_later(flight.pause_s, self._send_again, flight)
                flight.pause_s = min(2 * flight.pause_s, PAUSE_S_MAX)

    def _send_again(self, flight: Flight) -> None:
        if not self._stopped and flight.write.write_id in self._flights:
            age_ms = round((self._host.now() - flight.began) * 1000)
            self._send(flight, age_ms=max(1, age_ms) if flight.unsure else 0)

    def _give_up(self, flight: Flight, answer: Answer) -> None:
        if flight.unsure and isinstance(answer, Refusal):
            error: AvowError = Unknown("the lane of pledges gave no answer; it may or may not have happened. Ask again")
        else:
            error = error_of_answer(answer)
        self._fail(flight, error)

    def _landed(self, flight: Flight) -> None:
        """All of it was applied and answered, unless this peer was given a snapshot that jumped over it."""
        self._fail(flight, Unknown("written, and not seen here; it may or may not have happened. Ask again"))

    def _fail(self, flight: Flight, error: AvowError) -> None:
        if self._flights.pop(flight.write.write_id, None) is not None and not flight.once:
            self._out -= 1
            if self._turn and not self._out:
                self._depart()
        lost = [number for number in flight.numbers if number in self._waiting]
        for number in lost:
            self.answer(number, error)
        for message in flight.messages if lost else ():
            self._in_hand.pop(message, None)

    def _sweep(self) -> None:
        """What was written and is not applied here in time may have happened; this peer cannot show it."""
        self._sweeper = None
        oldest = self._host.now() - ANSWER_S
        for flight in [flight for flight in self._flights.values() if flight.began < oldest]:
            self._fail(flight, Unknown("written, and not yet seen here; it may or may not have happened. Ask again"))
        if self._flights and not self._stopped:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
