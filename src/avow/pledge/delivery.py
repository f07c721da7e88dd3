"""Delivers one pledge until nothing is due: calls its branches and records the results. One task per pledge at a time.

*Held.* A coordinator that delivers a pledge has claimed it, or has stored it as held until a time by which its call is
over. A call is made only if enough of that time is left; else the time is extended first, by compare-and-set like every
record. So a coordinator that was paused notices it: its record is refused, and it drops the result.

*Recording.* Deliveries in quick succession are recorded together, with the last. After TOGETHER_S the next call waits
for a record, which also shows whether the pledge was stopped. A checkback's verdict, which decides the pledge, is
stored before any branch is called.

*Conflicts.* A record may be refused because a request (submit, abort, stop) changed the pledge meanwhile. Then the
results are applied to the current progress, for which they may be late. If another coordinator has claimed the pledge
they are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from avow.pledge import state
from avow.pledge.alerts import Alerts
from avow.pledge.branches.calls import Call, Caller
from avow.pledge.endpoints import Endpoint, Endpoints
from avow.pledge.record import CallResult, Content, Pledge, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.state import CHECKBACK, CHECKBACK_ID
from avow.pledge.store import PledgeStore
from avow.pledge.verdicts import Verdict, shorten

CONFLICTS_MAX: Final = 16
MARGIN_S: Final = 1.0  # between the end of a call and the end of the time for which its pledge is held
SLACK_S: Final = 1.0  # additional time for which it is held, so that a chain of quick branches is recorded once
TOGETHER_S: Final = 0.2  # the longest time between two records of a chain

log: Final = logging.getLogger("avow.pledge")


class Deliverer:
    """`jitter` returns numbers in [0, 1). `rescheduled` is called with the time at which a pledge becomes due, `called`
    with each call and its verdict."""

    def __init__(
        self,
        store: PledgeStore,
        caller: Caller,
        endpoints: Endpoints,
        alerts: Alerts,
        *,
        settings: PledgeSettings,
        owner: str,
        now_ms: Callable[[], int],
        jitter: Callable[[], float],
        rescheduled: Callable[[int], None],
        called: Callable[[Call, Verdict], None],
    ) -> None:
        self._store, self._caller, self._endpoints, self._alerts = store, caller, endpoints, alerts
        self._settings, self._owner = settings, owner
        self._now_ms, self._jitter, self._rescheduled, self._called = now_ms, jitter, rescheduled, called
        self._loop: asyncio.AbstractEventLoop | None = None
        self.counts = dict.fromkeys(("calls", "checkbacks", "delivered", "not_delivered", "put_back", "lost"), 0)

    def held(self, content: Content, progress: Progress, *, now_ms: int) -> Progress:
        until_ms = now_ms + self._need_ms(content, progress) + round(1000 * SLACK_S)
        return state.held(progress, until_ms=until_ms)

    def _now_s(self) -> float:
        """The loop's time. The loop is cached, because getting it costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def _need_ms(self, content: Content, progress: Progress) -> int:
        timeout_s = state.options_of(content, progress).request_timeout_s or self._settings.request_timeout_s
        return round(1000 * (self._settings.waiting_s + timeout_s + MARGIN_S))

    # ----------------------------------------------------------------------------------------- delivering

    async def deliver(
        self, pledge: Pledge, progress: Progress, decided: asyncio.Future[Pledge | None] | None = None
    ) -> Pledge | None:
        """`pledge`: as stored, held or claimed; `progress`: its actual progress. None: another coordinator has it.

        `decided` gets the pledge when the verdict of its checkback is recorded.
        """
        content = pledge.content
        unrecorded: list[CallResult] = []
        refused_by: list[Endpoint] = []
        now_ms = recorded_ms = self._now_ms()
        while indexes := state.due(content, progress, now_ms=now_ms):
            stale = unrecorded and now_ms > recorded_ms + 1000 * TOGETHER_S
            if stale or not self._is_held(pledge, progress, now_ms=now_ms):
                after = await self._store.swap(pledge, self.held(content, progress, now_ms=now_ms))
                if after is None:
                    return await self._reconcile(pledge, unrecorded)
                pledge, unrecorded, recorded_ms = after, [], self._now_ms()
            if len(indexes) == 1:
                outcome = await self._call(content, progress, indexes[0])
                results, refused_by = ([outcome], []) if isinstance(outcome, CallResult) else ([], [outcome])
            else:
                results, refused_by = await self._call_all(content, progress, indexes)
            now_ms = self._now_ms()
            progress = self._apply(content, progress, results, refused_by, now_ms=now_ms)
            unrecorded += results
            if indexes[0] == CHECKBACK:
                recorded, continues = await self._record_decision(pledge, progress, unrecorded)
                if decided is not None and not decided.done():  # it is if the checkback was called again at once
                    decided.set_result(recorded)
                if recorded is None or not continues:
                    self._park(content.gid, refused_by)
                    return recorded
                pledge, unrecorded, now_ms = recorded, [], self._now_ms()
        after = await self._record(pledge, progress, unrecorded)
        self._park(content.gid, refused_by)
        return after

    def _park(self, gid: str, refused_by: list[Endpoint]) -> None:
        """Call it only after the record: a parked pledge may be claimed at any moment."""
        for endpoint in refused_by:
            self._endpoints.park(endpoint, gid)

    def _is_held(self, pledge: Pledge, progress: Progress, *, now_ms: int) -> bool:
        until_ms = pledge.lease_until_ms if pledge.owner == self._owner else 0
        if pledge.progress.held:
            until_ms = max(until_ms, pledge.progress.next_at_ms)
        return until_ms >= now_ms + self._need_ms(pledge.content, progress)

    def _apply(
        self,
        content: Content,
        progress: Progress,
        results: list[CallResult],
        refused_by: list[Endpoint],
        *,
        now_ms: int,
    ) -> Progress:
        before = progress
        if results:
            progress = state.apply_results(
                content, progress, results, now_ms=now_ms, jitter=self._jitter(), settings=self._settings
            )
        if refused_by and state.due(content, progress, now_ms=now_ms):
            progress = self._put_back(content, progress, refused_by[0], now_ms=now_ms)
        self._alerts.consider(content, before, progress)
        return progress

    def _put_back(self, content: Content, progress: Progress, endpoint: Endpoint, *, now_ms: int) -> Progress:
        self.counts["put_back"] += 1
        return state.put_back(
            content,
            progress,
            shorten(endpoint.reason),
            now_ms=now_ms,
            jitter=self._jitter(),
            settings=self._settings,
        )

    # -------------------------------------------------------------------------------------------- calls

    async def _call_all(
        self, content: Content, progress: Progress, indexes: tuple[int, ...]
    ) -> tuple[list[CallResult], list[Endpoint]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call(content, progress, index)) for index in indexes]
        outcomes = [task.result() for task in tasks]
        results = [outcome for outcome in outcomes if isinstance(outcome, CallResult)]
        return results, [outcome for outcome in outcomes if isinstance(outcome, Endpoint)]

    async def _call(self, content: Content, progress: Progress, index: int) -> CallResult | Endpoint:
        """The result, or the endpoint if it could not be called."""
        call = self._call_of(content, progress, index)
        endpoint = self._endpoints.of(call.url)
        entered = self._endpoints.enter(endpoint, now_s=self._now_s())
        if not (entered if isinstance(entered, bool) else await self._admission(endpoint, entered)):
            return endpoint
        at_ms, returns = self._now_ms(), endpoint.returns_count
        try:
            verdict = await self._caller(call)
        except asyncio.CancelledError:
            self._endpoints.withdraw(endpoint)
            raise
        except Exception as error:
            log.exception("internal error in the call of %s for pledge %s; it will be retried", call.url, call.gid)
            verdict = Verdict("ERROR", shorten(f"{type(error).__name__}: {error}"))
        self._endpoints.leave(
            endpoint,
            reached=verdict.reached,
            gid=call.gid,
            error=verdict.text,
            now_s=self._now_s(),
            returns=returns,
        )
        self._count(call, verdict)
        return CallResult(index, verdict.result, at_ms, max(0, self._now_ms() - at_ms), verdict.text)

    async def _admission(self, endpoint: Endpoint, admitted: asyncio.Future[bool]) -> bool:
        try:
            return await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.result():  # in the same turn
                self._endpoints.withdraw(endpoint)
            raise

    def _call_of(self, content: Content, progress: Progress, index: int) -> Call:
        options = state.options_of(content, progress)
        timeout_s = options.request_timeout_s or self._settings.request_timeout_s
        if index == CHECKBACK:
            return Call(
                url=content.checkback,
                gid=content.gid,
                branch_id=CHECKBACK_ID,
                timeout_s=timeout_s,
                headers=options.branch_headers,
                protocol=content.protocol,
                checkback=True,
                prepared_ms=progress.created_ms,
            )
        branch = content.branches[index]
        return Call(
            url=branch.url,
            gid=content.gid,
            branch_id=branch.branch_id,
            timeout_s=timeout_s,
            payload=branch.payload,
            key=branch.key,
            headers=options.branch_headers,
            protocol=content.protocol,
            since_ms=max(progress.created_ms, progress.not_before_ms),
        )

    def _count(self, call: Call, verdict: Verdict) -> None:
        self._called(call, verdict)
        self.counts["calls"] += 1
        if call.checkback:
            self.counts["checkbacks"] += 1
        else:
            self.counts["delivered" if verdict.result == "SUCCESS" else "not_delivered"] += 1

    # ---------------------------------------------------------------------------------------- recording

    async def _record_decision(
        self, pledge: Pledge, progress: Progress, results: list[CallResult]
    ) -> tuple[Pledge | None, bool]:
        """The recorded pledge, and whether branches follow at once; then it is still held."""
        if not state.due(pledge.content, progress, now_ms=self._now_ms()):
            return await self._record(pledge, progress, results), False
        after = await self._store.swap(pledge, self.held(pledge.content, progress, now_ms=self._now_ms()))
        if after is None:
            return await self._reconcile(pledge, results), False
        return after, True

    async def _record(self, pledge: Pledge, progress: Progress, results: list[CallResult]) -> Pledge | None:
        after = await self._store.swap(pledge, progress, release=True)
        if after is None:
            return await self._reconcile(pledge, results)
        if progress.status in ("prepared", "submitted"):
            self._rescheduled(progress.next_at_ms)
        return after

    async def _reconcile(self, pledge: Pledge, results: list[CallResult]) -> Pledge | None:
        """The pledge was changed meanwhile. Apply the results to its current progress, unless it was claimed."""
        for _ in range(CONFLICTS_MAX):
            current = await self._store.load(pledge.gid)
            if current is None or current.fence != pledge.fence:
                self.counts["lost"] += 1
                return None
            if not results:
                return current
            progress = state.apply_results(
                current.content,
                current.progress,
                results,
                now_ms=self._now_ms(),
                jitter=self._jitter(),
                settings=self._settings,
            )
            if progress is current.progress:
                return current
            after = await self._store.swap(current, progress, release=True)
            if after is not None:
                self._rescheduled(progress.next_at_ms)
                return after
        self.counts["lost"] += 1
        return None


def as_claimed(pledge: Pledge, *, now_ms: int) -> Progress:
    """The actual progress of a claimed pledge: due now, unless its branches have a later time."""
    not_before_ms = pledge.progress.not_before_ms if pledge.status == "submitted" else 0
    return replace(pledge.progress, next_at_ms=max(now_ms, not_before_ms), held=False)
