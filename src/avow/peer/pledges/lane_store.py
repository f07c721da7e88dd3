"""Pledges in the cluster itself: the default store, with nothing to install and as available as the queues.

An internal two-phase queue of a few lanes holds every operation; a gid's hash chooses its lane. Each peer keeps a table
of each lane (`lane_desk`), so reading is a look into memory, after a question to the lane's coordinator unless that is
this peer. Writing is one message, and operations of one turn of the loop share a batch and a sync.

Claims are given out by the peer that coordinates a lane, for that lane only. So the work is spread over peers as the
lanes are, and moves with them when one dies. Two peers that work on the same pledge for a moment do no harm: the swap
of the second finds another revision.

The queue is created when the first pledge comes; its name is reserved, and nobody else writes to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError, InvalidRequest, Offline, TooMany
from avow.limits import PLEDGE_PAGE_COUNT_MAX, PLEDGES_PER_LANE_COUNT
from avow.peer.answers import Done
from avow.peer.http.errors import error_of_answer
from avow.peer.pledges import tidying
from avow.peer.pledges.host import PATIENCE_S, PAUSE_S, PAUSE_S_MAX, Host, ask, is_passing
from avow.peer.pledges.lane_desk import LaneDesk
from avow.peer.pledges.lane_table import Place
from avow.peer.pledges.operations import Insert, Swap, SwapTopic
from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge, Progress
from avow.pledge.store import Filter, Page, Topic
from avow.pledge.stores import operations as ops
from avow.queue.commands import QueueCommand, encode
from avow.queue.lanes import lane_for
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.queue.catalog import Queue

log: Final = logging.getLogger("avow.pledge")

QUEUE: Final = "avow.pledges"
LANES: Final = 8
LANES_ALONE: Final = 2  # of a cluster of one: work cannot be spread there, and fuller batches cost less
READY_S: Final = 10.0  # until lanes that were just made take writes
LOOK_COUNT: Final = 2_000  # pledges looked at before others get their turn


class LaneStore:
    """`run` is this run of this peer; `is_gone(run)` says whether one will not finish what it holds. Made on the peer's
    loop."""

    def __init__(
        self,
        host: Host,
        *,
        run: int,
        is_gone: Callable[[int], bool],
        lanes: int | None = None,
        messages_min: int = tidying.MESSAGES_MIN,
        pledges_max: int = PLEDGES_PER_LANE_COUNT,
    ) -> None:
        self._host, self._run, self._is_gone = host, run, is_gone
        self._lanes, self._messages_min, self._pledges_max = lanes, messages_min, pledges_max
        self._desks: list[LaneDesk] = []
        self._tidying: dict[int, asyncio.Task[None]] = {}  # by lane
        self.on_due: Callable[[], None] = lambda: None
        self.compactions_count = 0

    async def start(self) -> None:
        """Creates the queue if it is not there. Raises Offline."""
        host = self._host
        queue = host.node.metadata.state.catalog.by_name.get(QUEUE) or await self._create()
        await self._until_held(queue)
        for index in range(queue.lanes):
            desk = LaneDesk(
                host,
                queue.first_lane + index,
                run=self._run,
                on_due=lambda: self.on_due(),
                on_moved=self._mind_length,
            )
            self._desks.append(desk)
            desk.start()

    async def close(self) -> None:
        for task in self._tidying.values():
            task.cancel()
        await asyncio.gather(*self._tidying.values(), return_exceptions=True)
        await asyncio.gather(*[desk.stop() for desk in self._desks])

    async def _create(self) -> Queue:
        alone = len(self._host.node.metadata.state.voters) == 1
        lanes = self._lanes or (LANES_ALONE if alone else LANES)
        command = encode(QueueCommand("create", QUEUE, "two-phase", lanes))
        host, write_id = self._host, os.urandom(16)
        deadline, pause_s = host.now() + PATIENCE_S, PAUSE_S

        def start(request: int) -> None:
            host.node.command(request, Kind.QUEUE, command, write_id=write_id, now=host.now())

        while True:
            answer = await ask(host, start)
            queue = host.node.metadata.state.catalog.by_name.get(QUEUE)
            if queue is not None:
                return queue  # also if another peer has made it otherwise
            if not isinstance(answer, Done) and (not is_passing(answer) or host.now() > deadline):
                raise error_of_answer(answer)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _until_held(self, queue: Queue) -> None:
        numbers = range(queue.first_lane, queue.first_lane + queue.lanes)
        deadline = self._host.now() + READY_S
        while not all(number in self._host.node.lanes for number in numbers):
            if self._host.now() > deadline:
                raise Offline("this peer does not hold the lanes of pledges yet; ask another peer")
            await asyncio.sleep(PAUSE_S)

    def _desk(self, name: str) -> LaneDesk:
        if not self._desks:
            raise Offline("the lanes of pledges are not open on this peer; nothing was changed. Try again")
        return self._desks[lane_for(name.encode("utf-8", "surrogatepass"), len(self._desks))]

    # ------------------------------------------------------------------ pledges

    async def insert(self, pledge: Pledge) -> Pledge | None:
        gid = pledge.content.gid
        desk = self._desk(gid)
        ops.id_bytes(gid)
        if desk.find(gid) is not None:
            known = await self.load(gid)
            if known is not None:
                return known
        if len(desk.table.pledges) >= self._pledges_max + self._pledges_max // 4:
            raise TooMany(
                f"{len(desk.table.pledges)} pledges are in a lane, and not finished; nothing was changed. Try again "
                "later, or set pledge_store to a database"
            )
        change = Insert(pledge.content, pledge.progress, pledge.fence, pledge.owner, pledge.lease_until_ms)
        outcome = await desk.operate(change)
        return None if outcome.done or outcome.pledge is None else _shown(desk, outcome.pledge)

    async def load(self, gid: str) -> Pledge | None:
        desk = self._desk(gid)
        await desk.refresh()
        pledge = desk.find(gid)
        return None if pledge is None else _shown(desk, pledge)

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        gid = before.content.gid
        desk = self._desk(gid)
        if progress.created_ms != before.progress.created_ms:
            raise InvalidRequest("a pledge keeps the time of its creation; nothing was changed")
        known = desk.find(gid)
        if (known is None or _shown(desk, known).fence != before.fence) and desk.coordinates():
            return None
        change = Swap(gid, progress.created_ms, before.revision, progress, release)
        outcome = await desk.operate(change)
        return _shown(desk, outcome.pledge) if outcome.done and outcome.pledge is not None else None

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        desks = [desk for desk in self._desks if desk.up_to_date()]
        for desk in desks:
            assert desk.agenda is not None, "who coordinates has one"
            desk.agenda.release_gone(self._is_gone)
        claimed: list[Pledge] = []
        while desks and len(claimed) < limit:
            first = min(desks, key=_first_due_ms)
            assert first.agenda is not None, "who coordinates has one"
            pledges = first.table.pledges
            pledge = first.agenda.claim_first(
                lambda gid: pledges[gid].pledge,  # noqa: B023 (called at once)
                owner=owner,
                now_ms=now_ms,
                lease_ms=lease_ms,
            )
            if pledge is None:
                break
            claimed.append(pledge)
        return claimed

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """Of a lane that another peer coordinates it is given without a claim: the swap with which its work begins, to
        hold it, is refused if somebody was faster."""
        desk = self._desk(gid)
        coordinated = desk.up_to_date()
        kept = desk.table.pledges.get(gid)
        if kept is None:
            return None
        if coordinated and desk.agenda is not None:
            return desk.agenda.claim(kept.pledge, owner=owner, now_ms=now_ms, lease_ms=lease_ms)
        pledge, progress = kept.pledge, kept.pledge.progress
        held = progress.held and progress.next_at_ms > now_ms and not self._is_gone(kept.run)
        free = pledge.status in UNFINISHED and pledge.lease_until_ms <= now_ms and not held
        return pledge if free else None

    async def next_due_ms(self) -> int:
        """Of the lanes that this peer coordinates."""
        return min((_first_due_ms(desk) for desk in self._desks if desk.coordinates()), default=NEVER_MS)

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        """Of the lanes that this peer coordinates."""
        forgotten = 0
        for desk in self._desks:
            if forgotten < limit and desk.coordinates():
                left = limit - forgotten
                forgotten += await tidying.forget(desk, finished_before_ms=finished_before_ms, limit=left)
        return forgotten

    # ------------------------------------------------------------------ lists

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        if wanted.gid:
            pledge = await self.load(wanted.gid)
            matching = pledge is not None and not position and _matches(pledge, wanted)
            return Page((pledge,) if pledge is not None and matching else ())
        place, limit = _place_of(position), _page_size(limit)
        await self._refresh()
        found: list[Pledge] = []
        while len(found) <= limit:
            for looked, pledge in enumerate(self._newest(place), 1):
                place = (pledge.progress.created_ms, pledge.gid)
                if _matches(pledge, wanted):
                    found.append(pledge)
                if len(found) > limit or looked >= LOOK_COUNT:
                    break
            else:
                break
            await asyncio.sleep(0)
        page = found[:limit]
        more = f"{page[-1].progress.created_ms}-{page[-1].gid}" if len(found) > limit else ""
        return Page(tuple(page), more)

    async def _refresh(self) -> None:
        await asyncio.gather(*[desk.refresh() for desk in self._desks])

    def _newest(self, place: Place | None) -> Iterator[Pledge]:
        lanes = [desk.table.before(place) for desk in self._desks]
        return merge(*lanes, key=lambda pledge: (pledge.progress.created_ms, pledge.gid), reverse=True)

    # ------------------------------------------------------------------ topics

    async def load_topic(self, name: str) -> Topic | None:
        desk = self._desk(name)
        await desk.refresh()
        kept = desk.table.topics.get(name)
        return kept.topic if kept is not None and kept.topic.subscribers else None

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        ops.name_bytes(name)
        if await self.load_topic(name) != before:
            return False
        desk = self._desk(name)
        kept = desk.table.topics.get(name)
        if before is None and not subscribers:
            return True
        edition = kept.edition if kept is not None else 0
        outcome = await desk.operate(SwapTopic(name, edition, tuple(subscribers), now_ms))
        return outcome.done

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        limit = _page_size(limit)
        await self._refresh()
        topics = [kept.topic for desk in self._desks for kept in desk.table.topics.values() if kept.topic.subscribers]
        found = sorted((topic for topic in topics if topic.name > position), key=lambda topic: topic.name)
        return found[:limit], found[limit - 1].name if len(found) > limit else ""

    # ------------------------------------------------------------------ length

    def _mind_length(self, desk: LaneDesk) -> None:
        lane = self._host.node.lanes.get(desk.number)
        if lane is None or desk.number in self._tidying or not desk.coordinates() or desk.agenda is None:
            return
        if len(desk.table.pledges) > self._pledges_max and desk.agenda.finished_count:
            self._tidy(desk, self._forget_surplus)
        elif tidying.is_long(desk, trimmed_to=lane.state.trimmed_to, messages_min=self._messages_min):
            self._tidy(desk, self._compact)

    def _tidy(self, desk: LaneDesk, work: Callable[[LaneDesk], Coroutine[Any, Any, None]]) -> None:
        async def tidy() -> None:
            try:
                await work(desk)
            except AvowError as error:
                log.info("lane %d of pledges was not made shorter, it is tried again: %s", desk.number, error)

        task = self._tidying[desk.number] = asyncio.get_running_loop().create_task(tidy())
        task.add_done_callback(lambda _: self._tidying.pop(desk.number, None))

    async def _forget_surplus(self, desk: LaneDesk) -> None:
        """A tenth more than must be, so that it is not done for each one."""
        surplus = len(desk.table.pledges) - self._pledges_max + self._pledges_max // 10
        await tidying.forget(desk, finished_before_ms=NEVER_MS, limit=surplus)

    async def _compact(self, desk: LaneDesk) -> None:
        upto = await tidying.compact(self._host, desk)
        self.compactions_count += 1
        log.debug("lane %d of pledges was trimmed to %d", desk.number, upto)

    def statistics(self) -> dict[str, int]:
        told: dict[str, int] = {"compactions": self.compactions_count}
        for desk in self._desks:
            for name, value in desk.statistics().items():
                told[name] = told.get(name, 0) + value
        return told


def _shown(desk: LaneDesk, pledge: Pledge) -> Pledge:
    """Most are in nobody's hand, and then it does not matter who coordinates."""
    shown = desk.agenda.shown(pledge) if desk.agenda is not None else pledge
    return shown if shown is pledge or desk.coordinates() else pledge


def _first_due_ms(desk: LaneDesk) -> int:
    return desk.agenda.first_due_ms() if desk.agenda is not None else NEVER_MS


def _matches(pledge: Pledge, wanted: Filter) -> bool:
    created_ms = pledge.progress.created_ms
    return (
        (not wanted.statuses or pledge.status in wanted.statuses)
        and (wanted.created_from_ms is None or created_ms >= wanted.created_from_ms)
        and (wanted.created_to_ms is None or created_ms <= wanted.created_to_ms)
    )


def _place_of(position: str) -> Place | None:
    found = ops.position_of(position)
    return None if found is None else (found[0], found[1].decode())


def _page_size(limit: int) -> int:
    if limit < 1:
        raise InvalidRequest(f"a page holds at least one, {limit} were asked for; nothing was changed")
    return min(limit, PLEDGE_PAGE_COUNT_MAX)
