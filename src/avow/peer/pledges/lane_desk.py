"""One lane of pledges on one peer: what is written goes out from here, what became visible is applied here.

    operate(change) ─► all of one turn of the loop: one batch ─► the lane, on every peer      (`lane_writing`)
                                                                      │ visible here
    its outcome ◄─ if it is of this run ◄─ table.apply, in order ◄────┘                       (`lane_table`)

An operation is answered when this peer has applied it: by then its outcome is decided, and whoever asks this peer next
sees it. The lane tells when it has applied something; nothing is looked at when nothing happens.

The peer that coordinates the lane keeps its agenda as well, from the moment it has applied everything that earlier
coordinators answered for. What only it may write (Forget, Put) is appended at that very moment or refused, never later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from avow.errors import AvowError, Offline, Unknown
from avow.limits import MIB
from avow.peer.answers import Answer, Done
from avow.peer.pledges.agenda import Agenda
from avow.peer.pledges.host import PATIENCE_S, PAUSE_S, PAUSE_S_MAX, Host, ask, is_passing
from avow.peer.pledges.lane_table import LaneTable, Outcome
from avow.peer.pledges.lane_writing import ANSWER_S, LaneWriting
from avow.peer.pledges.operations import Change, Forget, Operation, Swap
from avow.pledge.record import Pledge
from avow.wire.columns import read_columns, read_preamble
from avow.wire.record import plain_view

if TYPE_CHECKING:
    from avow.peer.queue_lane import QueueLane
    from avow.peer.reading import Served
    from avow.queue.outcomes import Outcome as LaneOutcome
    from avow.wire.messages import Entry

log: Final = logging.getLogger("avow.pledge")

READ_COUNT: Final = 2_000  # messages applied before others get their turn
READ_SIZE_BYTES: Final = 4 * MIB


class LaneDesk:
    """`on_due` is told when something may have become due earlier than was known; `on_moved`, while this peer
    coordinates, when the lane has a new end."""

    def __init__(
        self,
        host: Host,
        number: int,
        *,
        run: int,
        on_due: Callable[[], None],
        on_moved: Callable[[LaneDesk], None] = lambda _: None,
    ) -> None:
        self._host, self.number, self._run = host, number, run
        self._on_due, self._on_moved = on_due, on_moved
        self.table = LaneTable()
        self.agenda: Agenda | None = None  # only while coordinating
        self.tidying = asyncio.Lock()  # one of forgetting and compaction at a time
        self._loop = asyncio.get_running_loop()
        self._writing = LaneWriting(host, number, run=run, applied=lambda: self.table.applied)
        self._right_from = 0  # the table is right behind this version: see `lane_table`
        self._ballot = 0  # of the tenure that the agenda was made for
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []  # version, who waits for it
        self._looking = self._stopped = False
        self._retry: asyncio.TimerHandle | None = None
        self._told_due_ms = 0

    def start(self) -> None:
        lane = self._host.node.lanes[self.number]
        lane.on_applied = self._moved
        self._begin(lane)
        self._look_soon()

    async def stop(self) -> None:
        """What was asked before has a moment to be answered."""
        await self._writing.finish()
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        lane = self._host.node.lanes.get(self.number)
        if lane is not None:
            lane.on_applied = None
        for _, waiter in self._reaching:
            if not waiter.done():
                waiter.set_exception(Offline("this peer is going down; ask another peer"))

    def operate(self, change: Change) -> asyncio.Future[Outcome]:
        """Raises TooLarge; the future Offline (it did not happen) or Unknown."""
        return self._writing.send(change)

    async def append(self, changes: Sequence[Change]) -> None:
        """In the lane's log from this moment on, or refused. Raises Offline, Unknown.

        `changes` were made from the table as it is, since `up_to_date` said yes, and without waiting for anything.
        """
        await self._writing.append(changes)

    # ------------------------------------------------------------------ what became visible

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
        """Apply what is visible here, a piece of it if it is much; the rest follows by itself."""
        lane = self._host.node.lanes.get(self.number)
        if lane is None or self._stopped:
            return
        state = lane.state
        if self.table.applied < state.trimmed_to:
            self._begin(lane)
        try:
            if self.table.applied < state.end:
                self._read()
        except AvowError as error:  # it is being copied here, or was damaged and is copied again
            log.debug("lane %d of pledges cannot be read yet: %s", self.number, error)
            if self._retry is not None:
                self._retry.cancel()
            self._retry = self._loop.call_later(PAUSE_S_MAX, self._look_soon)
            return
        if self.table.applied < state.end:
            self._look_soon()
            return
        self._reached()
        self._mind_role(lane)

    def _read(self) -> None:
        table, in_hand = self.table, self._writing.in_hand
        served = self._host.node.read(self.number, after=table.applied, max_count=READ_COUNT, max_bytes=READ_SIZE_BYTES)
        for item in served:
            for version, message in enumerate(_messages(item), item.first_version):
                outcome = table.apply(version, message, in_hand(message))
                if outcome is not None:
                    self._tell(outcome)

    def _begin(self, lane: QueueLane) -> None:
        """With what was not trimmed. Also when something was trimmed that this peer has not applied: what it stood for
        comes again behind the trim."""
        self.table = LaneTable(applied=lane.state.trimmed_to)
        self._right_from = lane.state.end
        self.agenda = None

    def _tell(self, outcome: Outcome) -> None:
        operation = outcome.operation
        if self.agenda is not None and outcome.done:
            self._note(self.agenda, operation, outcome.pledge)
        if operation.run == self._run:
            if self.table.applied > self._right_from:
                self._writing.answer(operation.number, outcome)
            else:
                unknown = Unknown("it was stored, but what came of it is not known here. Ask again")
                self._writing.answer(operation.number, unknown)

    def _note(self, agenda: Agenda, operation: Operation, pledge: Pledge | None) -> None:
        change = operation.change
        if pledge is not None:
            if type(change) is Swap and change.release:
                agenda.release(change.gid)
            agenda.note(pledge, run=operation.run)
        elif type(change) is Forget:
            for gid in change.gids:
                agenda.drop(gid)

    def _reached(self) -> None:
        """The table is at the lane's end: some may have waited for that."""
        self._writing.land()
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
        """This peer coordinates the lane, and its table had everything that was answered when that began."""
        if self.agenda is None or self._stopped:
            return False
        lane = self._host.node.lanes.get(self.number)
        return lane is not None and lane.core.settled and lane.core.promised == self._ballot

    def up_to_date(self) -> bool:
        """It does, and the table has everything that was answered until now."""
        self.look()
        return self.coordinates() and self.table.applied == self._host.node.lanes[self.number].state.end

    def _mind_role(self, lane: QueueLane) -> None:
        core = lane.core
        if not core.settled:
            self.agenda = None
        elif self.agenda is None or self._ballot != core.promised:
            self.agenda = Agenda()
            for kept in self.table.pledges.values():
                self.agenda.note(kept.pledge, run=kept.run)
            self._ballot, self._told_due_ms = core.promised, 0
            self._on_due()
        else:
            due_ms = self.agenda.first_due_ms()
            if due_ms < self._told_due_ms:
                self._on_due()
            self._told_due_ms = due_ms
            self._on_moved(self)

    # ------------------------------------------------------------------ reading

    def find(self, gid: str) -> Pledge | None:
        kept = self.table.pledges.get(gid)
        return kept.pledge if kept is not None else None

    async def refresh(self) -> None:
        """The table has everything that was answered before this call. Raises Offline."""
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
            raise Offline("this peer is still reading its lane of pledges; ask again, or another peer") from None

    async def _end(self) -> int:
        """The version that the lane has reached, confirmed by a quorum."""
        deadline, pause_s = self._host.now() + PATIENCE_S, PAUSE_S
        while True:
            answer = await self._ask_end()
            if isinstance(answer, Done):
                return answer.last_version
            if not is_passing(answer) or self._host.now() > deadline:
                raise Offline("no quorum confirms the lane of pledges; ask again, or another peer")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _ask_end(self) -> Answer:
        host = self._host

        def start(request: int) -> None:
            host.node.reach(request, self.number, level="linearizable", version=0, now=host.now())

        return await ask(host, start, lane=self.number)

    def statistics(self) -> dict[str, int]:
        agenda = self.agenda.statistics() if self.agenda is not None else {"due": 0, "held": 0}
        return {
            "pledges": len(self.table.pledges),
            "topics": sum(bool(kept.topic.subscribers) for kept in self.table.topics.values()),
            "flights": len(self._writing),
            "lanes_coordinated": int(self.agenda is not None),
            "malformed": self.table.malformed,
            **agenda,
        }


def _messages(served: Served) -> Iterator[bytes]:
    section = plain_view(served.entry.batch)
    columns = read_columns(section, read_preamble(section, count=served.entry.count))
    offsets = memoryview(columns.value_offsets).cast("i")
    values, first = columns.values, served.offset
    for number in range(first, first + served.count):
        yield bytes(values[offsets[number] : offsets[number + 1]])
