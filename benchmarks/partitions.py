"""How soon a cluster accepts writes again after a partition: real peers in network namespaces, all cut from each other.

Packets are lost on receipt, so no end of a connection gets an error, and TCP alone would repeat what it sent at growing
intervals. A client is opened when the partition ends; the time until its first write is acknowledged includes its own
connection, the links of the peers and the take-over of the queue's lane. Needs root, and the commands ip and openssl.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import avow
from avow_lab.campaigns.peers.namespaces import NamespaceNetwork, why_not

LENGTHS_S: Final = (1.0, 5.0, 15.0, 40.0)
ROUNDS: Final = 3
TARGET_S: Final = 1.0
QUEUE: Final = "orders"


def healed_after_s(network: NamespaceNetwork, addresses: str, *, token: str, ca: str, partition_s: float) -> float:
    network.unplug()
    time.sleep(partition_s)
    network.plug()
    healed = time.monotonic()
    with avow.connect_blocking(addresses, token=token, ca=ca, timeout_s=120) as client:
        client.queue(QUEUE).enqueue(b"after the partition")
    return time.monotonic() - healed


def measure(lengths_s: list[float], *, rounds: int, peers: int, code: Path | None) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {length_s: [] for length_s in lengths_s}
    with tempfile.TemporaryDirectory(prefix="avow-partitions-") as folder:
        network = NamespaceNetwork(Path(folder))
        try:
            cluster = network.cluster(peers)
            cluster.code = code
            with cluster:
                with avow.connect_blocking(cluster.addresses, token=cluster.token, ca=cluster.ca) as client:
                    client.create_queue(QUEUE)
                    client.queue(QUEUE).enqueue(b"before")
                for _ in range(rounds):
                    for length_s in lengths_s:
                        took_s = healed_after_s(
                            network, cluster.addresses, token=cluster.token, ca=cluster.ca, partition_s=length_s
                        )
                        found[length_s].append(took_s)
                        time.sleep(1.0)  # every peer has heard every other one
        finally:
            network.close()
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks partitions", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--seconds", type=float, nargs="+", default=list(LENGTHS_S), help="lengths of the partitions")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--code", type=Path, default=None, help="run the peers of this source tree instead")
    given = parser.parse_args(arguments)
    reason = why_not()
    if reason:
        print(f"bench: {reason}; nothing was measured")
        return 2
    found = measure(given.seconds, rounds=given.rounds, peers=given.peers, code=given.code)
    print(f"{given.peers} peers, all cut from each other; from the end of the partition to an acknowledged write:")
    for length_s, took in found.items():
        print(
            f"  {length_s:5.1f} s   median {statistics.median(took):.2f} s, longest {max(took):.2f} s   of {len(took)}"
        )
    longest_s = max(took for each in found.values() for took in each)
    print(f"target: within {TARGET_S:g} s, {'held' if longest_s <= TARGET_S else 'missed'} ({longest_s:.2f} s)")
    return 0 if longest_s <= TARGET_S else 1
