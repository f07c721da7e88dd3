"""Schedules the deliveries of a coordinator: claims pledges that are due and runs many deliveries at a time.

    wake ── a pledge is due, an endpoint answers again, or a sweep interval has passed ──► turn:
        1  calls that have waited too long for their endpoint are refused
        2  pledges parked at endpoints with room are claimed and delivered: a probe, or all that a return released
        3  pledges due in the store are claimed and delivered, batch by batch
        4  periodically, pledges that finished long ago are removed

A pledge that is submitted here is delivered at once, in its own task or in the one that submitted it, without a claim
and without this loop. The loop is for everything that becomes due later, and for pledges of crashed coordinators.

A failed store operation is retried after a pause. Nothing is lost: a pledge whose result was not recorded is due again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from avow.errors import AvowError
from avow.pledge.delivery import Deliverer, as_claimed
from avow.pledge.endpoints import Endpoints
from avow.pledge.record import NEVER_MS, Pledge, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore

IN_HAND_MAX: Final = 16_384  # deliveries at a time, including those that wait for an endpoint; no more are claimed
TURN_PAUSE_S: Final = 0.01  # between two turns, so that pledges due at about the same time are claimed together
RELEASE_PAUSE_S: Final = 0.02  # between turns while more pledges are parked than their endpoints have room for
FORGET_INTERVAL_S: Final = 60.0
FORGET_MAX: Final = 1_000
CLAIMS_PER_TURN: Final = 64
SLICE_COUNT: Final = 16

log: Final = logging.getLogger("avow.pledge")


class Scheduler:
    def __init__(
        self,
        store: PledgeStore,
        deliverer: Deliverer,
        endpoints: Endpoints,
        *,
        settings: PledgeSettings,
        owner: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._deliverer, self._endpoints = store, deliverer, endpoints
        self._settings, self._owner, self._now_ms = settings, owner, now_ms
        self._tasks: dict[asyncio.Task[Any], str] = {}  # the running deliveries and their gids
        self._running_gids: dict[str, int] = {}  # number of tasks; two if a request overtakes a checkback
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wake_at_ms = NEVER_MS
        self._forget_at_s = 0.0
        self.claimed_count = self.store_errors_count = self.forgotten_count = 0

    def start(self) -> None:
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="pledges due")

    async def close(self, *, grace_s: float) -> None:
        """Calls in flight may finish within `grace_s`; the other pledges are due again when their leases end."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop_task
        self._endpoints.refuse_all_waiting()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ deliveries

    def deliver(
        self, pledge: Pledge, progress: Progress, decided: asyncio.Future[Pledge | None] | None = None
    ) -> asyncio.Task[Pledge | None]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(self._deliverer.deliver(pledge, progress, decided))
        self._register(task, pledge.content.gid)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Pledge | None]) -> None:
        self._unregister(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def deliver_here(self, pledge: Pledge, progress: Progress, on_registered: Callable[[], None]) -> None:
        """Deliver in the caller's task, which saves a task. `on_registered` is called at once, when the delivery is
        registered. Raises only CancelledError."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._register(task, pledge.content.gid)
        try:
            on_registered()
            await self._deliverer.deliver(pledge, progress)
        except Exception as error:
            self._failed(error)
        finally:
            self._unregister(task)

    def _register(self, task: asyncio.Task[Any], gid: str) -> None:
        self._tasks[task] = gid
        self._running_gids[gid] = self._running_gids.get(gid, 0) + 1

    def _unregister(self, task: asyncio.Task[Any]) -> None:
        gid = self._tasks.pop(task)
        count = self._running_gids.pop(gid) - 1
        if count:
            self._running_gids[gid] = count

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, AvowError):
            self.store_errors_count += 1
            log.info("a delivery was not recorded; the pledge will be due again: %s", error)
        else:
            log.error("internal error in a delivery; the pledge will be due again", exc_info=error)

    def rescheduled(self, at_ms: int) -> None:
        """A pledge is due at that time: wake up then."""
        if at_ms < self._wake_at_ms:
            self._wake_at_ms = at_ms
            self._woken.set()

    def wake(self) -> None:
        self.rescheduled(0)

    # ---------------------------------------------------------------------------------------------- turns

    async def _run(self) -> None:
        while True:
            try:
                next_ms = await self._turn()
            except AvowError as error:
                self.store_errors_count += 1
                log.warning("an operation of the pledge store failed and will be retried: %s", error)
                next_ms = NEVER_MS
            except Exception:
                log.exception("internal error in the pledge scheduler; it continues")
                next_ms = NEVER_MS
            await asyncio.sleep(TURN_PAUSE_S)
            await self._sleep(next_ms)

    async def _sleep(self, next_ms: int) -> None:
        """Until a pledge is due, at most `sweep_s`. Pledges rescheduled during the turn count too."""
        self._wake_at_ms = min(self._wake_at_ms, next_ms)
        longest_s = self._settings.sweep_s
        while True:
            self._woken.clear()
            wait_s = min(longest_s, (self._wake_at_ms - self._now_ms()) / 1000)
            if wait_s <= 0:
                break
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                break
        self._wake_at_ms = NEVER_MS

    async def _turn(self) -> int:
        """Returns the time at which the next pledge is due."""
        now_s = asyncio.get_running_loop().time()
        self._endpoints.sweep(now_s)
        await self._release(now_s)
        for _ in range(CLAIMS_PER_TURN):
            limit = min(self._settings.claim_max, IN_HAND_MAX - len(self._tasks))
            if limit <= 0 or await self._claim(limit) < limit:
                break
        if now_s >= self._forget_at_s:
            await self._forget(now_s)
        return self._next_probe_ms(min(await self._store.next_due_ms(), NEVER_MS))

    async def _claim(self, limit: int) -> int:
        lease_ms = round(1000 * self._settings.lease_s)
        claimed = await self._store.claim(owner=self._owner, now_ms=self._now_ms(), lease_ms=lease_ms, limit=limit)
        await self._deliver_claimed(claimed)
        return len(claimed)

    async def _deliver_claimed(self, claimed: Sequence[Pledge]) -> None:
        """A few per turn of the event loop: thousands that are due together must not block everything else."""
        for start in range(0, len(claimed), SLICE_COUNT):
            now_ms = self._now_ms()
            for pledge in claimed[start : start + SLICE_COUNT]:
                self.claimed_count += 1
                self.deliver(pledge, as_claimed(pledge, now_ms=now_ms))
            await asyncio.sleep(0)

    async def _release(self, now_s: float) -> None:
        """Deliver parked pledges where there is room. At a closed endpoint that is one, the probe."""
        gids: list[str] = []
        for endpoint in self._endpoints.parking():
            for gid in self._endpoints.unpark(endpoint, self._endpoints.room(endpoint, now_s=now_s)):
                if gid in self._running_gids:  # by this coordinator, against whose own tasks a lease does not protect
                    self._endpoints.park(endpoint, gid)
                else:
                    gids.append(gid)
        lease_ms, now_ms = round(1000 * self._settings.lease_s), self._now_ms()
        claims = (self._store.claim_one(gid, owner=self._owner, now_ms=now_ms, lease_ms=lease_ms) for gid in gids)
        await self._deliver_claimed([pledge for pledge in await asyncio.gather(*claims) if pledge is not None])

    def _next_probe_ms(self, next_ms: int) -> int:
        """Time of the next turn: no later than the next probe, and soon while parked pledges wait to be released."""
        now_s = asyncio.get_running_loop().time()
        for endpoint in self._endpoints.parking():
            wait_s = endpoint.probe_at_s - now_s if endpoint.closed else RELEASE_PAUSE_S
            if not endpoint.probing:
                next_ms = min(next_ms, self._now_ms() + max(0, round(1000 * wait_s)))
        return next_ms

    async def _forget(self, now_s: float) -> None:
        before_ms = self._now_ms() - round(1000 * self._settings.kept_s)
        forgotten = await self._store.forget(finished_before_ms=max(0, before_ms), limit=FORGET_MAX)
        self.forgotten_count += forgotten
        self._forget_at_s = now_s if forgotten == FORGET_MAX else now_s + FORGET_INTERVAL_S

    def statistics(self) -> dict[str, int]:
        return {
            "in_hand": len(self._tasks),
            "claimed": self.claimed_count,
            "forgotten": self.forgotten_count,
            "store_errors": self.store_errors_count,
        }
