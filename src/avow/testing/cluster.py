"""A cluster of real peer processes on this machine, to use, to break and to measure.

    with LocalCluster(3) as cluster:                 # folders temporary, ports free ones, ready when the block begins
        client = avow.connect_blocking(cluster.addresses)
        cluster.kill(1)                              # kill -9; also stop, pause, resume, restart, add
        cluster.restart(1)

Each peer is an `avow serve` process with a folder, a log and ports that it keeps from one start to the next. Leaving
the block ends all of them, whatever happened inside. Everything here blocks its caller for as long as it says; an event
loop calls it through `asyncio.to_thread`.

Something may stand between the peers: `link_addresses` are what all founders are told (a proxy's, say, that leads to
`link(number)`; fill it in before the start), `hosts` gives a peer an address of its own, and `prefix(number)` what its
command begins with, such as ("ip", "netns", "exec", "peer1"). All founders must be told the same: it is what makes them
one cluster.
"""

from __future__ import annotations

import http.client
import shutil
import signal
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from avow.errors import InvalidRequest, Offline, UnknownPeer
from avow.peer.libraries import check_installed
from avow.testing.cluster_ports import Ports
from avow.testing.cluster_process import START_S, PeerProcess, Serving
from avow.testing.cluster_wait import wait_until

__all__ = ["LocalCluster", "PeerProcess", "Serving", "wait_until"]

LOOPBACK: Final = "127.0.0.1"
ASK_S: Final = 2.0


class LocalCluster:
    """`api_ports` and `link_ports` fix the founders' ports; otherwise free ones are taken. `settings` are flags of
    `avow serve` for every peer. A folder that was named is kept, a temporary one is removed at the end."""

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
    ) -> None:
        if peers < 1:
            raise InvalidRequest(f"a cluster has at least one peer, not {peers}; nothing was started")
        self.founders = tuple(range(1, peers + 1))
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="avow-")) if folder is None else Path(folder).absolute()
        self.settings = dict(settings or {})
        self.token, self.ca = token, ca
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

    # ------------------------------------------------------------------ the whole

    def start(self, timeout_s: float = START_S) -> None:
        """Start the founders and wait until each is ready and every peer can name all of them."""
        self.launch()
        self.wait_ready(timeout_s=timeout_s)
        for number in self.founders:
            wait_until(partial(self._names_all, number), timeout_s=timeout_s, what=self.process(number).last_words)

    def launch(self) -> None:
        """Start the founders and wait until each listens, which needs no quorum. Raises NotInstalled."""
        check_installed("a peer")
        for number in self.founders:
            self.processes.setdefault(number, self._founder(number)).start()
        for number in self.founders:
            self.processes[number].wait_serving()

    def stop_all(self) -> None:
        """End all peers in an orderly way, at the same time."""
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
        for process in self.processes.values():
            process.stop()

    def close(self) -> None:
        """Kill what runs, give the ports back, remove a temporary folder. May be called again."""
        for process in self.processes.values():
            process.kill()
        self.ports.release()
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def wait_ready(self, *numbers: int, timeout_s: float = START_S) -> None:
        """Until each of these peers (all that run, if none is named) says it is ready."""
        for number in numbers or self.running:
            process = self.process(number)
            wait_until(partial(self._ready_or_ended, number), timeout_s=timeout_s, what=process.last_words)

    # ------------------------------------------------------------------ one peer

    def kill(self, number: int) -> None:
        """kill -9."""
        self.process(number).kill()

    def stop(self, number: int) -> int | None:
        """Orderly; the exit code."""
        return self.process(number).stop()

    def pause(self, number: int) -> None:
        """SIGSTOP: the process stands still, its connections stay."""
        self.process(number).signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.process(number).signal(signal.SIGCONT)

    def restart(self, number: int, *, ready: bool = True, timeout_s: float = START_S) -> None:
        """Start a peer that is down, with its folder and its ports."""
        process = self.process(number)
        if "join" in process.flags:
            process.flags["join"] = self._somebody(number)
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
        """A new peer joins, with these settings beside the cluster's; its number. The cluster must have a quorum."""
        place = folder or self.folder / f"joining-{self.ports.take()}"
        api, link = (f"{LOOPBACK}:{self.ports.take()}" for _ in range(2))
        flags = {"listen": api, "peer_listen": link, "join": self._somebody(0), **self.settings, **(settings or {})}
        process = PeerProcess(folder=place, flags=flags, token=self.token)
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
            raise UnknownPeer(f"this cluster never started a peer {number}; it has {sorted(self.processes)}")
        return self.processes[number]

    # ------------------------------------------------------------------ what is known of them

    @property
    def running(self) -> tuple[int, ...]:
        return tuple(number for number in sorted(self.processes) if self.processes[number].alive)

    @property
    def addresses(self) -> str:
        """Every peer's API, running or not, as `avow.connect` takes them."""
        return ",".join(self.api(number) for number in sorted(self._apis))

    def api(self, number: int) -> str:
        scheme = "https" if "tls_cert" in self.settings else "http"
        return f"{scheme}://{self._apis[number]}"

    def link(self, number: int) -> str:
        """Where this peer listens for links, whatever others are told."""
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

    def ask(self, number: int, path: str, *, timeout_s: float = ASK_S) -> Any:
        """GET a path of this peer's API. Raises Offline when it does not answer 200."""
        request = urllib.request.Request(self.api(number) + path)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self._opener().open(request, timeout=timeout_s) as answer:
                return msgspec.json.decode(answer.read())
        except (OSError, http.client.HTTPException) as error:  # gone before its answer, or in the middle of it
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise Offline(f"peer {number} did not answer GET {path}: {error}; nothing was changed") from error

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
            raise Offline(f"peer {number} ended with {process.exit_code}: {process.last_words()}")
        return self.ready(number)

    def _names_all(self, number: int) -> bool:
        """A peer announces its addresses through the metadata lane, some time after it is ready."""
        named = {peer["number"] for peer in self.ask(number, "/v1/peers")["peers"] if peer["api"]}
        return named >= set(self.founders)

    def _founder(self, number: int) -> PeerProcess:
        told = ",".join(f"{n}={self.link_addresses[n]}" for n in self.founders)
        flags = {
            "listen": self._apis[number],
            "peer_listen": self._links[number],
            "number": str(number),
            "founders": told,
            **self.settings,
        }
        return PeerProcess(folder=self.data(number), flags=flags, prefix=self._prefix(number), token=self.token)

    def _address(self, number: int, ports: Sequence[int]) -> str:
        host = self._hosts.get(number, LOOPBACK)
        return f"{host}:{ports[number - 1] if ports else self.ports.take()}"

    def _somebody(self, but: int) -> str:
        """The API of a running peer to join through; any peer's, when none runs."""
        others = [number for number in self.running if number != but] or [n for n in self._apis if n != but]
        return self.api(others[0])

    def _opener(self) -> urllib.request.OpenerDirector:
        """Straight to the peer: no proxy that the environment names."""
        direct = urllib.request.ProxyHandler({})
        if not self.ca:
            return urllib.request.build_opener(direct)
        trust = ssl.create_default_context(cafile=self.ca)
        return urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=trust))
