"""A shop, a cluster, many orders, and processes that are killed with -9 meanwhile.

    python examples/shop/run.py                            a SQLite file
    python examples/shop/run.py --database postgres        a PostgreSQL that is started for it
    python examples/shop/run.py --orders 500 --kills 10

A customer without an answer asks again with the same id. At the end every order that the database has is one message of
the queue, and every message is an order.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sqlite3
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import avow
from avow.testing.cluster import LocalCluster
from avow.testing.services import PostgresServer
from avow_lab.campaigns.harness.programs import Program

SHOP = str(Path(__file__).with_name("shop.py"))
PATIENCE_S = 120.0


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The URL that SQLAlchemy takes, and how to look into it from here."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{folder / 'shop.db'}", lambda: sqlite3.connect(folder / "shop.db")
        return
    import psycopg

    with PostgresServer() as server:
        yield server.dsn.replace("postgresql:", "postgresql+psycopg:"), lambda: psycopg.connect(server.dsn)


def ask(url: str, order: dict[str, Any]) -> bool | None:
    """Whether it is ordered; None: ask again."""
    request = urllib.request.Request(f"{url}/orders", json.dumps(order).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bool(json.load(answer)["committed"])
    except urllib.error.HTTPError as refusal:
        with refusal:
            return False if refusal.code == 409 else None
    except (OSError, http.client.HTTPException):  # it was killed, before or in the middle of its answer
        return None


def place(number: int, shop: Program, seed: int) -> bool:
    draw = random.Random(f"{seed}/{number}")
    order = {"order_id": f"o-{number}", "item": draw.choice(["book", "book", "lamp"]), "pieces": draw.randint(1, 3)}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = ask(shop.url, order)
        if answer is not None:
            return answer
        time.sleep(0.1)
    raise SystemExit(f"order {number} was never answered; {shop.log_tail()}")


def killing(kills: int, shop: Program, cluster: LocalCluster, draw: random.Random, stop: threading.Event) -> int:
    """One after the other, each started again at once."""
    done = 0
    while done < kills and not stop.wait(draw.uniform(0.05, 0.6)):
        if draw.random() < 0.5:
            shop.kill()
            shop.start()
        else:
            number = draw.choice(cluster.running)
            cluster.kill(number)
            cluster.restart(number)
        done += 1
    return done


def messages(cluster: LocalCluster) -> Counter[str]:
    with avow.connect_blocking(cluster.addresses) as client:
        batches = client.queue("orders").read(level="linearizable")
        return Counter(json.loads(bytes(value))["order_id"] for batch in batches for value in batch.values())


def delivered(cluster: LocalCluster, ordered: set[str]) -> Counter[str]:
    """The messages, when there are as many as orders; or after a long time whatever there is."""
    deadline = time.monotonic() + PATIENCE_S
    found = messages(cluster)
    while found.total() < len(ordered) and time.monotonic() < deadline:
        time.sleep(0.2)
        found = messages(cluster)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="shop")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="avow-shop-")))
        cluster = stack.enter_context(LocalCluster(given.peers, folder=folder / "cluster"))
        url, connect = stack.enter_context(database(given.database, folder))
        command = [SHOP, "--database", url, "--peers", cluster.addresses]
        shop = stack.enter_context(Program("shop", command, folder=folder)).start()
        stop = threading.Event()
        with ThreadPoolExecutor(9) as pool:
            killed = pool.submit(killing, given.kills, shop, cluster, random.Random(given.seed), stop)
            answers = list(pool.map(lambda number: place(number, shop, given.seed), range(given.orders)))
            stop.set()
            kills = killed.result()
        with closing(connect()) as connection:
            ordered = {row[0] for row in connection.execute("select id from orders").fetchall()}
        found = delivered(cluster, ordered)
    lost, doubled = sorted(ordered - set(found)), sorted(name for name, times in found.items() if times > 1)
    orphaned, confirmed = sorted(set(found) - ordered), {f"o-{number}" for number, yes in enumerate(answers) if yes}
    right = not (lost or doubled or orphaned) and confirmed == ordered
    print(f"seed {given.seed}: {given.orders} orders, {kills} processes killed with -9")
    print(f"{len(ordered)} committed, {len(answers) - len(ordered)} refused; {found.total()} messages")
    print("every order is one message" if right else f"WRONG: {lost=} {doubled=} {orphaned=} told={len(confirmed)}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
