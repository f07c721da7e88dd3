"""What a pledge costs: prepare, submit and one real HTTP branch, beside the same work done in other ways, in one run.

    lane, sqlite, postgres   a peer with that store; SQLite with synchronous=FULL, PostgreSQL as installed
    by hand                  uvicorn + asyncpg + aiohttp on the same PostgreSQL, one statement for each step
    pgbench                  the same three statements, 64 connections: what the database does without anybody around
    outbox                   a transaction that also writes to an outbox, and a poller; beside a pledge with the same
                             transaction (business row and barrier row). Throughput, and how long from the commit to
                             the delivery, under full load and at a steady rate

64 callers, each with one request on its way. Rounds of all ways are taken in turn, and the median of each is compared:
what the machine does meanwhile hits all of them. Who is not measured stands still (SIGSTOP). Beside the rates there is
the processor time that a pledge costs its coordinator, which says more on a machine that is not alone.
`python -m benchmarks pledges`; `... pledges --seconds 10 --rounds 5`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec
import uvloop

from avow.testing.cluster import LocalCluster
from avow.testing.services import PostgresServer, program
from avow_lab.campaigns.harness.programs import Program
from benchmarks.pledges_load import CALLERS, Bench, Load

SECONDS: Final = 6.0
ROUNDS: Final = 3
WARM_S: Final = 1.0
STEADY_PAUSE_S: Final = 0.2  # of each caller: some 300 pledges a second
PER_S_MIN: Final = 3_000
TO_BY_HAND_MIN: Final = 3.0
TO_PGBENCH_MIN: Final = 0.8

TABLES: Final = """
create table plain_pledges (gid text primary key, content bytea, status text, updated timestamptz default now());
create table outbox (id bigserial primary key, gid text, sent boolean default false);
create index outbox_unsent on outbox (id) where not sent;
create table works (gid text);
create table rows_of_barrier (gid text, branch_id text, op text, barrier_id text, reason text,
                              unique (gid, branch_id, op, barrier_id));
"""
PGBENCH: Final = """
\\set gid random(1, 1000000000000000)
insert into plain_pledges (gid, content, status) values (:gid, repeat('x', 160)::bytea, 'prepared')
  on conflict do nothing;
update plain_pledges set status = 'submitted', updated = now() where gid = :gid::text and status = 'prepared';
update plain_pledges set status = 'succeeded', updated = now() where gid = :gid::text and status = 'submitted';
"""
WORK: Final = "insert into works values ($1)"
BARRIER: Final = "insert into rows_of_barrier values ($1, '00', 'msg', '01', 'msg') on conflict do nothing"
OUTBOX: Final = "insert into outbox (gid) values ($1)"

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

Way = Callable[[], Awaitable[Load]]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Ways:
    """Everything that is measured, started and ready, and standing still. One name, one way."""

    def __init__(self, stack: ExitStack, folder: Path, seconds: float) -> None:
        self._stack, self._folder, self.seconds = stack, folder, seconds
        self._server = stack.enter_context(PostgresServer())
        self._ports: dict[str, int] = {}
        self._pids: dict[str, int] = {}

    async def start(self, tasks: AsyncExitStack) -> dict[str, Way]:
        dsn = self._server.dsn
        self.bench = await tasks.enter_async_context(Bench())
        self._pool: Any = await tasks.enter_async_context(asyncpg.create_pool(dsn, min_size=CALLERS, max_size=CALLERS))
        await self._pool.execute(TABLES)
        await self._pool.execute("create database store")
        stores = {"lane": "lane", "sqlite": f"sqlite:{self._folder / 'pledges.db'}"}
        stores["postgres"] = dsn.rpartition("/")[0] + "/store"
        for name, store in stores.items():
            cluster = LocalCluster(1, folder=self._folder / name, settings={"pledge_store": store})
            self._ports[name] = urlsplit(self._stack.enter_context(cluster).api(1)).port or 0
            self._pids[name] = cluster.pid(1)
        by_hand = Program("by-hand", [*_PLAIN, "--kind", "coordinator", "--dsn", dsn], folder=self._folder)
        self._ports["by hand"] = self._stack.enter_context(by_hand).start().port
        self._pids["by hand"] = by_hand.pid
        branch = f"http://127.0.0.1:{self.bench.port}/in"
        command = [*_PLAIN, "--kind", "outbox", "--dsn", dsn, "--branch", branch]
        outbox = self._stack.enter_context(Program("outbox", command, folder=self._folder)).start()
        self._pids["outbox"] = outbox.pid
        for pid in self._pids.values():
            os.kill(pid, signal.SIGSTOP)
        return {
            **{name: self._pledging(name) for name in self._ports},
            "pgbench": self._pgbench,
            "pledge with work": self._pledging("lane", work=self._work_and(BARRIER)),
            "outbox with work": self._polling(),
            "pledge, steady": self._pledging("lane", work=self._work_and(BARRIER), pause_s=STEADY_PAUSE_S),
            "outbox, steady": self._polling(pause_s=STEADY_PAUSE_S),
        }

    def _pledging(self, name: str, **options: Any) -> Way:
        port = self._ports[name]
        return self._awake(name, lambda: self.bench.pledges(port, seconds=self.seconds, **options))

    def _polling(self, **options: Any) -> Way:
        work = self._work_and(OUTBOX)
        return self._awake("outbox", lambda: self.bench.outbox(work, seconds=self.seconds, **options))

    def _awake(self, name: str, way: Way) -> Way:
        """Only this one runs, and what it used of the processor is noted."""
        pid = self._pids[name]

        async def measured() -> Load:
            os.kill(pid, signal.SIGCONT)
            before_s = cpu_s(pid)
            try:
                load = await way()
            finally:
                os.kill(pid, signal.SIGSTOP)
            return msgspec.structs.replace(load, cpu_us=round(1e6 * (cpu_s(pid) - before_s) / load.count))

        return measured

    def _work_and(self, statement: str) -> Callable[[str], Awaitable[None]]:
        async def work(gid: str) -> None:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute(WORK, gid)
                await connection.execute(statement, gid)

        return work

    async def _pgbench(self) -> Load:
        script = self._folder / "pgbench.sql"
        script.write_text(PGBENCH)
        where = ["-h", "127.0.0.1", "-p", str(self._server.port), "-U", "postgres"]
        how = ["-n", "-c", str(CALLERS), "-j", "2", "-M", "prepared", "-T", str(max(1, round(self.seconds)))]
        ran = subprocess.run(
            [program("pgbench"), *where, *how, "-f", str(script), "postgres"],
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"tps = ([\d.]+)", ran.stdout)
        count = re.search(r"processed: (\d+)", ran.stdout)
        assert found is not None
        assert count is not None
        return Load(round(float(found[1])), int(count[1]), 0.0, 0.0)


_PLAIN: Final = ("-m", "benchmarks.pledges_plain")


async def measure(ways: Ways, *, rounds: int) -> dict[str, list[Load]]:
    found: dict[str, list[Load]] = {}
    async with AsyncExitStack() as tasks:
        made = await ways.start(tasks)
        wanted_s, ways.seconds = ways.seconds, WARM_S
        for way in made.values():  # the first pledges make lanes, tables and connections
            await way()
        ways.seconds = wanted_s
        for number in range(rounds):
            for name, way in made.items():
                load = await way()
                found.setdefault(name, []).append(load)
                print(f"  round {number + 1}: {name:<18} {load.per_s:>7,.0f}/s", flush=True)
    return found


def throughput(*, seconds: float = SECONDS, rounds: int = ROUNDS) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="avow-bench-pledges-"))
    folder.chmod(0o755)
    try:
        with ExitStack() as stack:
            found = uvloop.run(measure(Ways(stack, folder, seconds), rounds=rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return judged(found)


def judged(found: dict[str, list[Load]]) -> dict[str, object]:
    rates = {name: statistics.median(load.per_s for load in loads) for name, loads in found.items()}
    waits = {name: statistics.median(load.p50_ms for load in loads) for name, loads in found.items()}
    costs = {name: statistics.median(load.cpu_us for load in loads) for name, loads in found.items()}
    stores = ("lane", "sqlite", "postgres")
    to_hand = {name: round(rates[name] / rates["by hand"], 2) for name in stores}
    to_pgbench = {name: round(rates[name] / rates["pgbench"], 2) for name in stores}
    for name in stores:
        print(
            f"{name:<9} {rates[name]:>7,.0f} pledges/s = {to_hand[name]} x by hand, {to_pgbench[name]} x pgbench"
            f"; {costs[name]:g} µs of the processor; p50 from submit to delivery {waits[name]:g} ms"
        )
    print(
        f"by hand   {rates['by hand']:>7,.0f}/s; {costs['by hand']:g} µs, and the database's; p50 {waits['by hand']:g} "
        f"ms; pgbench {rates['pgbench']:,.0f}/s"
    )
    for name in ("with work", "steady"):
        pledge, outbox = f"pledge{_comma(name)}", f"outbox{_comma(name)}"
        print(
            f"{name}: pledge {rates[pledge]:,.0f}/s, p50 from commit to delivery {waits[pledge]:g} ms; outbox "
            f"{rates[outbox]:,.0f}/s, {waits[outbox]:g} ms"
        )
    targets = {
        f"lane and sqlite at least {PER_S_MIN:,}/s": min(rates["lane"], rates["sqlite"]) >= PER_S_MIN,
        f"each at least {TO_BY_HAND_MIN:g} x by hand": min(to_hand.values()) >= TO_BY_HAND_MIN,
        f"each at least {TO_PGBENCH_MIN:g} x pgbench": min(to_pgbench.values()) >= TO_PGBENCH_MIN,
    }
    for target, reached in targets.items():
        print(f"{target}: {'reached' if reached else 'MISSED'}")
    figures: dict[str, object] = {name: msgspec.to_builtins(loads) for name, loads in found.items()}
    return {"to_by_hand": to_hand, "to_pgbench": to_pgbench, "loads": figures, "held": all(targets.values())}


def _comma(name: str) -> str:
    return f", {name}" if name == "steady" else f" {name}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pledges")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    return 0 if throughput(seconds=given.seconds, rounds=given.rounds)["held"] else 1
