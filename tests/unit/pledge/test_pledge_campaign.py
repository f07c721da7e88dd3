"""Delivered if and only if committed: coordinators that die, a store that fails, services that lie in wait, at random.

Each seed is one run in virtual time: clients prepare, run transactions behind a barrier, submit, abort or vanish at any
step; coordinators are cut off in the middle of calls and replaced; the store answers late, refuses, or performs and
loses its answer; branches take effect and lose theirs. At the end every pledge is decided, and rightly.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import pytest
from msgspec.structs import replace
from tests.unit.pledge.pledge_world import now_ms, run

from avow.errors import AvowError, Offline, Refused, Unknown
from avow.pledge.branches.calls import Call
from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Content, Options, Pledge, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.state import MOVES
from avow.pledge.store import Filter
from avow.pledge.stores.memory import MemoryStore
from avow.pledge.verdicts import SUCCESS, Verdict, unreached

SEEDS = int(os.environ.get("AVOW_PLEDGE_SEEDS", "40"))
PLEDGES = 25
STEPS = ("http://a/in", "http://b/in", "http://c/in")
FORWARD = {(before, after) for (before, _), after in MOVES.items()}
T = TypeVar("T")


class ShakyStore(MemoryStore):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.calm = False

    async def shaken(self, perform: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.01, 0.3)))
        dice = self.chance.random()
        if not self.calm and dice < 0.03:
            raise Offline("the store is away; nothing was changed")
        result = await perform()
        await asyncio.sleep(self.chance.choice((0.0, 0.001)))
        if not self.calm and dice > 0.97:
            raise Unknown("no answer came")
        return result

    async def insert(self, pledge: Pledge) -> Pledge | None:
        return await self.shaken(lambda: MemoryStore.insert(self, pledge))

    async def load(self, gid: str) -> Pledge | None:
        return await self.shaken(lambda: MemoryStore.load(self, gid))

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        return await self.shaken(lambda: MemoryStore.swap(self, before, progress, release=release))

    def _keep(self, pledge: Pledge) -> None:
        """Nothing that is stored goes back: no status against the table, no delivery undone."""
        known = self._pledges.get(pledge.gid)
        if known is not None:
            assert (known.status, pledge.status) in FORWARD, (known, pledge)
            done = zip(known.progress.branches, pledge.progress.branches, strict=True)
            assert all(after.status == "succeeded" for before, after in done if before.status == "succeeded")
        super()._keep(pledge)

    async def claim(self, **given: Any) -> list[Pledge]:
        return await self.shaken(lambda: MemoryStore.claim(self, **given))

    async def claim_one(self, gid: str, **given: Any) -> Pledge | None:
        return await self.shaken(lambda: MemoryStore.claim_one(self, gid, **given))


class Bank:
    """The services and their database: barrier rows and effects of branches."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.barrier: dict[str, Literal["open", "committed", "rollback"]] = {}
        self.effects: Counter[tuple[str, str]] = Counter()
        self.order: dict[str, list[str]] = {}
        self.calm = False
        self.dead: set[str] = set()  # hosts

    async def answer(self, call: Call) -> Verdict:
        await asyncio.sleep(self.chance.choice((0.001, 0.01, 0.5, 2.9)))
        if call.url.split("/")[2] in self.dead:
            return unreached("connection refused")
        dice = 1.0 if self.calm else self.chance.random()
        if dice < 0.1:
            return unreached("connection refused")
        if dice < 0.2:
            return Verdict("ERROR", "HTTP 500")
        verdict = self.checkback(call.gid) if call.checkback else self.branch(call, dice)
        return unreached("the answer was lost") if dice > 0.9 and not self.calm else verdict

    def checkback(self, gid: str) -> Verdict:
        found = self.barrier.setdefault(gid, "rollback")
        if found == "open":
            return Verdict("ONGOING", "in progress")
        return SUCCESS if found == "committed" else Verdict("FAILURE", "rolled back")

    def branch(self, call: Call, dice: float) -> Verdict:
        if dice < 0.3:
            return Verdict("ONGOING", "wait")
        assert self.barrier.get(call.gid) == "committed", f"{call.gid} was delivered without a commit"
        self.effects[call.gid, call.branch_id] += 1
        self.order.setdefault(call.gid, []).append(call.branch_id)
        return SUCCESS

    def begin(self, gid: str) -> bool:
        if gid in self.barrier:
            return False
        self.barrier[gid] = "open"
        return True


class Services(Branches):
    def __init__(self, bank: Bank) -> None:
        super().__init__()
        self.bank = bank

    async def __call__(self, call: Call) -> Verdict:
        return await self.bank.answer(call)


class Run:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = ShakyStore(self.chance)
        self.bank = Bank(self.chance)
        self.coordinators: list[Coordinator] = []
        self.committed: set[str] = set()

    async def start_coordinator(self) -> None:
        settings = PledgeSettings(
            timeout_to_fail_s=5.0,
            retry_interval_s=1.0,
            backoff_max_s=8.0,
            lease_s=6.0,
            waiting_s=1.0,
            calls_per_endpoint_max=2,
            waiting_per_endpoint_max=2,
            endpoint_failures=3,
            probe_interval_max_s=4.0,
        )
        made = Coordinator(self.store, Services(self.bank), settings=settings, now_ms=now_ms, jitter=self.chance.random)
        await made.start()
        self.coordinators.append(made)

    async def any_coordinator(self, ask: Callable[[Coordinator], Awaitable[T]]) -> T | None:
        """Retried a few times at any peer unless the error is definite. None: refused or given up."""
        for _ in range(4):
            try:
                return await ask(self.chance.choice(self.coordinators))
            except Refused as refused:
                if not refused.retriable:
                    return None
            except AvowError:
                pass
            await asyncio.sleep(self.chance.random())
        return None

    async def client(self, number: int) -> None:
        chance, gid = self.chance, f"g{number}"
        await asyncio.sleep(chance.choice((1, 60)) * chance.random())
        steps = tuple((url, b"{}") for url in STEPS[: chance.randint(1, 3)])
        options = Options(concurrent=chance.random() < 0.3, delay_s=chance.choice((0.0, 0.0, 7.0)))
        request = Content(gid, steps=steps, checkback="http://bank/checkback", options=options)
        if await self.any_coordinator(lambda one: one.prepare(request)) is None:
            return  # it does not begin what it could not prepare
        if chance.random() < 0.1:
            return  # killed before the transaction
        await asyncio.sleep(chance.choice((0.0, 0.01, 10.0)))
        if not self.bank.begin(gid):
            return  # the checkback was first
        await asyncio.sleep(chance.choice((0.0, 0.01, 1.0, 20.0)))
        if chance.random() < 0.3:
            self.bank.barrier[gid] = "rollback"
            if chance.random() < 0.7:
                await self.any_coordinator(lambda one: one.abort(gid))
            return
        self.bank.barrier[gid] = "committed"
        self.committed.add(gid)
        if chance.random() < 0.3:
            return  # killed after the commit
        if chance.random() < 0.1:
            await self.any_coordinator(lambda one: one.abort(gid))  # a client that is mistaken
        wanted = replace(request, options=replace(options, wait_result=chance.random() < 0.3))
        await self.any_coordinator(lambda one: one.submit(wanted))

    async def killer(self) -> None:
        for _ in range(12):
            await asyncio.sleep(self.chance.random() * 12)
            victim = self.coordinators.pop(self.chance.randrange(len(self.coordinators)))
            await victim.close(grace_s=0.0)
            await self.start_coordinator()

    async def outages(self) -> None:
        for _ in range(6):
            await asyncio.sleep(self.chance.random() * 10)
            self.bank.dead = set(self.chance.sample(["a", "b", "c", "bank"], self.chance.randint(0, 3)))
            await asyncio.sleep(self.chance.random() * 20)
            self.bank.dead = set()

    async def people(self) -> None:
        for _ in range(30):
            await asyncio.sleep(self.chance.random() * 5)
            gid = f"g{self.chance.randrange(PLEDGES)}"
            with suppress(AvowError):
                await self.chance.choice(self.coordinators).retry(gid)

    async def play(self) -> None:
        for _ in range(3):
            await self.start_coordinator()
        clients = [self.client(number) for number in range(PLEDGES)]
        await asyncio.gather(*clients, self.killer(), self.people(), self.outages())
        self.store.calm = self.bank.calm = True
        await self.settled()
        self.check()
        for one in self.coordinators:
            await one.close()

    async def settled(self) -> None:
        for _ in range(1000):
            await asyncio.sleep(1.0)
            page = await self.store.find(Filter(statuses=("prepared", "submitted")), limit=1)
            if not page.pledges:
                return
        raise AssertionError(f"never decided: {page.pledges}")

    def check(self) -> None:
        known = self.store._pledges
        assert self.committed <= known.keys()
        for gid, pledge in known.items():
            delivered = {branch_id for one, branch_id in self.effects() if one == gid}
            if gid in self.committed:
                assert pledge.status == "succeeded", pledge
                assert delivered == {branch.branch_id for branch in pledge.content.branches}
            else:
                assert pledge.status == "failed", pledge
                assert not delivered
            if not pledge.content.options.concurrent:
                self.check_order(gid)

    def effects(self) -> list[tuple[str, str]]:
        return list(self.bank.effects)

    def check_order(self, gid: str) -> None:
        """First deliveries are in the order of the steps, whatever is repeated."""
        firsts = list(dict.fromkeys(self.bank.order.get(gid, [])))
        assert firsts == sorted(firsts)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_pledge_is_delivered_if_and_only_if_it_was_committed(seed: int) -> None:
    run(Run(seed).play)
