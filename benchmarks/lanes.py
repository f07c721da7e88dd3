"""What many lanes cost: creating a thousand queues, and three peers that do nothing.

`python -m benchmarks lanes` starts three peers and creates 1,000 queues one after another, more of them until there are
4,096, and waits until all is quiet. Then it takes the processor time of the three peers together over some idle
seconds, and their memory. It does the same with four queues of 1,024 lanes. `--shapes 1000x1` and `--idle 5` change the
numbers. Processor time is what other load on the machine disturbs least; the seconds of creation are wall clock.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

import avow
from avow.limits import MIB, QUEUES_COUNT
from avow.testing.cluster import LocalCluster, wait_until

TIMED: Final = 1_000
CREATE_S_MAX: Final = 20.0
CORE_SHARE_MAX: Final = 0.15
SHAPES: Final = ((QUEUES_COUNT, 1), (4, 1_024))  # (queues, lanes of each)
IDLE_S: Final = 20.0
QUIET_WAIT_S: Final = 120.0


def processor_s(cluster: LocalCluster) -> float:
    return sum(cluster.cpu_s(number) for number in cluster.founders)


def share(cluster: LocalCluster, seconds: float) -> float:
    """Of one core, all peers together."""
    began, spent = time.monotonic(), processor_s(cluster)
    time.sleep(seconds)
    return (processor_s(cluster) - spent) / (time.monotonic() - began)


def settled(cluster: LocalCluster) -> bool:
    return share(cluster, 2.0) < CORE_SHARE_MAX


def measure(queues: int, lanes: int, idle_s: float) -> dict[str, float]:
    with LocalCluster(3) as cluster:
        before = [cluster.rss_bytes(number) for number in cluster.founders]
        empty = share(cluster, 5.0)
        began, spent = time.monotonic(), processor_s(cluster)
        timed = 0.0
        with avow.connect_blocking(cluster.addresses) as client:
            for number in range(queues):
                client.create_queue(f"q{number}", lanes=lanes)
                if number + 1 == min(TIMED, queues):
                    timed = time.monotonic() - began
        created = time.monotonic() - began
        cpu = processor_s(cluster) - spent
        wait_until(lambda: settled(cluster), timeout_s=QUIET_WAIT_S, what="the peers to be idle")
        quiet = time.monotonic() - began
        idle = share(cluster, idle_s)
        grown = [cluster.rss_bytes(number) - rss for number, rss in zip(cluster.founders, before, strict=True)]
    return {
        "queues": queues,
        "lanes": queues * lanes,
        "first_s": timed,
        "created_s": created,
        "created_cpu_s": cpu,
        "quiet_after_s": quiet,
        "empty_share": empty,
        "idle_share": idle,
        "rss_mib": max(grown) / MIB,
        "rss_bytes_per_lane": max(grown) / (queues * lanes),
    }


def report(found: dict[str, float]) -> None:
    queues, lanes = int(found["queues"]), int(found["lanes"])
    print(f"{queues:,} queues, {lanes:,} lanes")
    print(f"  the first {min(TIMED, queues):,} created in {found['first_s']:.1f} s, all in {found['created_s']:.1f} s")
    print(
        f"  quiet after {found['quiet_after_s']:.1f} s; processor time of the creation {found['created_cpu_s']:.1f} s"
    )
    print(f"  three idle peers: {found['idle_share']:.1%} of a core (empty: {found['empty_share']:.1%})")
    print(f"  memory of a peer: +{found['rss_mib']:.0f} MiB, {found['rss_bytes_per_lane']:,.0f} bytes a lane")


def holds(found: dict[str, float]) -> bool:
    slow = found["queues"] >= TIMED and found["first_s"] > CREATE_S_MAX
    return not slow and found["idle_share"] <= CORE_SHARE_MAX


def run(shapes: tuple[tuple[int, int], ...], idle_s: float) -> dict[str, object]:
    figures = []
    for queues, lanes in shapes:
        found = measure(queues, lanes, idle_s)
        report(found)
        figures.append(found)
    return {"shapes": figures, "held": all(map(holds, figures))}


def main() -> dict[str, object]:
    return run(SHAPES, IDLE_S)


def command(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks lanes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="4096x1,4x1024", help="queues x lanes of each, separated by commas")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds of doing nothing that are measured")
    options = parser.parse_args(given)
    shapes = [shape.split("x") for shape in options.shapes.split(",")]
    return 0 if run(tuple((int(queues), int(lanes)) for queues, lanes in shapes), options.idle)["held"] else 1
