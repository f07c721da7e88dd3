"""Four ways for a cache to become wrong, and what is left of them.

    python examples/cache_consistency/run.py
    python examples/cache_consistency/run.py --runs 50      and then: readers, writers, kill -9, at random

Each scene prints what the cache gives and what the database has. Those without a tag, or without a pledge, end up wrong
on purpose.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import redis
from cache import Cache

from avow.testing.cluster import LocalCluster
from avow.testing.services import RedisServer
from avow_lab.campaigns.harness.programs import Program

CATALOG = str(Path(__file__).with_name("catalog.py"))
SLOW_S = 0.4
SETTLED_S = 30.0
ITEMS = ["deleted", "tagged", "plain", "pledged"]


class Scene:
    def __init__(self, folder: Path, stack: ExitStack, items: list[str]) -> None:
        cluster = stack.enter_context(LocalCluster(1, folder=folder / "cluster"))
        server = stack.enter_context(RedisServer())
        self._path = folder / "prices.db"
        command = [CATALOG, "--database", f"sqlite:///{self._path}", "--redis", server.dsn, "--items", ",".join(items)]
        self.catalog = Program("catalog", [*command, "--peers", cluster.addresses], folder=folder)
        stack.enter_context(self.catalog).start()
        self.redis = stack.enter_context(redis.Redis.from_url(server.dsn))
        self.cache = Cache(self.redis)

    def database(self, item: str) -> int:
        with closing(sqlite3.connect(self._path, timeout=20)) as connection:
            return int(connection.execute("select price from prices where item = ?", (item,)).fetchone()[0])

    def change(self, item: str, price: int, *, how: str = "pledge") -> None:
        """Without an answer if the catalog dies."""
        with suppress(OSError):
            self._ask("POST", f"/price?item={item}&price={price}&how={how}")

    def read(self, item: str, *, slow_s: float = 0.0) -> None:
        with suppress(OSError):
            self._ask("GET", f"/price?item={item}&slow_s={slow_s}")

    def _ask(self, method: str, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.catalog.url + path, method=method), timeout=20):
            pass

    def dies(self, item: str, price: int, *, how: str) -> None:
        """A change during which the catalog dies, committed; then it is there again."""
        self.catalog.kill()
        self.catalog.start("--die-at", "committed")
        self.change(item, price, how=how)
        self.catalog.kill()
        self.catalog.start()

    def agrees(self, item: str) -> bool:
        """The cache gives what the database has, or would load it."""
        return self.cache.peek(item) in (None, str(self.database(item)))


def check_scene(scene: Scene, name: str, item: str, *, right: bool, settle_s: float) -> bool:
    """Whether it ended as it must."""
    deadline = time.monotonic() + settle_s
    while not scene.agrees(item) and time.monotonic() < deadline:
        time.sleep(0.05)
    cached = scene.cache.peek(item)
    print(f"{name:<44} cache {cached or '(loads)':<8} database {scene.database(item)}")
    return scene.agrees(item) is right


def slow_reader(scene: Scene, item: str, forget: Callable[[], object]) -> None:
    """A reader loads the old price, is slow, and stores it after the change."""
    reader = threading.Thread(target=scene.read, args=(item,), kwargs={"slow_s": SLOW_S})
    reader.start()
    while not scene.redis.exists(item):  # it has the lock, and loads
        time.sleep(0.005)
    time.sleep(SLOW_S / 4)
    scene.change(item, 2)
    forget()
    reader.join()


def naive(scene: Scene, item: str) -> None:
    """The same with a plain cache: it stores every value and deletes by DEL."""
    price = scene.database(item)
    scene.change(item, 2, how="plain")
    scene.redis.delete(item)
    scene.redis.hset(item, mapping={"value": price})  # the slow reader, at last


def scenes(scene: Scene) -> bool:
    held = []
    naive(scene, "deleted")
    held.append(check_scene(scene, "slow reader, entry deleted", "deleted", right=False, settle_s=0))
    slow_reader(scene, "tagged", lambda: None)
    held.append(check_scene(scene, "slow reader, entry tagged as deleted", "tagged", right=True, settle_s=SETTLED_S))
    scene.read("plain")
    scene.dies("plain", 2, how="plain")
    held.append(check_scene(scene, "killed after the commit, no pledge", "plain", right=False, settle_s=2))
    scene.read("pledged")
    scene.dies("pledged", 2, how="pledge")
    held.append(check_scene(scene, "killed after the commit, pledged", "pledged", right=True, settle_s=SETTLED_S))
    return all(held)


def at_random(scene: Scene, number: int, draw: random.Random) -> bool:
    """Readers, some of them slow, writers, and in every third run a kill; at the end it must agree."""
    item = f"item-{number}"
    with ThreadPoolExecutor(6) as pool:
        for price in range(2, 2 + draw.randint(2, 5)):
            pool.submit(scene.change, item, price)
            for _ in range(draw.randint(1, 3)):
                pool.submit(scene.read, item, slow_s=draw.choice((0, 0, 0.1, 0.3)))
        if number % 3 == 0:
            time.sleep(draw.uniform(0, 0.2))
            scene.catalog.kill()
            scene.catalog.start()
    deadline = time.monotonic() + SETTLED_S
    while not scene.agrees(item) and time.monotonic() < deadline:
        time.sleep(0.05)
    return scene.agrees(item)


def main() -> int:
    parser = argparse.ArgumentParser(description="cache consistency")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="avow-cache-")))
        items = [*ITEMS, *(f"item-{number}" for number in range(given.runs))]
        scene = Scene(folder, stack, items)
        as_told = scenes(scene)
        draw = random.Random(given.seed)
        agreed = sum(at_random(scene, number, draw) for number in range(given.runs))
    print(f"seed {given.seed}: cache == database at the end of {agreed} of {given.runs} random runs")
    return 0 if as_told and agreed == given.runs else 1


if __name__ == "__main__":
    raise SystemExit(main())
