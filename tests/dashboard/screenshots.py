"""Pictures of the dashboard for the docs: `python -m tests.dashboard.screenshots docs/images`.

A real cluster with load on it: orders are written and read, pledges wait and die, and a pipeline archives the orders to
a Delta table with Spark. Each picture is what a browser shows of that, in a window of a laptop's or a phone's size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import sin
from pathlib import Path
from time import monotonic
from typing import Any

from playwright.sync_api import Browser
from tests.dashboard import stage
from tests.dashboard.browsing import PHONE, opened
from tests.dashboard.browsing import browsing as started

from avow import connect_blocking
from avow.testing.cluster import LocalCluster, wait_until

ARCHIVE = """
kind = "archive"
table = "delta:{folder}/orders"
every = "1 seconds"
[source]
queue = "orders"
subscriber = "archive"
[spark]
master = "local[1]"
config = {{ "spark.sql.shuffle.partitions" = 1, "spark.ui.enabled" = false }}
"""
QUEUE = "avow.pipelines"
BATCHES = 60  # of the pipeline, one a second: what its picture shows
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "cluster": ("", {}),
    "cluster-dark": ("", {"color_scheme": "dark"}),
    "queue": ("queues/orders", {}),
    "life": ("queues/orders/0/25", {}),
    "pledge": ("pledges/given-up", {}),
    "pipeline": ("pipelines/archive", {}),
    "phone": ("", {"viewport": PHONE, "device_scale_factor": 2}),
    "phone-queue-dark": ("queues/orders", {"viewport": PHONE, "device_scale_factor": 2, "color_scheme": "dark"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with LocalCluster(3) as cluster, tempfile.TemporaryDirectory() as place, started() as browser:
        stage.fill(cluster)
        stage.pledge(cluster)
        with writing(cluster), archiving(cluster, Path(place)):
            wait_until(lambda: batches(cluster) >= BATCHES, timeout_s=300, what="batches of the pipeline")
            for name, (page, options) in PICTURES.items():
                take(browser, f"{cluster.api(1)}/dashboard/#/{page}", folder / f"dashboard-{name}.png", options)


def take(browser: Browser, url: str, path: Path, options: dict[str, Any]) -> None:
    with opened(browser, url, **options) as page:
        page.get_by_text("live", exact=True).first.wait_for()
        page.locator("main .page").wait_for()
        page.wait_for_timeout(2500)  # until a few polls and messages have come in
        page.screenshot(path=path)
    sys.stdout.write(f"{path}\n")


def batches(cluster: LocalCluster) -> int:
    """The number of rows that the pipeline has reported."""
    queues = stage.ask(cluster, "GET", "/v1/queues?internal=true")["queues"]
    if not any(queue["name"] == QUEUE for queue in queues):
        return 0
    with connect_blocking(cluster.addresses) as client:
        values = [value for batch in client.queue(QUEUE).read() for value in batch.values()]
    return max((json.loads(value)["batches"] for value in values), default=0)


@contextmanager
def writing(cluster: LocalCluster) -> Iterator[None]:
    """Orders at a varying rate, with a subscriber that lags a little."""
    over = threading.Event()
    began = monotonic()

    def write() -> None:
        number = 2000
        while not over.wait(0.1):
            for _ in range(round(3 + 2 * sin((monotonic() - began) / 4))):
                number += 1
                order = {"order": number, "item": ("tea", "book", "lamp")[number % 3], "amount": 5 + number % 7}
                stage.write(cluster, "orders", json.dumps(order), key=f"customer {number % 9}")
            ends = {lane["lane"]: lane["end"] for lane in stage.ask(cluster, "GET", "/v1/queues/orders")["lanes"]}
            behind = {"versions": {str(lane): max(0, end - number % 30) for lane, end in ends.items()}}
            stage.ask(cluster, "PUT", "/v1/queues/orders/subscribers/billing", behind)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def archiving(cluster: LocalCluster, folder: Path) -> Iterator[None]:
    spec = folder / "archive.toml"
    spec.write_text(f'servers = "{cluster.addresses}"\n' + ARCHIVE.format(folder=folder))
    command = [sys.executable, "-m", "avow.cli", "pipeline", "run", str(spec)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
