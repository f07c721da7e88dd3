"""One lane of pledges on one peer: writes operations to the lane, and applies the visible messages to a table.

    operate(change) ─► all of one turn of the loop: one batch ─► the lane, on every peer      (`writer`)
                                                                      │ visible here
    its outcome ◄─ if it is of this run ◄─ table.apply, in order ◄────┘                       (`table`)

An operation is answered when this peer has applied it: then its outcome is decided, and later reads on this peer see
it. The lane calls back when it has applied entries, so there is no polling.

The peer that coordinates the lane also has its due index, from the time at which it has applied everything that earlier
coordinators acknowledged. What only it may write (Forget, Put) is appended at once or refused, never later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from avow.errors import AvowError, Offline, Unknown
from avow.limits import MIB
from avow.node.answers import Answer, Done
from avow.node_client import Host, ask, decided, step_of_answer
from avow.pledge.record import Pledge
from avow.pledge.stores.lane.due import DueIndex
from avow.pledge.stores.lane.operations import Change, Forget, Operation, Swap
from avow.pledge.stores.lane.table import LaneTable, Outcome
from avow.pledge.stores.lane.writer import ANSWER_S, PATIENCE_S, PAUSE_S_MAX, OperationWriter
from avow.wire.columns import read_columns, read_preamble
from avow.wire.record import plain_view

if TYPE_CHECKING:
    from avow.node.lane.queue_lane import QueueLane
    from avow.node.records import Served
    from avow.queue.entry_outcome import Outcome as LaneOutcome
    from avow.wire.messages import Entry

log: Final = logging.getLogger("avow.pledge")

READ_COUNT: Final = 2_000  # messages applied in one turn of the loop
READ_SIZE_BYTES: Final = 4 * MIB


class LaneReplica:
    """`on_due` is called when a pledge may be due earlier than before; `on_moved` when the lane has a new end while
    this peer coordinates it."""

    def __init__(
        self,
        host: Host,
        number: int,
        *,
        run: int,
        on_due: Callable[[], None],
        on_moved: Callable[[LaneReplica], None] = lambda _: None,
    ) -> None:
        self._host, self.number, self._run = host, number, run
        self._on_due, self._on_moved = on_due, on_moved
        self.table = LaneTable()
        self.due_index: DueIndex | None = None  # only while coordinating
        self.maintenance = asyncio.Lock()  # removal and compaction exclude each other
        self._loop = asyncio.get_running_loop()
        self._writer = OperationWriter(host, number, run=run, applied=lambda: self.table.applied)
        self._right_from = 0  # the table is correct after this version: see `table`
        self._ballot = 0  # of the coordinator term for which the due index was built
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []  # versions that callers wait for
        self._looking = self._stopped = False
        self._retry: asyncio.TimerHandle | None = None
        self._told_due_ms = 0

    def start(self) -> None:
        lane = self._host.node.lanes[self.number]
        lane.on_applied = self._moved
        self._begin(lane)
        self._look_soon()

    async def stop(self) -> None:
        """Operations in flight have a moment to finish."""
        await self._writer.finish()
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        lane = self._host.node.lanes.get(self.number)
        if lane is not None:
            lane.on_applied = None
        for _, waiter in self._reaching:
            if not waiter.done():
                waiter.set_exception(Offline("this peer is stopping; use another peer"))

    def operate(self, change: Change) -> asyncio.Future[Outcome]:
        """Raises TooLarge. The future raises Offline (it did not happen) or Unknown."""
        return self._writer.send(change)

    async def append(self, changes: Sequence[Change]) -> None:
        """Appended to the lane's log at once, or refused. Raises Offline, Unknown.

        `changes` must be made from the table after `up_to_date` returned True, without an await in between.
        """
        await self._writer.append(changes)

    # ------------------------------------------------------------------ applying

    def _moved(self, _entry: Entry, _outcome: LaneOutcome) -> None:
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking and not self._stopped:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        self.look()

    def look(self) -> None:
        """Apply visible messages, up to READ_COUNT; the rest is applied in later turns of the loop."""
        lane = self._host.node.lanes.get(self.number)
        if lane is None or self._stopped:
            return
        state = lane.state
        if self.table.applied < state.trimmed_to:
            self._begin(lane)
        try:
            if self.table.applied < state.end:
                self._read()
        except AvowError as error:  # this peer is fetching a copy of the lane
            log.debug("cannot read lane %d of pledges yet, retrying: %s", self.number, error)
            if self._retry is not None:
                self._retry.cancel()
            self._retry = self._loop.call_later(PAUSE_S_MAX, self._look_soon)
            return
        if self.table.applied < state.end:
            self._look_soon()
            return
        self._reached()
        self._update_role(lane)

    def _read(self) -> None:
        table, in_hand = self.table, self._writer.in_hand
        served = self._host.node.read(self.number, after=table.applied, max_count=READ_COUNT, max_bytes=READ_SIZE_BYTES)
        for item in served:
            for version, message in enumerate(_messages(item), item.first_version):
                outcome = table.apply(version, message, in_hand(message))
                if outcome is not None:
                    self._tell(outcome)

    def _begin(self, lane: QueueLane) -> None:
        """Begin after the trimmed messages. Also if this peer has not applied all of them: the pledges that they made
        are written again after the trim."""
        self.table = LaneTable(applied=lane.state.trimmed_to)
        self._right_from = lane.state.end
        self.due_index = None

    def _tell(self, outcome: Outcome) -> None:
        operation = outcome.operation
        if self.due_index is not None and outcome.done:
            self._note(self.due_index, operation, outcome.pledge)
        if operation.run == self._run:
            if self.table.applied > self._right_from:
                self._writer.answer(operation.number, outcome)
            else:
                unknown = Unknown("the operation was stored, but this peer does not know its outcome. Try again")
                self._writer.answer(operation.number, unknown)

    def _note(self, due_index: DueIndex, operation: Operation, pledge: Pledge | None) -> None:
        change = operation.change
        if pledge is not None:
            if type(change) is Swap and change.release:
                due_index.release(change.gid)
            due_index.update(pledge, run=operation.run)
        elif type(change) is Forget:
            for gid in change.gids:
                due_index.drop(gid)

    def _reached(self) -> None:
        """The table has reached the lane's end: wake callers that wait for it."""
        self._writer.finish_applied()
        if not self._reaching:
            return
        applied = self.table.applied
        ready = [waiter for version, waiter in self._reaching if version <= applied]
        self._reaching = [item for item in self._reaching if item[0] > applied]
        for waiter in ready:
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ coordinating

    def coordinates(self) -> bool:
        """True: this peer coordinates the lane, and its table has everything acknowledged before that began."""
        if self.due_index is None or self._stopped:
            return False
        lane = self._host.node.lanes.get(self.number)
        return lane is not None and lane.core.established and lane.core.promised == self._ballot

    def up_to_date(self) -> bool:
        """True: this peer coordinates the lane, and the table has everything acknowledged until now."""
        self.look()
        return self.coordinates() and self.table.applied == self._host.node.lanes[self.number].state.end

    def _update_role(self, lane: QueueLane) -> None:
        core = lane.core
        if not core.established:
            self.due_index = None
        elif self.due_index is None or self._ballot != core.promised:
            self.due_index = DueIndex()
            for kept in self.table.pledges.values():
                self.due_index.update(kept.pledge, run=kept.run)
            self._ballot, self._told_due_ms = core.promised, 0
            self._on_due()
        else:
            due_ms = self.due_index.first_due_ms()
            if due_ms < self._told_due_ms:
                self._on_due()
            self._told_due_ms = due_ms
            self._on_moved(self)

    # ------------------------------------------------------------------ reading

    def find(self, gid: str) -> Pledge | None:
        kept = self.table.pledges.get(gid)
        return kept.pledge if kept is not None else None

    async def refresh(self) -> None:
        """Returns when the table has everything acknowledged before this call. Raises Offline."""
        if self.up_to_date():
            return
        end = max(await self._end(), self._right_from)
        self.look()
        if self.table.applied < end:
            await self._reach(end)

    async def _reach(self, version: int) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._reaching.append((version, waiter))
        self._look_soon()
        try:
            async with asyncio.timeout(ANSWER_S):
                await waiter
        except TimeoutError:
            raise Offline("this peer is still reading its lane of pledges; try again, or use another peer") from None

    async def _end(self) -> int:
        """The last version of the lane, confirmed by a quorum."""
        answer, _ = await decided(self._host, self._ask_end, step_of_answer, patience_s=PATIENCE_S)
        if isinstance(answer, Done):
            return answer.last_version
        raise Offline("no quorum confirms the state of the lane of pledges; try again, or use another peer")

    async def _ask_end(self) -> Answer:
        host = self._host

        def start(request: int) -> None:
            host.node.reach(request, self.number, level="linearizable", version=0, now=host.now())

        return await ask(host, start, lane=self.number)

    def statistics(self) -> dict[str, int]:
        due_index = self.due_index.statistics() if self.due_index is not None else {"due": 0, "held": 0}
        return {
            "pledges": len(self.table.pledges),
            "topics": sum(bool(kept.topic.subscribers) for kept in self.table.topics.values()),
            "in_flight": len(self._writer),
            "lanes_coordinated": int(self.due_index is not None),
            "malformed": self.table.malformed,
            **due_index,
        }


def _messages(served: Served) -> Iterator[bytes]:
    section = plain_view(served.entry.batch)
    columns = read_columns(section, read_preamble(section, count=served.entry.count))
    offsets = memoryview(columns.value_offsets).cast("i")
    values, first = columns.values, served.offset
    for number in range(first, first + served.count):
        yield bytes(values[offsets[number] : offsets[number + 1]])
