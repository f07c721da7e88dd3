"""A flash sale: more buyers than pieces, buttons pressed twice, and somebody killed with -9 in the middle of it.

    python examples/flash_sale/run.py                     one sale without accidents, and how many requests a second
    python examples/flash_sale/run.py --runs 200 --kill   200 sales; in each one the shop, a peer or Redis is killed

After each sale, when every pledge is decided: what left the stock is what was ordered, and nobody has two orders. The
shop and the peers are started by a fork server, so that starting them again costs little.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import redis

from avow import AvowError, Client, Delivered, RolledBack, connect
from avow.errors import UnknownPledge
from avow.testing.services import RedisServer
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import PEER, ForkedCluster
from avow_lab.campaigns.harness.programs import Program

SHOP = str(Path(__file__).with_name("shop.py"))
STEPS = ("prepared", "deducted", "submitted", "ordering", "ordered")
VICTIMS = (*STEPS, "shop", "shop", "peer", "peer", "redis")
ATTEMPTS = 5  # as in shop.py
PATIENCE_S = 60.0
LOAD_REQUESTS = 2_000
LOAD_CALLERS = 32


class Scene:
    """The processes, and the two numbers that must agree."""

    def __init__(self, folder: Path, stack: ExitStack, peers: int) -> None:
        fork_server = stack.enter_context(ForkServer(SHOP, PEER))
        self.cluster = stack.enter_context(ForkedCluster(peers, fork_server=fork_server, folder=folder / "cluster"))
        self.redis = stack.enter_context(RedisServer())
        self.orders_path = folder / "orders.db"
        command = [SHOP, "--redis", self.redis.dsn, "--database", f"sqlite+aiosqlite:///{self.orders_path}"]
        command += ["--peers", self.cluster.addresses]
        self.shop = stack.enter_context(Program("shop", command, folder=folder, fork_server=fork_server))
        self.shop.start()

    @contextmanager
    def stock(self) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(self.redis.dsn) as client:
            yield client

    def orders(self, sale: str) -> Counter[str]:
        with closing(sqlite3.connect(self.orders_path, timeout=20)) as database:
            return Counter(user for (user,) in database.execute("select buyer from orders where sale = ?", (sale,)))

    def accident(self, victim: str, draw: random.Random) -> None:
        """Ends and starts again; for a step of the shop, waits until it has come there."""
        if victim == "redis":
            self.redis.kill()
            self.redis.start()
        elif victim == "peer":
            number = draw.choice(self.cluster.running)
            self.cluster.kill(number)
            self.cluster.restart(number)
        else:
            if victim in STEPS:
                self.shop.wait_dead(2.0)
            self.shop.kill()
            self.shop.start()


async def press(port: int, sale: str, user: str) -> int:
    """The button: one request on a connection of its own. 0: no answer."""
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                head = f"POST /buy?sale={sale}&user={user} HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


async def wanting(scene: Scene, sale: str, user: str) -> int:
    """Presses until the shop has answered yes or no."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = await press(scene.shop.port, sale, user)
        if status in (201, 410):
            return status
        await asyncio.sleep(0.1)
    raise SystemExit(f"user {user} was never answered; {scene.shop.log_tail()}")


async def decided(client: Client, gids: list[str]) -> None:
    """Until the coordinator has nothing left to do for any of them."""
    deadline = time.monotonic() + PATIENCE_S
    for gid in gids:
        while time.monotonic() < deadline:
            try:
                if isinstance(await client.pledge(gid).current(), Delivered | RolledBack):
                    break
            except UnknownPledge:
                break
            except AvowError:
                pass
            await asyncio.sleep(0.05)
        else:
            raise SystemExit(f"pledge {gid} is not decided")


async def sell(scene: Scene, client: Client, number: int, *, seed: int, victim: str) -> str:
    """One sale. Empty, or what is wrong."""
    draw, sale = random.Random(f"{seed}/{number}"), f"sale-{seed}-{number}"
    pieces = draw.randint(2, 6)
    with scene.stock() as stock:
        stock.set(f"{{{sale}}}-stock", pieces)
    users = [str(user) for user in range(draw.randint(pieces, 3 * pieces))]
    if victim in STEPS:
        scene.shop.kill()
        await asyncio.to_thread(scene.shop.start, "--die-at", victim)
    buying = [asyncio.create_task(wanting(scene, sale, user)) for user in users for _ in range(draw.randint(1, 2))]
    if victim:
        await asyncio.sleep(0 if victim in STEPS else draw.uniform(0, 0.15))
        await asyncio.to_thread(scene.accident, victim, draw)
    statuses = await asyncio.gather(*buying)
    await decided(client, [f"{{{sale}}}-{user}-{attempt}" for user in users for attempt in range(1, ATTEMPTS + 1)])
    with scene.stock() as stock:
        left = int(stock.get(f"{{{sale}}}-stock") or 0)  # type: ignore[arg-type]
    orders = scene.orders(sale)
    if pieces - left != orders.total() or max(orders.values(), default=0) > 1 or left < 0:
        return f"sale {number} ({victim or 'no accident'}): {pieces} pieces, {left} left, orders {dict(orders)}"
    if left and 410 in statuses:
        return f"sale {number} ({victim or 'no accident'}): {left} left, and somebody was told that it is sold out"
    return ""


async def load(scene: Scene) -> float:
    """Requests a second while there is stock for half of them."""
    with scene.stock() as stock:
        stock.set("{load}-stock", LOAD_REQUESTS // 2)
    users = iter(range(LOAD_REQUESTS))

    async def caller() -> None:
        for user in users:
            await wanting(scene, "load", str(user))

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(LOAD_CALLERS)))
    return LOAD_REQUESTS / (time.monotonic() - began)


async def run(given: argparse.Namespace, scene: Scene) -> int:
    wrong, killed = [], 0
    async with await connect(scene.cluster.addresses) as client:
        rate = 0.0 if given.no_load else await load(scene)
        for number in range(given.runs):
            victim = random.Random(f"{given.seed}/victim/{number}").choice(VICTIMS) if given.kill else ""
            killed += bool(victim)
            found = await sell(scene, client, number, seed=given.seed, victim=victim)
            if found:
                wrong.append(found)
                print(found)
    print(f"seed {given.seed}: {given.runs} sales, {killed} times somebody was killed with -9")
    if rate:
        print(f"{rate:.0f} requests/s, half of them sold")
    print(f"stock that left == orders, at most one order for each user: {'no' if wrong else 'yes, in every sale'}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="flash sale")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="in each sale, somebody is killed with -9")
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--no-load", action="store_true", help="do not measure requests a second")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="avow-sale-")))
        scene = Scene(folder, stack, given.peers)
        with suppress(KeyboardInterrupt):
            return asyncio.run(run(given, scene))
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
