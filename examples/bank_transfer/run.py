"""Two banks, one cluster, many transfers, and processes that are killed with -9 meanwhile.

    python examples/bank_transfer/run.py                           two SQLite files
    python examples/bank_transfer/run.py --database postgres       two databases of a PostgreSQL that is started for it
    python examples/bank_transfer/run.py --kills 10 --transfers 400

A transfer that got no answer is asked for again with the same id, as a customer would. At the end no money is missing
and none was made: what left one bank has arrived in the other, once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from avow.testing.cluster import LocalCluster
from avow.testing.services import PostgresServer
from avow_lab.campaigns.harness.programs import Program

BANK = str(Path(__file__).with_name("bank.py"))
AMOUNT = 1_000
PATIENCE_S = 60.0


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'a.db'}", f"sqlite:///{folder / 'b.db'}"
        return
    import psycopg

    with PostgresServer() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create database a")
            connection.execute("create database b")
        address = f"postgresql+psycopg://postgres@127.0.0.1:{server.port}"
        yield f"{address}/a", f"{address}/b"


def ask(url: str, *, post: bool = False, **query: object) -> dict[str, Any]:
    """402 is an answer like any other."""
    request = urllib.request.Request(f"{url}?{urllib.parse.urlencode(query)}", method="POST" if post else "GET")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as refusal:
        with refusal:
            if refusal.code != 402:
                raise
            return dict(json.load(refusal))


def transfer(number: int, a: Program, b: Program, seed: int) -> int | None:
    """Until there is an answer that says whether it committed: the amount; None for rolled back."""
    amount = random.Random(f"{seed}/{number}").randint(1, 30)
    order = {"id": f"t-{number}", "account": "alice", "payee": "bob", "to": b.url, "amount": amount}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            reply = ask(a.url + "/transfer", post=True, **order)
        except (OSError, ValueError, http.client.HTTPException):  # bank or coordinator is down: the same order again
            time.sleep(0.1)
            continue
        if reply["committed"] is not None:
            return amount if reply["committed"] else None
        time.sleep(0.1)
    raise SystemExit(f"transfer {number} was never answered; see {a.log_tail()}")


def killing(
    kills: int, victims: list[Program], cluster: LocalCluster, draw: random.Random, stop: threading.Event
) -> int:
    """One after the other, each started again at once."""
    done = 0
    while done < kills and not stop.wait(draw.uniform(0.05, 0.6)):
        victim = draw.choice([*victims, cluster])
        if isinstance(victim, LocalCluster):
            number = draw.choice(cluster.running)
            cluster.kill(number)
            cluster.restart(number)
        else:
            victim.kill()
            victim.start()
        done += 1
    return done


def settled(a: Program, b: Program) -> tuple[int, int]:
    """What is in both accounts, when nothing is on its way any more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left, arrived = ask(a.url + "/accounts")["alice"], ask(b.url + "/accounts")["bob"]
        if left + arrived >= 2 * AMOUNT or time.monotonic() > deadline:
            return left, arrived
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description="bank transfer")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--transfers", type=int, default=100)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="avow-bank-")))
        cluster = stack.enter_context(LocalCluster(given.peers, folder=folder / "cluster"))
        urls = stack.enter_context(databases(given.database, folder))
        banks = []
        for name, owner, url in zip("ab", ("alice", "bob"), urls, strict=True):
            command = [
                BANK,
                "--database",
                url,
                "--peers",
                cluster.addresses,
                "--accounts",
                owner,
                "--amount",
                str(AMOUNT),
            ]
            banks.append(stack.enter_context(Program(f"bank-{name}", command, folder=folder)).start())
        a, b = banks
        stop = threading.Event()
        with ThreadPoolExecutor(9) as pool:
            killed = pool.submit(killing, given.kills, banks, cluster, random.Random(given.seed), stop)
            results = list(pool.map(lambda number: transfer(number, a, b, given.seed), range(given.transfers)))
            stop.set()
            kills = killed.result()
        left, arrived = settled(a, b)
    committed = [amount for amount in results if amount is not None]
    right = AMOUNT - left == arrived - AMOUNT == sum(committed)
    print(f"seed {given.seed}: {given.transfers} transfers, {kills} processes killed with -9")
    print(f"{len(committed)} committed ({sum(committed)} in all), {len(results) - len(committed)} rolled back")
    print(f"alice has {left}, bob has {arrived}: {'nothing is missing' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
