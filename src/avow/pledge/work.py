"""The work of a coordinator: what is due is claimed and carried on, many at a time; what waits is looked after.

    wake ── something is due, an endpoint returned, a sweep's time ──► turn:
        1  who waited too long for a place is turned away
        2  what is parked at endpoints with room is claimed and carried: a probe, or all that its return set free
        3  what is due in the store is claimed and carried, batch after batch
        4  now and then, what is finished for long is forgotten

A pledge that is submitted here is carried at once, by a task of its own or by the one that submitted it, without a
claim and without this loop; the loop is for everything that comes later, and for what other coordinators left behind
when they died.

A store that fails is asked again after a pause; nothing is lost by it, because what was not recorded is due again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from avow.errors import AvowError
from avow.pledge.carrier import Carrier, as_claimed
from avow.pledge.endpoints import Endpoints
from avow.pledge.record import NEVER_MS, Pledge, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore

IN_HAND_MAX: Final = 16_384  # carried at a time, also those that wait for a place; no more are claimed beyond
TURN_PAUSE_S: Final = 0.01  # between two turns, so that what becomes due together is claimed together
RELEASE_PAUSE_S: Final = 0.02  # while more is parked than its endpoint has room for
FORGET_INTERVAL_S: Final = 60.0
FORGET_MAX: Final = 1_000
CLAIMS_PER_TURN: Final = 64
SLICE_COUNT: Final = 16

log: Final = logging.getLogger("avow.pledge")


class Work:
    def __init__(
        self,
        store: PledgeStore,
        carrier: Carrier,
        endpoints: Endpoints,
        *,
        settings: PledgeSettings,
        owner: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._carrier, self._endpoints = store, carrier, endpoints
        self._settings, self._owner, self._now_ms = settings, owner, now_ms
        self._tasks: dict[asyncio.Task[Any], str] = {}  # and their gids
        self._carried_gids: dict[str, int] = {}  # how many tasks carry it; two, when a request overtakes a checkback
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wake_at_ms = NEVER_MS
        self._forget_at_s = 0.0
        self.claimed_count = self.store_errors_count = self.forgotten_count = 0

    def start(self) -> None:
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="pledges due")

    async def close(self, *, grace_s: float) -> None:
        """What is being called may end within `grace_s`; the rest is left to its leases."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop_task
        self._endpoints.turn_all_away()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ carrying

    def carry(
        self, pledge: Pledge, progress: Progress, decided: asyncio.Future[Pledge | None] | None = None
    ) -> asyncio.Task[Pledge | None]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(self._carrier.carry(pledge, progress, decided))
        self._take_up(task, pledge.content.gid)
        task.add_done_callback(self._carried)
        return task

    def _carried(self, task: asyncio.Task[Pledge | None]) -> None:
        self._lay_down(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def carry_on(self, pledge: Pledge, progress: Progress, taken_up: Callable[[], None]) -> None:
        """The same in the task that asks, which has nothing else to do: a task less. `taken_up` is called at once, when
        it counts as being carried. Raises nothing but CancelledError."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine is run by a task"
        self._take_up(task, pledge.content.gid)
        try:
            taken_up()
            await self._carrier.carry(pledge, progress)
        except Exception as error:
            self._failed(error)
        finally:
            self._lay_down(task)

    def _take_up(self, task: asyncio.Task[Any], gid: str) -> None:
        self._tasks[task] = gid
        self._carried_gids[gid] = self._carried_gids.get(gid, 0) + 1

    def _lay_down(self, task: asyncio.Task[Any]) -> None:
        gid = self._tasks.pop(task)
        count = self._carried_gids.pop(gid) - 1
        if count:
            self._carried_gids[gid] = count

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, AvowError):
            self.store_errors_count += 1
            log.info("a pledge was not recorded, it will be due again: %s", error)
        else:
            log.error("carrying a pledge failed", exc_info=error)

    def rescheduled(self, at_ms: int) -> None:
        """Something will be due then: wake up in time."""
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
                log.warning("the pledge store failed, it is asked again: %s", error)
                next_ms = NEVER_MS
            except Exception:
                log.exception("a turn of the pledge coordinator failed")
                next_ms = NEVER_MS
            await asyncio.sleep(TURN_PAUSE_S)
            await self._sleep(next_ms)

    async def _sleep(self, next_ms: int) -> None:
        """Until something is due, at most one sweep's time. What was rescheduled during the turn counts too."""
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
        """Returns when the next one is due."""
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
        await self._carry_claimed(claimed)
        return len(claimed)

    async def _carry_claimed(self, claimed: Sequence[Pledge]) -> None:
        """A few in each turn of the event loop: thousands that come due together must not hold up everything else."""
        for start in range(0, len(claimed), SLICE_COUNT):
            now_ms = self._now_ms()
            for pledge in claimed[start : start + SLICE_COUNT]:
                self.claimed_count += 1
                self.carry(pledge, as_claimed(pledge, now_ms=now_ms))
            await asyncio.sleep(0)

    async def _release(self, now_s: float) -> None:
        """Carry what is parked where there is room. At a closed endpoint that is one, its probe."""
        gids: list[str] = []
        for endpoint in self._endpoints.parking():
            for gid in self._endpoints.unpark(endpoint, self._endpoints.room(endpoint, now_s=now_s)):
                if gid in self._carried_gids:  # by this very coordinator, whose lease would not protect it from itself
                    self._endpoints.park(endpoint, gid)
                else:
                    gids.append(gid)
        lease_ms, now_ms = round(1000 * self._settings.lease_s), self._now_ms()
        claims = (self._store.claim_one(gid, owner=self._owner, now_ms=now_ms, lease_ms=lease_ms) for gid in gids)
        await self._carry_claimed([pledge for pledge in await asyncio.gather(*claims) if pledge is not None])

    def _next_probe_ms(self, next_ms: int) -> int:
        """The turn after this one is no later than the next probe, and soon while something is to be released."""
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
