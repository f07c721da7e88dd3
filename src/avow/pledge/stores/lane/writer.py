"""Writes the operations of one peer to one lane of pledges, in batches, and retries until each is decided.

A batch has a write id. Operations of one turn of the loop are sent together at its end. While a batch is in flight, new
operations wait and form the next one. After a transient refusal, or without an answer, the same batch is sent again
(`avow.writer`), so nothing is written twice. If that takes too long, its operations did not happen (Offline), or their
outcome is unknown (Unknown) because one of the attempts may have succeeded.

The caller of an operation is answered when the lane's message is applied (`answer`), which may be before or after the
lane's own answer to the batch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from avow.errors import AvowError, InvalidRequest, Offline, TooLarge, Unknown
from avow.limits import BATCH_COUNT_MAX, MERGEABLE_SIZE_BYTES_MAX, MIB
from avow.node.answers import LOST, Answer, Done, Refusal, error_of_answer
from avow.node.lane.two_phase_lane import Write
from avow.node_client import Host, NodeWriter, step_of_answer
from avow.pledge.stores.lane.operations import Change, Operation, pieces_of
from avow.pledge.stores.lane.table import Outcome
from avow.wire.batch import encode_batch
from avow.wire.messages import Kind
from avow.wire.record import unpack_entry
from avow.writer.steps import Pauses, Request, Settings, Verdict

ANSWER_S: Final = 10.0  # maximum time until a write is applied on this peer
GROUP_SIZE_BYTES: Final = 4 * MIB
FINISH_S: Final = 2.0
OPERATION_SIZE_BYTES_MAX: Final = 7 * MIB  # so that it fits into a batch even after its progress has grown
_SWEEP_S: Final = 1.0
PATIENCE_S: Final = 3.0  # with a lane that accepts no writes
PAUSE_S: Final = 0.02  # before the first retry; doubled each time
PAUSE_S_MAX: Final = 0.25
_SETTINGS: Final = Settings(window=1 << 16, pauses=Pauses(PAUSE_S, PAUSE_S_MAX), waits_for_answer=True)

_Item: TypeAlias = tuple[int, list[bytes], int]  # the number of an operation, its messages, their size


class OperationBatch(Request):
    """Operations that are sent together. `once`: no retry. `last_version`: of its messages, when known."""

    __slots__ = ("answer", "began", "last_version", "messages", "numbers", "once", "write")

    def __init__(
        self, write: Write, numbers: tuple[int, ...], messages: list[bytes], *, began: float, once: bool
    ) -> None:
        super().__init__(deadline=began if once else began + PATIENCE_S)
        self.write, self.numbers, self.messages = write, numbers, messages
        self.began, self.once = began, once
        self.answer: Answer = LOST
        self.last_version = 0


class OperationWriter:
    """`applied` returns the version up to which `answer` was called."""

    def __init__(self, host: Host, lane: int, *, run: int, applied: Callable[[], int]) -> None:
        self._host, self._lane, self._run, self._applied = host, lane, run, applied
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}  # by number of the operation
        self._in_hand: dict[bytes, Operation] = {}  # waiting operations that are a single message, by that message
        self._number = 0
        self._turn: list[_Item] = []  # the next batch
        self._out = 0  # batches in flight for which it waits
        self._batches: dict[bytes, OperationBatch] = {}  # by write id
        self._writer: NodeWriter[OperationBatch] = NodeWriter(
            host, _SETTINGS, send=self._send, on_decided=self._decided
        )
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = self._stopped = False

    def __len__(self) -> int:
        return len(self._batches)

    def send(self, change: Change) -> asyncio.Future[Outcome]:
        """Raises TooLarge. The future raises Offline or Unknown."""
        item, future = self._begin(change)
        if not self._turn and not self._out:
            self._loop.call_soon(self._send_next)
        self._turn.append(item)
        return future

    async def append(self, changes: Sequence[Change]) -> None:
        """One attempt, at once. Raises Offline, Unknown."""
        begun = [self._begin(change) for change in changes]
        for batch in self._batches_of([item for item, _ in begun], once=True):
            self._submit(batch)
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
        """Removes and returns the operation from which this message was encoded, if known: this saves decoding it."""
        return self._in_hand.pop(message, None)

    def finish_applied(self) -> None:
        """Call it when more was applied: batches may be finished."""
        applied = self._applied()
        for batch in [batch for batch in self._batches.values() if 0 < batch.last_version <= applied]:
            self._finished(batch)

    async def finish(self) -> None:
        """Accepts nothing more, and waits a moment for batches in flight, which may still be stored later."""
        self._closing = True
        for _ in range(round(FINISH_S / PAUSE_S)):
            if not self._turn and not self._batches:
                break
            await asyncio.sleep(PAUSE_S)
        self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self._writer.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for batch in list(self._batches.values()):
            self._fail(batch, Unknown("this peer is stopping; it may or may not have happened. Use another peer"))
        for number, _, _ in self._turn:
            self.answer(number, Offline("this peer is stopping; nothing was changed. Use another peer"))

    # ------------------------------------------------------------------ sending

    def _begin(self, change: Change) -> tuple[_Item, asyncio.Future[Outcome]]:
        if self._closing:
            raise Offline("this peer is stopping; nothing was changed. Use another peer")
        self._number += 1
        operation = Operation(self._run, self._number, change)
        try:
            pieces = pieces_of(operation)
        except UnicodeEncodeError as cause:
            raise InvalidRequest(
                f"the pledge contains text that is not valid UTF-8 ({cause.reason}); nothing was changed"
            ) from cause
        if len(pieces) == 1:
            size = len(pieces[0])
            self._in_hand[pieces[0]] = operation
        elif (size := sum(map(len, pieces))) > OPERATION_SIZE_BYTES_MAX:
            raise TooLarge(
                f"the pledge has {size} bytes, a lane takes at most {OPERATION_SIZE_BYTES_MAX}; nothing was changed. "
                "Send less data"
            )
        future = self._waiting[self._number] = self._loop.create_future()
        return (self._number, pieces, size), future

    def _send_next(self) -> None:
        if self._stopped or self._out:
            return
        turn, self._turn = self._turn, []
        for batch in self._batches_of(turn):
            self._out += 1
            self._submit(batch)

    def _batches_of(self, turn: Sequence[_Item], *, once: bool = False) -> Iterator[OperationBatch]:
        numbers: list[int] = []
        values: list[bytes] = []
        size = 0
        for number, pieces, length in turn:
            size += length
            if values and (size > GROUP_SIZE_BYTES or len(values) + len(pieces) > BATCH_COUNT_MAX):
                yield self._batch_of(numbers, values, once=once)
                numbers, values, size = [], [], length
            numbers.append(number)
            values += pieces
        if values:
            yield self._batch_of(numbers, values, once=once)

    def _batch_of(self, numbers: list[int], values: list[bytes], *, once: bool) -> OperationBatch:
        write_id = os.urandom(16)
        record = encode_batch(values, write_id=write_id, created_ms=self._host.now_ms())
        entry = unpack_entry(bytes(record), verify=False)
        mergeable = not once and len(entry.batch) <= MERGEABLE_SIZE_BYTES_MAX
        write = Write(
            Kind.DATA, write_id, entry.count, created_ms=entry.created_ms, batch=entry.batch, mergeable=mergeable
        )
        return OperationBatch(write, tuple(numbers), values, began=self._host.now(), once=once)

    def _submit(self, batch: OperationBatch) -> None:
        self._batches[batch.write.write_id] = batch
        self._writer.submit(batch)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _send(self, batch: OperationBatch, now: float) -> None:
        if self._stopped:
            return
        host, write = self._host, batch.write
        if batch.maybe:
            write = replace(write, age_ms=max(1, round((now - batch.began) * 1000)))
        host.node.write(host.expect(lambda answer: self._answered(batch, answer)), self._lane, write, now)
        host.wake()

    # ------------------------------------------------------------------ answers of the lane

    def _answered(self, batch: OperationBatch, answer: Answer) -> None:
        """Called in the middle of the peer's own work: it must not raise."""
        batch.answer = answer
        if isinstance(answer, Done):
            batch.last_version = answer.last_version
        self._writer.answered(batch, step_of_answer(answer))

    def _decided(self, batch: OperationBatch, verdict: Verdict) -> None:
        if verdict is Verdict.DONE:
            if batch.last_version <= self._applied():
                self._finished(batch)
        elif verdict is Verdict.UNKNOWN and isinstance(batch.answer, Refusal):
            self._fail(
                batch, Unknown("no answer from the lane of pledges; the change may or may not have happened. Try again")
            )
        else:
            self._fail(batch, error_of_answer(batch.answer))

    def _finished(self, batch: OperationBatch) -> None:
        """All its operations were applied and answered, unless this peer got a snapshot that skipped them."""
        self._fail(batch, Unknown("stored, but not applied on this peer; it may or may not have happened. Try again"))

    def _fail(self, batch: OperationBatch, error: AvowError) -> None:
        self._writer.forget(batch)
        if self._batches.pop(batch.write.write_id, None) is not None and not batch.once:
            self._out -= 1
            if self._turn and not self._out:
                self._send_next()
        lost = [number for number in batch.numbers if number in self._waiting]
        for number in lost:
            self.answer(number, error)
        for message in batch.messages if lost else ():
            self._in_hand.pop(message, None)

    def _sweep(self) -> None:
        """A batch that was not applied on this peer in time is answered Unknown."""
        self._sweeper = None
        oldest = self._host.now() - ANSWER_S
        for batch in [batch for batch in self._batches.values() if batch.began < oldest]:
            self._fail(batch, Unknown("not yet applied on this peer; it may or may not have happened. Try again"))
        if self._batches and not self._stopped:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
