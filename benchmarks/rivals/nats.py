"""NATS JetStream: three servers, a file stream with three replicas, acknowledged by a quorum.

Two ways: `sync_interval: always` syncs before it acknowledges, which is what Avow does; the default syncs every two
minutes, so an acknowledged message lives in the page caches of a quorum. NATS knows three ways to send a batch: as
single messages in flight, as an atomic batch (server 2.12 and later), and as a fast-ingest batch (2.14 and later). All
are tried before the first round, and each work is done the way that was fastest.
"""

from __future__ import annotations

import socket
import statistics
from pathlib import Path
from typing import Any, Final

import msgspec

from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until
from benchmarks.rivals.nodes import NodeProcess
from benchmarks.rivals.system import LOOPBACK, read_version, run_load
from benchmarks.rivals.tools import compile_load, find_nats_server
from benchmarks.rivals.work import Missing, Sample, Work

START_S: Final = 30.0
NODES: Final = (1, 2, 3)
SINGLY: Final = "singly"
WAYS: Final = (SINGLY, "atomic", "fast")
TRIALS: Final = 3
TRIAL_S: Final = 0.7


class NatsSystem:
    version = ""
    client = "C, NATS protocol over a socket, to the stream's leader"

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.name = "NATS sync" if sync else "NATS default"
        self.durability = "quorum, fsync on each" if sync else "quorum in page caches, fsync every 2 minutes"
        self._folder, self._sync = folder, sync
        self.ways: dict[str, str] = {}  # of each work with batches
        self.trials: dict[str, dict[str, int]] = {}  # messages/s of each way
        self._ports, self._nodes = Ports(), list[NodeProcess]()
        self._rounds = 0

    def start(self) -> None:
        server = find_nats_server()
        self.version = read_version(str(server), "--version")
        self._load = compile_load("nats", self._folder.parent)
        self._client_ports = {f"n{number}": self._ports.take() for number in NODES}
        routes = {name: self._ports.take() for name in self._client_ports}
        for name in self._client_ports:
            folder = self._folder / name
            folder.mkdir(parents=True)
            (folder / "nats.conf").write_text(self._settings(name, folder, routes))
            self._nodes.append(NodeProcess([str(server), "-c", str(folder / "nats.conf")], log=folder / "log"))
        wait_until(self._placeable, timeout_s=START_S, what=self._nodes[0].log_tail)

    @property
    def notes(self) -> str:
        return "; ".join(
            f"{work}: {self.ways[work]} (trial: {', '.join(f'{way} {rate:,}' for way, rate in rates.items())})"
            for work, rates in self.trials.items()
        )

    def try_ways(self, work: Work) -> None:
        """Decide how batches are sent: the fastest median of alternating trials."""
        trials = [(way, self._run(work, way, seconds=TRIAL_S, warmup_s=0.3)) for _ in range(TRIALS) for way in WAYS]
        rates = {way: statistics.median(each.per_s for name, each in trials if name == way) for way in WAYS}
        self.trials[work.name] = {way: round(rate) for way, rate in rates.items()}
        self.ways[work.name] = max(WAYS, key=rates.__getitem__)

    def stop(self) -> None:
        for node in self._nodes:
            node.end()
        self._nodes.clear()
        self._ports.release()

    def run(self, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        if work.batch > 1 and work.name not in self.ways:
            self.try_ways(work)
        return self._run(work, self.ways.get(work.name, SINGLY), seconds=seconds, warmup_s=warmup_s)

    def _run(self, work: Work, way: str, *, seconds: float, warmup_s: float) -> Sample:
        self._rounds += 1
        stream = f"s{self._rounds}"
        self._create(stream)
        leader = wait_until(lambda: self._leader(stream), timeout_s=START_S, what=f"a leader of {stream}")
        try:
            return run_load(
                self._load,
                work,
                port=self._client_ports[leader],
                target=stream,
                pids=[node.pid for node in self._nodes],
                seconds=seconds,
                warmup_s=warmup_s,
                extra=way,
            )
        finally:
            self._ask(f"STREAM.DELETE.{stream}")

    def _settings(self, name: str, folder: Path, routes: dict[str, int]) -> str:
        others = ", ".join(f'"nats://{LOOPBACK}:{port}"' for other, port in routes.items() if other != name)
        sync = ", sync_interval: always" if self._sync else ""
        return (
            f'server_name: {name}\nlisten: "{LOOPBACK}:{self._client_ports[name]}"\n'
            f'jetstream {{ store_dir: "{folder}", max_file_store: 100GB{sync} }}\n'
            f'cluster {{ name: bench, listen: "{LOOPBACK}:{routes[name]}", routes: [{others}] }}\n'
        )

    def _create(self, stream: str) -> dict[str, Any]:
        settings = {"name": stream, "subjects": [stream], "storage": "file", "num_replicas": len(NODES)}
        answer = self._ask(f"STREAM.CREATE.{stream}", {**settings, "allow_atomic": True, "allow_batched": True})
        if "error" in answer:
            raise Missing(f"NATS did not create a stream: {answer['error']}")
        return answer

    def _placeable(self) -> bool:
        """Three servers have met and elected: a stream with three replicas can be made."""
        try:
            self._create("s0")
            self._ask("STREAM.DELETE.s0")
        except (Missing, OSError):
            return False
        return True

    def _leader(self, stream: str) -> str:
        """The leader's name once both replicas follow it."""
        cluster = self._ask(f"STREAM.INFO.{stream}").get("cluster", {})
        followers = [each for each in cluster.get("replicas", []) if each.get("current")]
        return str(cluster.get("leader", "")) if len(followers) == len(NODES) - 1 else ""

    def _ask(self, call: str, body: object = None) -> dict[str, Any]:
        payload = msgspec.json.encode(body) if body is not None else b""
        with socket.create_connection((LOOPBACK, self._client_ports["n1"]), timeout=5) as connection:
            head = f'CONNECT {{"verbose":false}}\r\nSUB _R 1\r\nPUB $JS.API.{call} _R {len(payload)}\r\n'
            connection.sendall(head.encode() + payload + b"\r\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    if line.startswith(b"MSG _R"):
                        answer: dict[str, Any] = msgspec.json.decode(lines.read(int(line.split()[-1])))
                        return answer
        raise Missing(f"NATS closed the connection during {call}")
