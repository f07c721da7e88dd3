"""`avow up`: a cluster on this machine in one terminal, to try things on. Ctrl-C stops all of it.

Each peer is a process of its own with a folder of its own, so killing one is what it looks like. Data stays in the
folder from one run to the next. With a terminal there is a live view, without one a line per event.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import RenderableType
from rich.live import Live

from avow.cli.api import Api
from avow.cli.local import listeners
from avow.cli.options import JsonOption
from avow.cli.show import console, plural, print_json
from avow.cli.up_view import ProcessView, Rates, next_lines, picture
from avow.cli.up_watch import Event, Watch
from avow.cli.view import ClusterView, gather
from avow.errors import AvowError, InvalidRequest
from avow.limits import PEERS_MAX
from avow.peer.libraries import check_installed
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_ports import is_free

LOOK_S: Final = 0.5
EVENTS_SHOWN: Final = 6
LINKS_AFTER: Final = 100  # link ports: this far behind the API ports


def up(
    peers: Annotated[int | None, typer.Option(min=1, max=9, help="How many.", show_default="3, or as before")] = None,
    data: Annotated[Path, typer.Option(help="Their folders; kept between runs.")] = Path("avow-data"),
    port: Annotated[int, typer.Option(min=1, max=65_000, help="API ports are the numbers after this one.")] = 7400,
    temporary: Annotated[bool, typer.Option("--temporary", help="Keep nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine and show it live; Ctrl-C stops all of it.

    A peer that dies is started again after five seconds. Kill one and see.
    """
    check_installed("avow up")
    count = peers or 3 if temporary else _count(data, peers)
    api_ports = [port + number for number in range(1, count + 1)]
    link_ports = [api + LINKS_AFTER for api in api_ports]
    _check_ports(api_ports + link_ports)
    cluster = LocalCluster(count, folder=None if temporary else data, api_ports=api_ports, link_ports=link_ports)
    with stopped_by_signals() as stopping, _closed(cluster):
        cluster.launch()
        Upkeep(cluster, stopping=stopping, kept=not temporary).run(
            live=sys.stdout.isatty() and not as_json, as_json=as_json
        )


class Upkeep:
    """From the moment all peers listen until somebody wants an end."""

    def __init__(self, cluster: LocalCluster, *, stopping: threading.Event, kept: bool) -> None:
        self.cluster = cluster
        self.stopping = stopping
        self.watch = Watch(dict(cluster.processes))
        self.api = Api(cluster.addresses, timeout_s=2.0)
        self.rates = Rates()
        self.events: list[str] = []
        self.view: ClusterView | None = None
        self.was_ready = False
        self._cpu: dict[int, tuple[float, float]] = {}
        place = f"data in {cluster.folder}" if kept else "nothing is kept"
        self.title = f"avow up: {plural(len(cluster.founders), 'peer')}, {place}. Ctrl-C stops all"

    def run(self, *, live: bool, as_json: bool) -> None:
        self.watch.begin(time.monotonic())
        if live:
            with Live(console=console(), auto_refresh=False, transient=True) as screen:
                while not self.stopping.wait(LOOK_S):
                    self._note(self._look())
                    screen.update(self._picture(), refresh=True)
            console().print("all peers are stopped", style="dim")
            return
        self._tell([self._started(number) for number in self.cluster.founders], as_json=as_json)
        while not self.stopping.wait(LOOK_S):
            self._tell(self._look(), as_json=as_json)

    def _look(self) -> list[Event]:
        try:
            self.view = gather(self.api, subscribers=False)
        except AvowError:
            self.view = None
        gone = frozenset(self.view.removed) if self.view is not None else frozenset()
        events = self.watch.tick(time.monotonic(), gone=gone)
        if not self.was_ready and self._all_ready():
            self.was_ready = True
            events.append(
                Event(0, "ready", "ready; in another terminal: " + "; ".join(next_lines(self.cluster.addresses)))
            )
        return events

    def _all_ready(self) -> bool:
        ready = {peer.number for peer in self.view.peers if peer.ready} if self.view is not None else set()
        return ready >= set(self.cluster.founders)

    def _started(self, number: int) -> Event:
        process = self.cluster.process(number)
        return Event(number, "started", f"peer {number} listens at {self.cluster.api(number)} (pid {process.pid})")

    def _note(self, events: list[Event]) -> None:
        at = time.strftime("%H:%M:%S")
        self.events += [f"{at} {event.text}" for event in events if event.event != "ready"]
        del self.events[:-EVENTS_SHOWN]

    def _tell(self, events: list[Event], *, as_json: bool) -> None:
        for event in events:
            print_json(msgspec.to_builtins(event)) if as_json else typer.echo(event.text)
        sys.stdout.flush()

    def _picture(self) -> RenderableType:
        now = time.monotonic()
        rates = self.rates.look(self.view, now) if self.view is not None else {}
        return picture(
            self.view,
            processes={number: self._process(number, now) for number in self.cluster.processes},
            apis={number: self.cluster.api(number) for number in self.cluster.processes},
            rates=rates,
            events=self.events,
            title=self.title,
            addresses=self.cluster.addresses,
        )

    def _process(self, number: int, now: float) -> ProcessView:
        process = self.cluster.process(number)
        try:
            cpu_s, rss = process.cpu_s(), process.rss_bytes()
        except (OSError, IndexError):  # it died just now, or /proc is not there
            cpu_s, rss = 0.0, 0
        before_s, before = self._cpu.get(number, (cpu_s, now - LOOK_S))
        self._cpu[number] = (cpu_s, now)
        share = max(0.0, cpu_s - before_s) / max(now - before, 1e-3)
        returns = self.watch.returns_in_s(number, now)
        return ProcessView(process.pid, process.alive, rss_bytes=rss, cpu=share, returns_in_s=returns)


# ---------------------------------------------------------------------- before the start, and the end


def _count(data: Path, asked: int | None) -> int:
    """A folder that holds a cluster says how many founders it has."""
    found = len([path for path in data.glob("peer-[0-9]*") if path.is_dir()]) if data.is_dir() else 0
    if found and asked not in (None, found):
        raise InvalidRequest(
            f"{data} holds a cluster of {found}; nothing was started. Leave --peers out, or name another folder "
            "with --data; avow peer add tells how one more joins"
        )
    return min(found or asked or 3, PEERS_MAX)


def _check_ports(ports: list[int]) -> None:
    for port in ports:
        if not is_free(port):
            known = listeners({port}).get(port)
            user = f"process {known.pid} ({known.command})" if known else "another process"
            raise InvalidRequest(
                f"port {port} is taken by {user}; nothing was started. End it, or choose others with --port"
            )


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Ctrl-C, a closed terminal and an order to end are the same wish."""
    stopping = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _closed(cluster: LocalCluster) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.stop_all()
        cluster.close()
