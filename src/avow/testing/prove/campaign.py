"""A whole campaign: start peers, let sessions loose, break things, heal, wait for silence, read everything, judge.

Sessions, faults and the progress line share one event loop; whatever blocks runs in threads. The order at the end
matters: first no more faults, then no more writes, then the cluster becomes whole, then it is read. Not becoming whole
is a finding of its own: a cluster that stays broken after everything was healed may have lost nothing and is useless.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.client import Client, connect
from avow.errors import Offline
from avow.testing.prove.checker import check
from avow.testing.prove.faults import KINDS, Faults
from avow.testing.prove.findings import Findings
from avow.testing.prove.ground import Ground
from avow.testing.prove.history import FinalLane, History, Op, Outcome
from avow.testing.prove.namespaces import why_not
from avow.testing.prove.session import PLANS, Plan, Session
from avow.testing.prove.timeline import draw, timeline_of
from avow.testing.prove.verdict import (
    Verdict,
    acknowledged_of,
    bands_of,
    counts_of,
    gaps_of,
    operations_of,
    refusals_of,
    resumed_of,
)

CLIENT_TIMEOUT_S: Final = 8.0
SESSIONS_PER_QUEUE: Final = 4
QUIET_S: Final = 60.0
PROGRESS_S: Final = 0.5
TROUBLES_KEPT: Final = 20


class Options(Struct, frozen=True, kw_only=True):
    """`folder` empty: a temporary one, removed after a clean verdict unless `keep`. `plot` empty: none."""

    seconds: float = 60.0
    peers: int = 3
    seed: int = 1
    faults: tuple[str, ...] = KINDS
    strategy: str = ""  # of the queues; empty: both
    network: str = "auto"  # auto, proxy or namespaces
    folder: str = ""
    keep: bool = False
    plot: str = ""


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    done: int
    refused: int
    unknown: int
    fault: str
    faults: int


Report: TypeAlias = Callable[[Progress], None]
Script: TypeAlias = Callable[[Faults], Awaitable[None]]


async def prove(options: Options, *, report: Report = lambda _: None, script: Script | None = None) -> Verdict:
    """Run a campaign, or what a script does instead of random faults. Raises AvowError when it cannot even begin."""
    campaign = Campaign(options, report, script)
    try:
        return await campaign.run()
    finally:
        await asyncio.to_thread(campaign.close)


class Campaign:
    def __init__(self, options: Options, report: Report, script: Script | None) -> None:
        self._options, self._report, self._script = options, report, script
        folder = Path(options.folder) if options.folder else None
        network, self._network_note = choose_network(options.network)
        self._ground = Ground(peers=options.peers, folder=folder, network=network)
        if options.keep:
            self._ground.temporary = False
        self._history = History(time.monotonic_ns, path=self._ground.folder / "history.jsonl")
        self._plans = [plan for plan in PLANS if options.strategy in ("", plan.strategy)]
        self._troubles: list[str] = []
        self._stopping = asyncio.Event()
        self._phase = "starting peers"
        self._start_ns = self._stop_ns = time.monotonic_ns()
        lanes = [
            (plan.name, lane) for plan in self._plans if plan.strategy == "two-phase" for lane in range(plan.lanes)
        ]
        self._faults = Faults(
            self._ground, kinds=options.faults, seed=options.seed, lanes=lanes, clock_ns=time.monotonic_ns
        )

    def close(self) -> None:
        self._history.close()
        self._ground.close()

    async def run(self) -> Verdict:
        watching = asyncio.create_task(self._watch(), name="progress")
        try:
            await asyncio.to_thread(self._ground.start)
            await self._put_under_load()
            stuck = await self._settle()
            self._phase = "reading every lane from every peer"
            final = await asyncio.to_thread(read_everything, self._ground, self._plans)
            self._phase = "checking"
            findings = await asyncio.to_thread(check, self._history.ops, final)
        finally:
            watching.cancel()
        return await asyncio.to_thread(self._judge, findings, stuck)

    # ------------------------------------------------------------------ under load

    async def _put_under_load(self) -> None:
        async with AsyncExitStack() as clients:
            sessions = await self._sessions(clients)
            self._start_ns = time.monotonic_ns()
            running = [
                asyncio.create_task(session.run(self._stopping), name=f"session {session.number}")
                for session in sessions
            ]
            deadline = time.monotonic() + self._options.seconds
            self._phase = "under load"
            try:
                if self._script is not None:
                    await self._script(self._faults)
                elif self._options.faults:
                    await self._faults.run(lambda: time.monotonic() >= deadline)
                while time.monotonic() < deadline and not self._faults.stuck:
                    await asyncio.sleep(0.05)
            finally:
                self._stop_ns = time.monotonic_ns()
                self._phase = "letting sessions finish"
                self._stopping.set()
                await _finish(running)

    async def _sessions(self, clients: AsyncExitStack) -> list[Session]:
        first = await clients.enter_async_context(await self._connect())
        for plan in self._plans:
            await first.create_queue(plan.name, strategy=plan.strategy, lanes=plan.lanes)
        sessions = []
        for number in range(SESSIONS_PER_QUEUE * len(self._plans)):
            client = await clients.enter_async_context(await self._connect())
            plan = self._plans[number % len(self._plans)]
            sessions.append(
                Session(number, plan, client, self._history, seed=self._options.seed, troubles=self._troubles)
            )
        return sessions

    async def _connect(self) -> Client:
        cluster = self._ground.cluster
        return await connect(
            cluster.addresses, token=cluster.token or None, ca=cluster.ca or None, timeout_s=CLIENT_TIMEOUT_S
        )

    async def _settle(self) -> str:
        self._phase = "waiting until the cluster is whole"
        if self._faults.stuck:
            return self._faults.stuck
        missing = await asyncio.to_thread(self._ground.wait_whole)
        return missing or await asyncio.to_thread(wait_quiet, self._ground, self._plans)

    async def _watch(self) -> None:
        seen = 0
        counts: Counter[Outcome] = Counter()
        waiting: list[Op] = []
        while True:
            waiting += self._history.ops[seen:]
            seen = len(self._history.ops)
            counts.update(op.outcome for op in waiting if op.outcome)
            waiting = [op for op in waiting if not op.outcome]
            self._report(
                Progress(
                    (time.monotonic_ns() - self._start_ns) / 1e9,
                    self._phase,
                    counts[Outcome.DONE],
                    counts[Outcome.REFUSED],
                    counts[Outcome.UNKNOWN],
                    self._faults.current,
                    len(self._faults.performed),
                )
            )
            await asyncio.sleep(PROGRESS_S)

    # ------------------------------------------------------------------ the verdict

    def _judge(self, findings: Findings, stuck: str) -> Verdict:
        ops, faults = self._history.ops, self._faults.performed
        checked, violations = counts_of(findings)
        notes = [self._network_note] if self._network_note else []
        if self._ground.disks_note and "filled" in self._options.faults:
            notes.append(self._ground.disks_note)
        if self._ground.network.note and "slow" in self._options.faults:
            notes.append(self._ground.network.note)
        verdict = Verdict(
            seed=self._options.seed,
            peers=self._options.peers,
            duration_s=(self._stop_ns - self._start_ns) / 1e9,
            network=self._ground.network.kind,
            operations=operations_of(ops),
            refusals=refusals_of(ops),
            acknowledged=acknowledged_of(ops),
            checked=checked,
            violations=violations,
            findings=findings.kept,
            faults=faults,
            gaps=gaps_of(ops, faults, start_ns=self._start_ns, end_ns=self._stop_ns),
            resumed=resumed_of(ops, faults, start_ns=self._start_ns),
            notes=notes,
            troubles=self._troubles[:TROUBLES_KEPT],
            stuck=stuck,
            plot=self._options.plot,
        )
        if not verdict.clean:
            self._ground.temporary = False  # whoever looks for the reason needs it
        verdict.folder = "" if self._ground.temporary else str(self._ground.folder)
        self._keep(verdict)
        return verdict

    def _keep(self, verdict: Verdict) -> None:
        text = msgspec.json.format(msgspec.json.encode(verdict), indent=1)
        (self._ground.folder / "verdict.json").write_bytes(text)
        if self._options.plot:
            bands = bands_of(verdict.faults, start_ns=self._start_ns)
            timeline = timeline_of(self._history.ops, bands, start_ns=self._start_ns, end_ns=self._stop_ns)
            said = "no violation" if verdict.clean else f"violations: {verdict.violations or verdict.stuck}"
            title = f"avow prove: {verdict.duration_s:.0f} s, {len(verdict.faults)} faults, {said}"
            draw(timeline, Path(self._options.plot), title=title, verdict=text.decode())


def choose_network(wanted: str) -> tuple[str, str]:
    """Which it is to be, and what to note. Raises Offline when namespaces were asked for and cannot be had."""
    if wanted == "proxy":
        return wanted, ""
    reason = why_not()
    if not reason:
        return "namespaces", ""
    if wanted == "namespaces":
        raise Offline(f"{reason}; nothing was started. Take the proxy")
    return "proxy", f"partitions went through a proxy: {reason}"


async def _finish(running: Sequence[asyncio.Task[None]]) -> None:
    _, late = await asyncio.wait(running, timeout=CLIENT_TIMEOUT_S + 4)
    for task in late:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


# ---------------------------------------------------------------------- the end


def wait_quiet(ground: Ground, plans: Sequence[Plan], *, timeout_s: float = QUIET_S) -> str:
    """Until every member shows the same end of every lane, twice in a row; else what differs."""
    deadline = time.monotonic() + timeout_s
    before: object = None
    differs = ""
    while time.monotonic() < deadline:
        try:
            ends = {number: _ends(ground, number, plans) for number in sorted(ground.members)}
        except Offline as error:
            differs = str(error)
        else:
            one = next(iter(ends.values()))
            differs = "" if all(other == one for other in ends.values()) else f"peers show different ends: {ends}"
            if not differs and one == before:
                return ""
            before = one
        time.sleep(0.5)
    return differs or "the lanes still grow"


def _ends(ground: Ground, number: int, plans: Sequence[Plan]) -> dict[tuple[str, int], int]:
    with ground.api(number) as api:
        return {(plan.name, lane["lane"]): lane["end"] for plan in plans for lane in api.queue(plan.name)["lanes"]}


def read_everything(ground: Ground, plans: Sequence[Plan]) -> list[FinalLane]:
    final = []
    for number in sorted(ground.members):
        if not ground.cluster.process(number).alive:
            continue
        with ground.api(number) as api:
            for plan in plans:
                final += [api.read_lane(number, plan.name, lane["lane"]) for lane in api.queue(plan.name)["lanes"]]
    return final
