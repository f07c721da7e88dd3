"""Pledges in a queue of the cluster: the default store, with nothing to install and as available as the queues.

Every operation is a message in an internal two-phase queue with a few lanes; the hash of the gid selects the lane. Each
peer has a table of each lane (`replica`), so a read is a lookup in memory, after a request to the lane's coordinator
unless that is this peer. A write is one message, and operations of one turn of the loop share a batch and a sync.

The coordinator of a lane gives out the claims for that lane. So deliveries are distributed over the peers like the
lanes, and move with them when a peer fails. Two peers may briefly deliver the same pledge without harm: the second swap
is refused because of the revision.

The queue is created at the first pledge. Its name is reserved, and only this store writes to it.
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
from avow.node.answers import Answer, Done, error_of_answer
from avow.node_client import Host, ask, decided, step_of_answer
from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge, Progress
from avow.pledge.store import Filter, Page, Topic
from avow.pledge.stores import operations as ops
from avow.pledge.stores.lane import compaction
from avow.pledge.stores.lane.operations import Insert, Swap, SwapTopic
from avow.pledge.stores.lane.replica import LaneReplica
from avow.pledge.stores.lane.table import Place
from avow.pledge.stores.lane.writer import PATIENCE_S, PAUSE_S
from avow.queue.commands import QueueCommand, encode
from avow.queue.key_to_lane import lane_for
from avow.wire.messages import Kind
from avow.writer.steps import Step

if TYPE_CHECKING:
    from avow.queue.records import Queue

log: Final = logging.getLogger("avow.pledge")

QUEUE: Final = "avow.pledges"
LANES: Final = 8
LANES_ALONE: Final = 2  # in a cluster of one: there is no other peer to share the work, and larger batches cost less
READY_S: Final = 10.0  # maximum time until new lanes accept writes
LOOK_COUNT: Final = 2_000  # pledges examined in one turn of the loop


class LaneStore:
    """`run` is this run of this peer; `is_gone(run)` says whether a run will not finish the pledges it holds. Created
    on the peer's loop."""

    def __init__(
        self,
        host: Host,
        *,
        run: int,
        is_gone: Callable[[int], bool],
        lanes: int | None = None,
        messages_min: int = compaction.MESSAGES_MIN,
        pledges_max: int = PLEDGES_PER_LANE_COUNT,
    ) -> None:
        self._host, self._run, self._is_gone = host, run, is_gone
        self._lanes, self._messages_min, self._pledges_max = lanes, messages_min, pledges_max
        self._replicas: list[LaneReplica] = []
        self._maintenance: dict[int, asyncio.Task[None]] = {}  # by lane
        self.on_due: Callable[[], None] = lambda: None
        self.compactions_count = 0

    async def start(self) -> None:
        """Creates the queue if it does not exist. Raises Offline."""
        host = self._host
        queue = host.node.metadata.state.catalog.by_name.get(QUEUE) or await self._create()
        await self._until_held(queue)
        for index in range(queue.lanes):
            replica = LaneReplica(
                host,
                queue.first_lane + index,
                run=self._run,
                on_due=lambda: self.on_due(),
                on_moved=self._check_length,
            )
            self._replicas.append(replica)
            replica.start()

    async def close(self) -> None:
        for task in self._maintenance.values():
            task.cancel()
        await asyncio.gather(*self._maintenance.values(), return_exceptions=True)
        await asyncio.gather(*[replica.stop() for replica in self._replicas])

    async def _create(self) -> Queue:
        alone = len(self._host.node.metadata.state.voters) == 1
        lanes = self._lanes or (LANES_ALONE if alone else LANES)
        command = encode(QueueCommand("create", QUEUE, "two-phase", lanes))
        host, write_id = self._host, os.urandom(16)

        def start(request: int) -> None:
            host.node.command(request, Kind.QUEUE, command, write_id=write_id, now=host.now())

        def judge(answer: Answer) -> Step:
            if QUEUE in host.node.metadata.state.catalog.by_name:
                return Step.DONE  # also if another peer has created it with other settings
            return Step.ELSEWHERE if isinstance(answer, Done) else step_of_answer(answer)

        answer, _ = await decided(host, lambda: ask(host, start), judge, patience_s=PATIENCE_S)
        queue = host.node.metadata.state.catalog.by_name.get(QUEUE)
        if queue is not None:
            return queue
        if isinstance(answer, Done):
            raise Offline("this peer does not have the queue of pledges yet; try again, or use another peer")
        raise error_of_answer(answer)

    async def _until_held(self, queue: Queue) -> None:
        numbers = range(queue.first_lane, queue.first_lane + queue.lanes)
        deadline = self._host.now() + READY_S
        while not all(number in self._host.node.lanes for number in numbers):
            if self._host.now() > deadline:
                raise Offline("this peer does not hold the lanes of pledges yet; try again, or use another peer")
            await asyncio.sleep(PAUSE_S)

    def _replica(self, name: str) -> LaneReplica:
        if not self._replicas:
            raise Offline("the lanes of pledges are not open on this peer; nothing was changed. Try again")
        return self._replicas[lane_for(name.encode("utf-8", "surrogatepass"), len(self._replicas))]

    # ------------------------------------------------------------------ pledges

    async def insert(self, pledge: Pledge) -> Pledge | None:
        gid = pledge.content.gid
        replica = self._replica(gid)
        ops.id_bytes(gid)
        if replica.find(gid) is not None:
            known = await self.load(gid)
            if known is not None:
                return known
        if len(replica.table.pledges) >= self._pledges_max + self._pledges_max // 4:
            raise TooMany(
                f"a lane has {len(replica.table.pledges)} unfinished pledges, the maximum; nothing was changed. "
                "Try again later, or set pledge_store to a database"
            )
        change = Insert(pledge.content, pledge.progress, pledge.fence, pledge.owner, pledge.lease_until_ms)
        outcome = await replica.operate(change)
        return None if outcome.done or outcome.pledge is None else _shown(replica, outcome.pledge)

    async def load(self, gid: str) -> Pledge | None:
        replica = self._replica(gid)
        await replica.refresh()
        pledge = replica.find(gid)
        return None if pledge is None else _shown(replica, pledge)

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        gid = before.content.gid
        replica = self._replica(gid)
        if progress.created_ms != before.progress.created_ms:
            raise InvalidRequest("the creation time of a pledge cannot be changed; nothing was changed")
        known = replica.find(gid)
        if (known is None or _shown(replica, known).fence != before.fence) and replica.coordinates():
            return None
        change = Swap(gid, progress.created_ms, before.revision, progress, release)
        outcome = await replica.operate(change)
        return _shown(replica, outcome.pledge) if outcome.done and outcome.pledge is not None else None

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        replicas = [replica for replica in self._replicas if replica.up_to_date()]
        for replica in replicas:
            assert replica.due_index is not None, "a coordinator has one"
            replica.due_index.release_gone(self._is_gone)
        claimed: list[Pledge] = []
        while replicas and len(claimed) < limit:
            first = min(replicas, key=_first_due_ms)
            assert first.due_index is not None, "a coordinator has one"
            pledges = first.table.pledges
            pledge = first.due_index.claim_first(
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
        """If another peer coordinates the lane, the pledge is returned without a claim: the swap that stores it as
        held, before its delivery, is refused if another peer was faster."""
        replica = self._replica(gid)
        coordinated = replica.up_to_date()
        kept = replica.table.pledges.get(gid)
        if kept is None:
            return None
        if coordinated and replica.due_index is not None:
            return replica.due_index.claim(kept.pledge, owner=owner, now_ms=now_ms, lease_ms=lease_ms)
        pledge, progress = kept.pledge, kept.pledge.progress
        held = progress.held and progress.next_at_ms > now_ms and not self._is_gone(kept.run)
        free = pledge.status in UNFINISHED and pledge.lease_until_ms <= now_ms and not held
        return pledge if free else None

    async def next_due_ms(self) -> int:
        """For the lanes that this peer coordinates."""
        return min((_first_due_ms(replica) for replica in self._replicas if replica.coordinates()), default=NEVER_MS)

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        """For the lanes that this peer coordinates."""
        forgotten = 0
        for replica in self._replicas:
            if forgotten < limit and replica.coordinates():
                left = limit - forgotten
                forgotten += await compaction.forget(replica, finished_before_ms=finished_before_ms, limit=left)
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
        await asyncio.gather(*[replica.refresh() for replica in self._replicas])

    def _newest(self, place: Place | None) -> Iterator[Pledge]:
        lanes = [replica.table.before(place) for replica in self._replicas]
        return merge(*lanes, key=lambda pledge: (pledge.progress.created_ms, pledge.gid), reverse=True)

    # ------------------------------------------------------------------ topics

    async def load_topic(self, name: str) -> Topic | None:
        replica = self._replica(name)
        await replica.refresh()
        kept = replica.table.topics.get(name)
        return kept.topic if kept is not None and kept.topic.subscribers else None

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        ops.name_bytes(name)
        if await self.load_topic(name) != before:
            return False
        replica = self._replica(name)
        kept = replica.table.topics.get(name)
        if before is None and not subscribers:
            return True
        edition = kept.edition if kept is not None else 0
        outcome = await replica.operate(SwapTopic(name, edition, tuple(subscribers), now_ms))
        return outcome.done

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        limit = _page_size(limit)
        await self._refresh()
        topics = [
            kept.topic for replica in self._replicas for kept in replica.table.topics.values() if kept.topic.subscribers
        ]
        found = sorted((topic for topic in topics if topic.name > position), key=lambda topic: topic.name)
        return found[:limit], found[limit - 1].name if len(found) > limit else ""

    # ------------------------------------------------------------------ length

    def _check_length(self, replica: LaneReplica) -> None:
        lane = self._host.node.lanes.get(replica.number)
        if (
            lane is None
            or replica.number in self._maintenance
            or not replica.coordinates()
            or replica.due_index is None
        ):
            return
        if len(replica.table.pledges) > self._pledges_max and replica.due_index.finished_count:
            self._maintain(replica, self._forget_surplus)
        elif compaction.is_long(replica, trimmed_to=lane.state.trimmed_to, messages_min=self._messages_min):
            self._maintain(replica, self._compact)

    def _maintain(self, replica: LaneReplica, work: Callable[[LaneReplica], Coroutine[Any, Any, None]]) -> None:
        async def maintain() -> None:
            try:
                await work(replica)
            except AvowError as error:
                log.info("compaction of lane %d of pledges failed and will be retried: %s", replica.number, error)

        task = self._maintenance[replica.number] = asyncio.get_running_loop().create_task(maintain())
        task.add_done_callback(lambda _: self._maintenance.pop(replica.number, None))

    async def _forget_surplus(self, replica: LaneReplica) -> None:
        """A tenth more than necessary, so that it is not done for each new pledge."""
        surplus = len(replica.table.pledges) - self._pledges_max + self._pledges_max // 10
        await compaction.forget(replica, finished_before_ms=NEVER_MS, limit=surplus)

    async def _compact(self, replica: LaneReplica) -> None:
        upto = await compaction.compact(self._host, replica)
        self.compactions_count += 1
        log.debug("lane %d of pledges was trimmed to %d", replica.number, upto)

    def statistics(self) -> dict[str, int]:
        total: dict[str, int] = {"compactions": self.compactions_count}
        for replica in self._replicas:
            for name, value in replica.statistics().items():
                total[name] = total.get(name, 0) + value
        return total


def _shown(replica: LaneReplica, pledge: Pledge) -> Pledge:
    """The pledge with its claim. Most have none, and then it does not matter which peer coordinates."""
    shown = replica.due_index.shown(pledge) if replica.due_index is not None else pledge
    return shown if shown is pledge or replica.coordinates() else pledge


def _first_due_ms(replica: LaneReplica) -> int:
    return replica.due_index.first_due_ms() if replica.due_index is not None else NEVER_MS


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
        raise InvalidRequest(f"`limit` must be at least 1, not {limit}; nothing was changed")
    return min(limit, PLEDGE_PAGE_COUNT_MAX)
