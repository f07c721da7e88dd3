"""Redis Streams: one primary, two replicas, `appendonly yes`, `appendfsync always`, WAIT 1 behind every request.

Weaker than a quorum that synced: the replica that WAIT counts has the data in memory, not on its disk, and nothing
elects a new primary. What is switched off is in its favour: no snapshots, no rewriting of the log during a round.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until
from benchmarks.rivals.nodes import NodeProcess
from benchmarks.rivals.system import LOOPBACK, read_version, run_load
from benchmarks.rivals.tools import compile_load, find_program
from benchmarks.rivals.work import Sample, Work

START_S: Final = 20.0
SINGLE_CONNECTIONS: Final = 10  # for 1,000 single messages in flight: measured fastest among 1, 2, 4, 10 and 1,000
_SETTINGS: Final = {
    "bind": LOOPBACK,
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "auto-aof-rewrite-percentage": "0",
    "repl-diskless-sync-delay": "0",
    "client-output-buffer-limit": "replica 0 0 0",
}


class RedisSystem:
    name = "Redis"
    version = ""
    durability = "primary fdatasync + 1 replica in memory (WAIT 1)"
    client = "C, RESP over sockets, XADD and WAIT pipelined"
    notes = f"a connection for each request under way; single messages in flight share {SINGLE_CONNECTIONS} requests"

    def __init__(self, folder: Path, *, install: bool) -> None:
        self._folder, self._install = folder, install
        self._ports, self._nodes = Ports(), list[NodeProcess]()
        self._rounds = 0

    def start(self) -> None:
        server = find_program("redis-server", package="redis-server", install=self._install)
        self.version = read_version(str(server), "--version")
        self._load = compile_load("redis", self._folder.parent)
        self._port = self._ports.take()
        self._start_node(server, "primary", self._port)
        for number in (1, 2):
            self._start_node(server, f"replica-{number}", self._ports.take(), "--replicaof", f"{LOOPBACK} {self._port}")
        wait_until(self._replicated, timeout_s=START_S, what=self._nodes[0].log_tail)

    def stop(self) -> None:
        for node in self._nodes:
            node.end()
        self._nodes.clear()
        self._ports.release()

    def run(self, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        self._rounds += 1
        key = f"stream-{self._rounds}"
        pids = [node.pid for node in self._nodes]
        mapped = as_connections(work)
        sample = run_load(
            self._load, mapped, port=self._port, target=key, pids=pids, seconds=seconds, warmup_s=warmup_s
        )
        self._ask(f"UNLINK {key}")
        return sample

    def _start_node(self, server: Path, name: str, port: int, *more: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        flags = [part for key, value in _SETTINGS.items() for part in (f"--{key}", value)]
        command = [str(server), "--port", str(port), "--dir", str(folder), *flags, *more]
        self._nodes.append(NodeProcess(command, log=folder / "log"))

    def _replicated(self) -> bool:
        try:
            answer = self._ask("INFO replication")
        except OSError:
            return False
        return answer.count("state=online") == 2

    def _ask(self, line: str) -> str:
        with socket.create_connection((LOOPBACK, self._port), timeout=10) as connection:
            connection.sendall(f"{line}\r\n".encode())
            return connection.recv(65536).decode()


def as_connections(work: Work) -> Work:
    """WAIT holds its connection, so each request under way has one of its own. A thousand single messages in flight
    travel as Avow's client sends them: those that are ready together share a request."""
    under_way = work.connections * work.window
    if work.batch == 1 and work.window > SINGLE_CONNECTIONS:
        share = under_way // SINGLE_CONNECTIONS
        return Work(name=work.name, title=work.title, connections=SINGLE_CONNECTIONS, batch=share)
    return Work(name=work.name, title=work.title, connections=under_way, batch=work.batch)
