"""`avow prove`: peers under load from real clients, one fault after another, and a check of the whole history.

Sessions and faults share one event loop; blocking calls run in threads. The order at the end matters: no more faults,
then no more writes, then the cluster becomes whole, then every lane of every peer is read. A cluster that does not
become whole after everything was healed is a finding of its own: it may have lost nothing, but it is of no use.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.client import Client
from avow.errors import Offline
from avow_lab.campaigns.harness import campaign
from avow_lab.campaigns.harness.peer_program import program
from avow_lab.campaigns.peers.checker import check
from avow_lab.campaigns.peers.client_session import PLANS, Emphasis, Plan, Session
from avow_lab.campaigns.peers.faults import KINDS, Faults
from avow_lab.campaigns.peers.history import FinalLane, History, Op, Outcome
from avow_lab.campaigns.peers.namespaces import why_not
from avow_lab.campaigns.peers.testbed import Testbed
from avow_lab.campaigns.peers.timeline import draw, timeline_of
from avow_lab.campaigns.peers.verdict import (
    Verdict,
    acknowledged_of,
    bands_of,
    counts_of,
    gaps_of,
    operations_of,
    refusals_of,
    resumed_of,
)
from avow_lab.mutations.peers import broken_clients

SESSIONS_PER_QUEUE: Final = 4
QUIET_S: Final = 60.0
TROUBLES_KEPT: Final = 20


class Options(campaign.Options, frozen=True, kw_only=True):
    """`plot` empty: none. `code`: the folder of another version's packages, which peers run until a script replaces
    them; empty: this version. `client_timeout_s`: a write without an answer for so long counts as unknown. `mutation`:
    the rule that is broken on purpose (`avow_lab.mutations.peers`); empty: none."""

    seconds: float = 60.0
    peers: int = 3
    faults: tuple[str, ...] = KINDS
    strategy: str = ""  # of the queues; empty: both
    network: str = "auto"  # auto, proxy or namespaces
    plot: str = ""
    code: str = ""
    client_timeout_s: float = 8.0
    mutation: str = ""


class Progress(Struct, frozen=True):
    elapsed_s: float
    phase: str
    done: int
    refused: int
    unknown: int
    fault: str
    faults: int

    def line(self) -> str:
        fault = f"; now: {self.fault}" if self.fault else ""
        return (
            f"{self.elapsed_s:6.1f} s  {self.phase}: {self.done:,} done, {self.refused:,} refused, "
            f"{self.unknown:,} unknown; {self.faults} faults{fault}"
        )


Script: TypeAlias = Callable[[Faults], Awaitable[None]]


class PeerCampaign:
    """`script` takes the place of random faults."""

    def __init__(self, options: Options, folder: Path, script: Script | None = None) -> None:
        self._options, self._folder, self._script = options, folder, script
        network, self._network_note = choose_network(options.network)
        self._testbed = Testbed(peers=options.peers, folder=folder, network=network)
        if options.code:
            self._testbed.cluster.code = Path(options.code)
        else:
            self._testbed.cluster.program = program(options.mutation)
        self._resources = ExitStack()
        self._history = History(time.monotonic_ns, path=folder / "history.jsonl")
        self._plans = [plan for plan in PLANS if options.strategy in ("", plan.strategy)]
        self._troubles: list[str] = []
        self._stopping = asyncio.Event()
        self._phase, self._stuck = "starting peers", ""
        self._counts = Counter[Outcome]()
        self._counted, self._open = 0, list[Op]()
        self._start_ns = self._stop_ns = time.monotonic_ns()
        lanes = [
            (plan.name, lane) for plan in self._plans if plan.strategy == "two-phase" for lane in range(plan.lanes)
        ]
        self._emphasis = Emphasis()
        self._faults = Faults(
            self._testbed,
            kinds=options.faults,
            seed=options.seed,
            lanes=lanes,
            clock_ns=time.monotonic_ns,
            seconds=options.seconds,
            emphasis=self._emphasis,
            history=self._history,
        )

    def close(self) -> None:
        self._resources.close()
        self._history.close()
        self._testbed.close()

    def start(self) -> None:
        self._resources.enter_context(broken_clients(self._options.mutation))
        self._testbed.start()

    def inject_faults(self) -> None:
        asyncio.run(self._put_under_load())
        self._phase = "waiting until the cluster is whole"
        missing = self._testbed.wait_whole()
        self._stuck = self._faults.stuck or missing or wait_quiet(self._testbed, self._plans)

    def progress(self) -> Progress:
        pending = [*self._open, *self._history.ops[self._counted :]]
        self._counted += len(pending) - len(self._open)
        self._open = [op for op in pending if not op.outcome]
        self._counts.update(op.outcome for op in pending if op.outcome)
        return Progress(
            (time.monotonic_ns() - self._start_ns) / 1e9,
            self._phase,
            self._counts[Outcome.DONE],
            self._counts[Outcome.REFUSED],
            self._counts[Outcome.UNKNOWN],
            self._faults.current,
            len(self._faults.performed),
        )

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
                await _finish(running, timeout_s=self._options.client_timeout_s + 4)

    async def _sessions(self, clients: AsyncExitStack) -> list[Session]:
        first = await clients.enter_async_context(await self._connect())
        for plan in self._plans:
            await first.create_queue(plan.name, strategy=plan.strategy, lanes=plan.lanes)
        sessions = []
        for number in range(SESSIONS_PER_QUEUE * len(self._plans)):
            client = await clients.enter_async_context(await self._connect())
            plan = self._plans[number % len(self._plans)]
            session = Session(
                number,
                plan,
                client,
                self._history,
                seed=self._options.seed,
                troubles=self._troubles,
                emphasis=self._emphasis,
            )
            sessions.append(session)
        return sessions

    async def _connect(self) -> Client:
        return await self._testbed.connect(timeout_s=self._options.client_timeout_s)

    # ------------------------------------------------------------------ the verdict

    def judge(self) -> Verdict:
        self._phase = "reading every lane from every peer"
        final, unread = read_everything(self._testbed, self._plans)
        self._stuck = self._stuck or unread
        self._phase = "checking"
        findings = check(self._history.ops, final, one_outcome=not self._options.code)
        ops, faults = self._history.ops, self._faults.performed
        checked, violations = counts_of(findings)
        verdict = Verdict(
            seed=self._options.seed,
            peers=self._options.peers,
            duration_s=(self._stop_ns - self._start_ns) / 1e9,
            network=self._testbed.network.kind,
            operations=operations_of(ops),
            refusals=refusals_of(ops),
            acknowledged=acknowledged_of(ops),
            checked=checked,
            violations=violations,
            findings=findings.kept,
            faults=faults,
            gaps=gaps_of(ops, faults, start_ns=self._start_ns, end_ns=self._stop_ns),
            resumed=resumed_of(ops, faults, start_ns=self._start_ns),
            notes=self._notes(),
            troubles=self._troubles[:TROUBLES_KEPT],
            stuck=self._stuck,
            folder=str(self._folder),
            plot=self._options.plot,
        )
        if self._options.plot:
            self._draw(verdict)
        return verdict

    def _notes(self) -> list[str]:
        """What was left out, and why."""
        notes = {"": self._network_note, "filled": self._testbed.disks_note, "slow": self._testbed.network.note}
        return [note for kind, note in notes.items() if note and kind in ("", *self._options.faults)]

    def _draw(self, verdict: Verdict) -> None:
        bands = bands_of(verdict.faults, start_ns=self._start_ns)
        timeline = timeline_of(self._history.ops, bands, start_ns=self._start_ns, end_ns=self._stop_ns)
        found = "no violation" if verdict.clean else f"violations: {verdict.violations or verdict.stuck}"
        title = f"avow prove: {verdict.duration_s:.0f} s, {len(verdict.faults)} faults, {found}"
        text = msgspec.json.format(msgspec.json.encode(verdict), indent=1).decode()
        draw(timeline, Path(self._options.plot), title=title, verdict=text)


def choose_network(wanted: str) -> tuple[str, str]:
    """Its kind, and a note for the verdict. Raises Offline when namespaces were asked for and do not work here."""
    if wanted == "proxy":
        return wanted, ""
    reason = why_not()
    if not reason:
        return "namespaces", ""
    if wanted == "namespaces":
        raise Offline(f"{reason}; nothing was started. Use --network proxy")
    return "proxy", f"partitions went through a proxy: {reason}"


async def _finish(running: Sequence[asyncio.Task[None]], *, timeout_s: float) -> None:
    _, late = await asyncio.wait(running, timeout=timeout_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def wait_quiet(testbed: Testbed, plans: Sequence[Plan], *, timeout_s: float = QUIET_S) -> str:
    """Waits until all members show the same end of every lane twice in a row. Returns what differs; empty: nothing."""
    deadline = time.monotonic() + timeout_s
    before: object = None
    differs = ""
    while time.monotonic() < deadline:
        try:
            ends = {number: _ends(testbed, number, plans) for number in sorted(testbed.members)}
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


def _ends(testbed: Testbed, number: int, plans: Sequence[Plan]) -> dict[tuple[str, int], int]:
    with testbed.api(number) as api:
        return {(plan.name, lane["lane"]): lane["end"] for plan in plans for lane in api.queue(plan.name)["lanes"]}


def read_everything(testbed: Testbed, plans: Sequence[Plan]) -> tuple[list[FinalLane], str]:
    """Every lane of every running member, and how one of them refused; empty: none did."""
    final = list[FinalLane]()
    refusal = ""
    for number in sorted(testbed.members):
        if not testbed.cluster.process(number).alive:
            continue
        try:
            with testbed.api(number) as api:
                for plan in plans:
                    final += [api.read_lane(number, plan.name, lane["lane"]) for lane in api.queue(plan.name)["lanes"]]
        except Offline as error:
            refusal = f"peer {number} does not show its lanes: {error}"
    return final, refusal
