"""RabbitMQ: three nodes, a quorum queue, publisher confirms. A confirm means a quorum synced its write-ahead log.

The nodes find each other through a list in their settings, with a name server (epmd), a cookie and folders of their
own, so nothing of an installed RabbitMQ is touched. Messages are not consumed; the queue goes when its round ends.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from pathlib import Path
from typing import Final

from avow.testing.cluster_ports import Ports
from avow.testing.cluster_wait import wait_until
from benchmarks.rivals.nodes import NodeProcess
from benchmarks.rivals.system import LOOPBACK, read_version, run_load
from benchmarks.rivals.tools import compile_load, find_program
from benchmarks.rivals.work import Missing, Sample, Work

START_S: Final = 90.0
NODES: Final = ("r1", "r2", "r3")
_SCRIPTS: Final = "/usr/lib/rabbitmq/bin"  # those in PATH change to a user of their own first


class RabbitSystem:
    name = "RabbitMQ"
    version = ""
    notes = "not consumed"
    durability = "quorum, fdatasync on each"
    client = "C, AMQP over a socket, confirms, to the queue's leader"

    def __init__(self, folder: Path, *, install: bool) -> None:
        self._folder, self._install = folder, install
        self._ports, self._nodes = Ports(), list[NodeProcess]()
        self._name_servers: list[NodeProcess] = []  # none or one
        self._rounds = 0

    def start(self) -> None:
        server = find_program("rabbitmq-server", package="rabbitmq-server", install=self._install, folders=_SCRIPTS)
        self._control = find_program("rabbitmqctl", package="rabbitmq-server", install=False, folders=_SCRIPTS)
        names = find_program("epmd", package="erlang-base", install=False)
        self._load = compile_load("rabbitmq", self._folder.parent)
        self._folder.mkdir(parents=True)
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        self._names_port = self._ports.take()
        command = [str(names), "-port", str(self._names_port), "-address", LOOPBACK]
        self._name_servers.append(NodeProcess(command, log=self._folder / "epmd.log"))
        self._client_ports = {name: self._ports.take() for name in NODES}
        for name in NODES:
            self._start_node(server, name)
        self._await_cluster()
        self.version = read_version(str(self._control), "version", environment=self._environment())

    def stop(self) -> None:
        for process in (*self._nodes, *self._name_servers):
            process.end()
        self._nodes.clear()
        self._name_servers.clear()
        self._ports.release()

    def run(self, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        self._rounds += 1
        return run_load(
            self._load,
            work,
            port=self._client_ports[NODES[0]],
            target=f"queue-{self._rounds}",
            pids=[pid for node in self._nodes for pid in node.pids()],
            seconds=seconds,
            warmup_s=warmup_s,
        )

    def _start_node(self, server: Path, name: str) -> None:
        folder = self._folder / name
        folder.mkdir()
        members = (f"cluster_formation.classic_config.nodes.{i} = {each}@localhost" for i, each in enumerate(NODES, 1))
        lines = (
            f"listeners.tcp.local = {LOOPBACK}:{self._client_ports[name]}",
            "cluster_formation.peer_discovery_backend = classic_config",
            *members,
        )
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "plugins").write_text("[].\n")
        environment = {
            **self._environment(),
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_DIST_PORT": str(self._ports.take()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script becomes the server, instead of waiting for it
        }
        self._nodes.append(NodeProcess([str(server)], log=folder / "log", environment=environment))

    def _environment(self) -> dict[str, str]:
        """What nodes and control commands share. Erlang's distribution stays on loopback."""
        return {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _await_cluster(self) -> None:
        for name, node in zip(NODES, self._nodes, strict=True):
            wait_until(lambda name=name: self._listens(name), timeout_s=START_S, what=node.log_tail)  # type: ignore[misc]
        command = [str(self._control), "-n", f"{NODES[0]}@localhost", "await_online_nodes", str(len(NODES))]
        environment = {**os.environ, **self._environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S, check=False)
        if done.returncode:
            raise Missing(f"the RabbitMQ nodes did not form a cluster: {(done.stdout + done.stderr).strip()[-300:]}")

    def _listens(self, name: str) -> bool:
        try:
            socket.create_connection((LOOPBACK, self._client_ports[name]), timeout=2).close()
        except OSError:
            return False
        return True
