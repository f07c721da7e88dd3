"""A coordinator of pledges over one store: its requests. `scheduler` and `delivery` do the work behind them.

Any number of coordinators may share a store, and each of them accepts every request: a request is one compare-and-set
on the pledge, retried after a conflict. A coordinator has no state that the store does not have; pledges prepared here
are cached for a while, only to save a read.

A pledge costs three store operations: insert (prepare), swap (submit), swap (delivered). Between the last two it is
stored as held, so it needs no claim, and its branches are called in the turn of the event loop after the submit was
stored.

A repeated request gets the same answer and runs nothing twice. Refusals are definite.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from uuid import uuid4

from msgspec import Struct

from avow.errors import AvowError, Busy, PledgeDecided, UnknownPledge
from avow.limits import PLEDGE_FRESH_COUNT, PLEDGE_FRESH_SIZE_BYTES
from avow.pledge import state, validation
from avow.pledge.alerts import Alerts
from avow.pledge.branches.calls import Call
from avow.pledge.branches.schemes import Branches
from avow.pledge.delivery import CONFLICTS_MAX, Deliverer
from avow.pledge.endpoints import Endpoints
from avow.pledge.record import UNFINISHED, Content, Many, Pledge, Progress, Submission
from avow.pledge.scheduler import Scheduler
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import Filter, Page, PledgeStore
from avow.pledge.topics import Topics
from avow.pledge.verdicts import Verdict

PAGE_COUNT: Final = 500
_REQUESTS: Final = ("prepare", "submit", "abort", "stop", "retry", "redrive")


class Fresh(Struct, frozen=True, gc=False):
    """A pledge prepared here and not submitted yet. `source`: the bytes of `request`, if known and short."""

    pledge: Pledge
    request: Content
    source: bytes


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Coordinator:
    """Opens nothing before `start`. `now_ms`: the time in stores, the same for all coordinators of a store. `called` is
    called with each call and its verdict."""

    def __init__(
        self,
        store: PledgeStore,
        branches: Branches,
        *,
        settings: PledgeSettings | None = None,
        owner: str = "",
        now_ms: Callable[[], int] = wall_ms,
        jitter: Callable[[], float] = random.random,
        called: Callable[[Call, Verdict], None] = lambda _call, _verdict: None,
    ) -> None:
        self.settings = settings = settings or PledgeSettings()
        self.owner = owner or uuid4().hex
        self._store, self._branches, self._now_ms = store, branches, now_ms
        self._fresh: dict[str, Fresh] = {}
        if settings.alert_webhook:
            branches.check(settings.alert_webhook, protocol="http", checkback=True)
        self._alerts = Alerts(settings, branches.post_alert)
        self._endpoints = Endpoints(settings, jitter=jitter, on_return=self.wake)
        self._deliverer = Deliverer(
            store,
            branches,
            self._endpoints,
            self._alerts,
            settings=settings,
            owner=self.owner,
            now_ms=now_ms,
            jitter=jitter,
            rescheduled=self._rescheduled,
            called=called,
        )
        self._scheduler = Scheduler(
            store, self._deliverer, self._endpoints, settings=settings, owner=self.owner, now_ms=now_ms
        )
        self.topics = Topics(store, now_ms=now_ms, check=lambda url: branches.check(url, protocol=""))
        self.counts = dict.fromkeys(_REQUESTS, 0)

    async def start(self) -> None:
        """The store must be started before."""
        self._scheduler.start()

    async def close(self, *, grace_s: float | None = None) -> None:
        """Calls in flight may finish within `grace_s`. The store stays open."""
        await self._scheduler.close(grace_s=self.settings.request_timeout_s if grace_s is None else grace_s)
        await self._alerts.close()
        await self._branches.close()

    def wake(self) -> None:
        """Check the store for due pledges now."""
        self._scheduler.wake()

    def _rescheduled(self, at_ms: int) -> None:
        self._scheduler.rescheduled(at_ms)

    # ------------------------------------------------------------------------------- prepare, submit, abort

    def prepared_from(self, gid: str, source: bytes | bytearray) -> Content | None:
        """The request that prepared it here, if its bytes were the same: an identical submit need not be decoded,
        checked and compared again."""
        fresh = self._fresh.get(gid)
        return fresh.request if fresh is not None and source and fresh.source == source else None

    async def prepare(self, request: Content, *, source: bytes | bytearray = b"") -> Pledge:
        """`source`: the bytes of the request. Raises InvalidRequest without a checkback, ContentDiffers, PledgeDecided
        if its status is not prepared any more."""
        self.counts["prepare"] += 1
        validation.check(request, self._branches, prepare=True)
        named = validation.names_topic(request)
        known = await self._store.load(request.gid) if named else None
        if known is None:
            content = await validation.expand(request, self.topics) if named else validation.branched(request)
            pledge = Pledge(content, state.begun(content, "prepare", now_ms=self._now_ms(), settings=self.settings))
            known = await self._store.insert(pledge)
            if known is None:
                self._remember(Fresh(pledge, request, bytes(source)))
                self._rescheduled(pledge.progress.next_at_ms)
                return pledge
        state.compare(known.content, request)
        state.move(known.gid, known.status, "prepare")
        return known

    async def submit(self, request: Content, *, on_stored: Callable[[Submission], None] | None = None) -> Submission:
        """With or without a prepare before. Raises ContentDiffers, PledgeDecided if it failed.

        With `wait_result` it returns when each branch was called once, or after a timeout; `delivery` has the result.
        The pledge is submitted in any case.

        If `on_stored` is given it is called once, with the result, and the delivery runs in the caller's task, which
        saves a task: then this returns when nothing is due any more.
        """
        self.counts["submit"] += 1
        fresh = self._fresh.pop(request.gid, None)
        if fresh is not None and fresh.request is request:
            return await self._submit_known(fresh.pledge, request, on_stored, same=True)
        validation.check(request, self._branches, prepare=False)
        known = fresh.pledge if fresh is not None else None
        named = validation.names_topic(request)
        if known is None and named:
            known = await self._store.load(request.gid)
        if known is None:
            content = await validation.expand(request, self.topics) if named else validation.branched(request)
            now_ms = self._now_ms()
            progress = state.begun(content, "submit", now_ms=now_ms, settings=self.settings)
            pledge = Pledge(content, self._as_stored(content, progress, now_ms=now_ms))
            known = await self._store.insert(pledge)
            if known is None:
                return await self._deliver(pledge, progress, request, on_stored)
        return await self._submit_known(known, request, on_stored)

    async def _submit_known(
        self, known: Pledge, request: Content, on_stored: Callable[[Submission], None] | None, *, same: bool = False
    ) -> Submission:
        """`same`: `known` was made from `request`, so they need not be compared."""
        for _ in range(CONFLICTS_MAX):
            if not same:
                state.compare(known.content, request)
            now_ms = self._now_ms()
            progress = state.submitted(known.content, known.progress, request, now_ms=now_ms)
            if progress is known.progress:
                return self._submission(known, on_stored, repeated=True)
            after = await self._store.swap(known, self._as_stored(known.content, progress, now_ms=now_ms))
            if after is not None:
                return await self._deliver(after, progress, request, on_stored)
            known, same = await self.load(request.gid), False
        raise _contended(request.gid)

    async def abort(self, gid: str) -> Pledge:
        """The checkback is called at once and decides. Returns the pledge: failed; or still prepared, if there was no
        verdict in time and the call will be retried. Raises PledgeDecided if it is or was committed, UnknownPledge.
        """
        self.counts["abort"] += 1
        fresh = self._fresh.pop(gid, None)
        known = fresh.pledge if fresh is not None else await self.load(gid)
        for _ in range(CONFLICTS_MAX):
            progress = state.aborted(known.content, known.progress, now_ms=self._now_ms())
            if progress is known.progress:
                return known
            after = await self._store.swap(known, self._deliverer.held(known.content, progress, now_ms=self._now_ms()))
            if after is not None:
                return await self._ask_and_wait(after, progress)
            known = await self.load(gid)
        raise _contended(gid)

    async def _ask_and_wait(self, pledge: Pledge, progress: Progress) -> Pledge:
        decided: asyncio.Future[Pledge | None] = asyncio.get_running_loop().create_future()
        task = self._scheduler.deliver(pledge, progress, decided)
        await asyncio.wait((task, decided), timeout=self.settings.wait_result_s, return_when=asyncio.FIRST_COMPLETED)
        found = decided.result() if decided.done() else None
        current = found or await self.load(pledge.gid)
        if current.status not in ("prepared", "failed"):
            raise PledgeDecided(pledge.gid, status=current.status, event="abort")
        return current

    # ---------------------------------------------------------------------------------------- operations

    async def load(self, gid: str) -> Pledge:
        """Raises UnknownPledge."""
        validation.check_gid(gid)
        pledge = await self._store.load(gid)
        if pledge is None:
            raise UnknownPledge(f"there is no pledge {gid}; nothing was changed")
        return pledge

    async def query(self, gid: str) -> Pledge | None:
        validation.check_gid(gid)
        return await self._store.load(gid)

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        return await self._store.find(wanted, position=position, limit=limit)

    async def stop(self, gid: str, *, reason: str = "") -> Pledge:
        """Deliver nothing more, whatever the transaction's outcome. Raises UnknownPledge, PledgeDecided."""
        self.counts["stop"] += 1
        self._fresh.pop(gid, None)
        return await self._change(
            gid, lambda known: state.stopped(known.content, known.progress, now_ms=self._now_ms(), reason=reason)
        )

    async def retry(self, gid: str) -> Pledge:
        """Make it due now and reset its back-off. Raises UnknownPledge, PledgeDecided."""
        self.counts["retry"] += 1
        return self._hastened(
            await self._change(
                gid,
                lambda known: state.retried(
                    known.content, known.progress, now_ms=self._now_ms(), settings=self.settings
                ),
            )
        )

    async def redrive(self, gid: str) -> Pledge:
        """A dead pledge is delivered again. Raises UnknownPledge, PledgeDecided if it is not dead."""
        self.counts["redrive"] += 1
        return self._hastened(
            await self._change(gid, lambda known: state.redriven(known.content, known.progress, now_ms=self._now_ms()))
        )

    async def retry_waiting(self, *, longer_than_s: float, limit: int) -> Many:
        """Retry the pledges that would wait longer than that, the newest first."""
        from_ms = self._now_ms() + round(1000 * longer_than_s)
        return await self._for_many(
            Filter(statuses=UNFINISHED), lambda pledge: pledge.progress.next_at_ms > from_ms, self.retry, limit
        )

    async def redrive_all(self, wanted: Filter, *, limit: int) -> Many:
        """Redrive the dead pledges that match."""
        dead = Filter(wanted.gid, ("dead",), wanted.created_from_ms, wanted.created_to_ms)
        return await self._for_many(dead, lambda _: True, self.redrive, limit)

    async def take_over(self) -> int:
        """Makes pledges that a dead coordinator held due now. Call it only if no other coordinator uses this store."""
        released, position = 0, ""
        while True:
            page = await self._store.find(Filter(statuses=UNFINISHED), position=position, limit=PAGE_COUNT)
            for pledge in page.pledges:
                progress = state.released(pledge.progress, now_ms=self._now_ms())
                abandoned = pledge.progress.held or pledge.owner not in ("", self.owner)
                if abandoned and await self._store.swap(pledge, progress, release=True):
                    released += 1
            position = page.next_position
            if not position:
                self.wake()
                return released

    def statistics(self) -> dict[str, int]:
        return {
            **{f"requests_{name}": count for name, count in self.counts.items()},
            **self._deliverer.counts,
            **self._scheduler.statistics(),
            **self._endpoints.statistics(),
            **self._alerts.statistics(),
            **self._branches.statistics(),
        }

    # ------------------------------------------------------------------------------------------- details

    async def _change(self, gid: str, change: Callable[[Pledge], Progress]) -> Pledge:
        for _ in range(CONFLICTS_MAX):
            known = await self.load(gid)
            after = await self._store.swap(known, change(known), release=True)
            if after is not None:
                return after
        raise _contended(gid)

    async def _for_many(
        self,
        wanted: Filter,
        chosen: Callable[[Pledge], bool],
        change: Callable[[str], Awaitable[Pledge]],
        limit: int,
    ) -> Many:
        changed, position = 0, ""
        while True:
            page = await self._store.find(wanted, position=position, limit=PAGE_COUNT)
            for pledge in filter(chosen, page.pledges):
                if changed >= limit:
                    return Many(changed, more=True)
                with suppress(PledgeDecided, UnknownPledge):  # it ended or was removed meanwhile
                    await change(pledge.gid)
                    changed += 1
            position = page.next_position
            if not position:
                return Many(changed, more=False)

    def _hastened(self, pledge: Pledge) -> Pledge:
        """A pledge retried by an operator does not wait for its endpoint's next probe."""
        for index in state.due(pledge.content, pledge.progress, now_ms=self._now_ms()):
            url = pledge.content.checkback if index == state.CHECKBACK else pledge.content.branches[index].url
            self._endpoints.hasten(url)
        self._rescheduled(pledge.progress.next_at_ms)
        return pledge

    def _as_stored(self, content: Content, progress: Progress, *, now_ms: int) -> Progress:
        due = state.due(content, progress, now_ms=now_ms)
        return self._deliverer.held(content, progress, now_ms=now_ms) if due else progress

    async def _deliver(
        self, pledge: Pledge, progress: Progress, request: Content, on_stored: Callable[[Submission], None] | None
    ) -> Submission:
        if not pledge.progress.held:
            self._rescheduled(progress.next_at_ms)
            return self._submission(pledge, on_stored)
        waits = request.options.wait_result or pledge.content.options.wait_result
        if on_stored is not None and not waits:
            done = self._submission(pledge)
            await self._scheduler.deliver_here(pledge, progress, lambda: on_stored(done))
            return done
        task = self._scheduler.deliver(pledge, progress)
        if not waits:
            return self._submission(pledge)
        await asyncio.wait((task,), timeout=self.settings.wait_result_s)
        ended = task.done() and not task.cancelled() and task.exception() is None
        delivered = task.result() if ended else None
        if delivered is None:
            with suppress(AvowError):  # it is submitted, even if it cannot be read now
                delivered = await self._store.load(pledge.gid)
        return self._submission(delivered or pledge, on_stored)

    def _submission(
        self, pledge: Pledge, on_stored: Callable[[Submission], None] | None = None, *, repeated: bool = False
    ) -> Submission:
        done = Submission(pledge, state.delivery(pledge.progress, now_ms=self._now_ms()), repeated)
        if on_stored is not None:
            on_stored(done)
        return done

    def _remember(self, fresh: Fresh) -> None:
        size = sum([len(branch.payload) for branch in fresh.pledge.content.branches])
        if size > PLEDGE_FRESH_SIZE_BYTES:
            return
        if size + len(fresh.source) > PLEDGE_FRESH_SIZE_BYTES:
            fresh = Fresh(fresh.pledge, fresh.request, b"")
        self._fresh[fresh.request.gid] = fresh
        if len(self._fresh) > PLEDGE_FRESH_COUNT:
            del self._fresh[next(iter(self._fresh))]


def _contended(gid: str) -> Busy:
    return Busy(f"too many concurrent changes of pledge {gid}; this request changed nothing. Try again")
