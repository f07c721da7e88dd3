"""A cluster of real peer processes on this machine, for tests, fault injection and measurements.

    with LocalCluster(3) as cluster:                 # temporary folders, free ports, ready when the block begins
        client = avow.connect_blocking(cluster.addresses)
        cluster.kill(1)                              # kill -9; also stop, pause, resume, restart, add
        cluster.restart(1)

Each peer is an `avow serve` process with a folder, a log and ports that it keeps across restarts. All of them end with
the block, whether or not it raised. All methods block; on an event loop call them through `asyncio.to_thread`.

To put a proxy between the peers, set `link_addresses`, the addresses that all founders get, before the start; the proxy
forwards to `link(number)`. `hosts` gives a peer its own address. `prefix(number)` is put before a peer's command, for
example ("ip", "netns", "exec", "peer1"). All founders must get the same addresses, since these define the cluster.
"""

from __future__ import annotations

import shutil
import signal
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from avow.errors import InvalidRequest, Offline, UnknownPeer
from avow.server import check_installed
from avow.testing.cluster_ports import Ports
from avow.testing.cluster_process import SERVE, START_S, PeerProcess, Serving
from avow.testing.cluster_wait import wait_until
from avow.transport.blocking import connection_to
from avow.wire.http import Lost

__all__ = ["LocalCluster", "PeerProcess", "Serving", "wait_until"]

LOOPBACK: Final = "127.0.0.1"
REQUEST_S: Final = 10.0


class LocalCluster:
    """`api_ports` and `link_ports` set the founders' ports; by default free ones are used. `settings` are flags of
    `avow serve` for every peer. A given folder is kept, a temporary one is removed at the end. `code` is the version
    that the founders run at first, by default the installed one; `process(number).code` may be changed between runs.
    `program`, set before the start, is what peers run in place of `avow serve`, with its flags."""

    def __init__(
        self,
        peers: int = 3,
        *,
        folder: Path | str | None = None,
        api_ports: Sequence[int] = (),
        link_ports: Sequence[int] = (),
        hosts: Mapping[int, str] | None = None,
        link_addresses: Mapping[int, str] | None = None,
        prefix: Callable[[int], Sequence[str]] | None = None,
        settings: Mapping[str, str] | None = None,
        token: str = "",
        ca: str = "",
        code: Path | None = None,
    ) -> None:
        if peers < 1:
            raise InvalidRequest(f"a cluster needs at least one peer, not {peers}; nothing was started")
        self.founders = tuple(range(1, peers + 1))
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="avow-")) if folder is None else Path(folder).absolute()
        self.settings = dict(settings or {})
        self.token, self.ca, self.code = token, ca, code
        self.program: Sequence[str] = SERVE
        self.ports = Ports()
        self._hosts = dict(hosts or {})
        self._prefix = prefix or (lambda _: ())
        self._links = {n: self._address(n, link_ports) for n in self.founders}
        self._apis = {n: self._address(n, api_ports) for n in self.founders}
        self.link_addresses = {**self._links, **(link_addresses or {})}
        self.processes: dict[int, PeerProcess] = {}

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ the whole cluster

    def start(self, timeout_s: float = START_S) -> None:
        """Start the founders and wait until each is ready and knows the addresses of all others."""
        self.launch()
        self.wait_ready(timeout_s=timeout_s)
        for number in self.founders:
            wait_until(partial(self._names_all, number), timeout_s=timeout_s, what=self.process(number).log_tail)

    def launch(self) -> None:
        """Start the founders and wait until each listens, which needs no quorum. Raises NotInstalled."""
        check_installed("a peer")
        for number in self.founders:
            self.processes.setdefault(number, self._founder(number)).start()
        for number in self.founders:
            self.processes[number].wait_serving()

    def stop_all(self) -> None:
        """Stop all peers with SIGTERM, in parallel."""
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
        for process in self.processes.values():
            process.stop()

    def close(self) -> None:
        """Kill all peers, release the ports, remove a temporary folder. Idempotent."""
        for process in self.processes.values():
            process.kill()
        self.ports.release()
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def wait_ready(self, *numbers: int, timeout_s: float = START_S) -> None:
        """Wait until each of these peers (by default all running ones) is ready."""
        for number in numbers or self.running:
            process = self.process(number)
            wait_until(partial(self._ready_or_ended, number), timeout_s=timeout_s, what=process.log_tail)

    # ------------------------------------------------------------------ one peer

    def kill(self, number: int) -> None:
        """kill -9."""
        self.process(number).kill()

    def stop(self, number: int) -> int | None:
        """SIGTERM; returns the exit code."""
        return self.process(number).stop()

    def pause(self, number: int) -> None:
        """SIGSTOP: the process is suspended, its connections stay open."""
        self.process(number).signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.process(number).signal(signal.SIGCONT)

    def restart(self, number: int, *, ready: bool = True, timeout_s: float = START_S) -> None:
        """Start a peer that is down, with the same folder and ports."""
        process = self.process(number)
        if "join" in process.flags:
            process.flags["join"] = self._join_address(number)
        process.start()
        process.wait_serving(timeout_s)
        if ready:
            self.wait_ready(number, timeout_s=timeout_s)

    def add(
        self,
        *,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
        ready: bool = True,
        timeout_s: float = START_S,
    ) -> int:
        """Add a peer, with these settings in addition to the cluster's; returns its number. Needs a quorum."""
        place = folder or self.folder / f"joining-{self.ports.take()}"
        api, link = (f"{LOOPBACK}:{self.ports.take()}" for _ in range(2))
        flags = {"listen": api, "peer_listen": link, "join": self._join_address(0), **self.settings, **(settings or {})}
        process = PeerProcess(folder=place, flags=flags, token=self.token, program=self.program)
        process.start()
        try:
            number = process.wait_serving(timeout_s).number
        except BaseException:
            process.kill()
            raise
        self.processes[number], self._apis[number], self._links[number] = process, api, link
        if ready:
            self.wait_ready(number, timeout_s=timeout_s)
        return number

    def process(self, number: int) -> PeerProcess:
        if number not in self.processes:
            raise UnknownPeer(f"this cluster has no peer {number}; it has {sorted(self.processes)}")
        return self.processes[number]

    # ------------------------------------------------------------------ properties of peers

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(number for number in sorted(self.processes) if self.processes[number].alive)

    @property
    def addresses(self) -> str:
        """The API addresses of all peers, running or not, in the form for `avow.connect`."""
        return ",".join(self.api(number) for number in sorted(self._apis))

    def api(self, number: int) -> str:
        scheme = "https" if "tls_cert" in self.settings else "http"
        return f"{scheme}://{self._apis[number]}"

    def link(self, number: int) -> str:
        """The address on which this peer listens for links, even if others get another one."""
        return self._links[number]

    def data(self, number: int) -> Path:
        known = self.processes.get(number)
        return known.folder if known is not None else self.folder / f"peer-{number}"

    def log(self, number: int) -> Path:
        return self.process(number).log

    def pid(self, number: int) -> int:
        return self.process(number).pid

    def cpu_s(self, number: int) -> float:
        return self.process(number).cpu_s()

    def rss_bytes(self, number: int) -> int:
        return self.process(number).rss_bytes()

    def ask(self, number: int, path: str, *, timeout_s: float = REQUEST_S) -> Any:
        """GET a path of this peer's API. Raises Offline if it does not answer 200."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        trust = ssl.create_default_context(cafile=self.ca) if self.ca else None
        with connection_to(self.api(number), tls=trust, connect_timeout_s=timeout_s) as connection:
            answer = connection.request("GET", path, headers=headers, timeout_s=timeout_s)
        if not isinstance(answer, Lost) and answer.ok:
            return msgspec.json.decode(answer.body)
        problem = answer.reason if isinstance(answer, Lost) else f"HTTP {answer.status}"
        raise Offline(f"peer {number} did not answer GET {path}: {problem}; nothing was changed")

    def ready(self, number: int) -> bool:
        try:
            self.ask(number, "/readyz")
        except Offline:
            return False
        return True

    # ------------------------------------------------------------------ parts

    def _ready_or_ended(self, number: int) -> bool:
        process = self.process(number)
        if not process.alive:
            raise Offline(f"peer {number} ended with {process.exit_code}: {process.log_tail()}")
        return self.ready(number)

    def _names_all(self, number: int) -> bool:
        """A peer announces its addresses through the metadata lane, some time after it is ready."""
        named = {peer["number"] for peer in self.ask(number, "/v1/peers")["peers"] if peer["api"]}
        return named >= set(self.founders)

    def _founder(self, number: int) -> PeerProcess:
        founders = ",".join(f"{n}={self.link_addresses[n]}" for n in self.founders)
        flags = {
            "listen": self._apis[number],
            "peer_listen": self._links[number],
            "number": str(number),
            "founders": founders,
            **self.settings,
        }
        prefix = self._prefix(number)
        return PeerProcess(
            folder=self.data(number),
            flags=flags,
            prefix=prefix,
            token=self.token,
            code=self.code,
            program=self.program,
        )

    def _address(self, number: int, ports: Sequence[int]) -> str:
        host = self._hosts.get(number, LOOPBACK)
        return f"{host}:{ports[number - 1] if ports else self.ports.take()}"

    def _join_address(self, but: int) -> str:
        """The API of a running peer other than `but`; of any other peer if none runs."""
        others = [number for number in self.running if number != but] or [n for n in self._apis if n != but]
        return self.api(others[0])
