"""`avow up`: run a cluster on this machine in one terminal, to try things out. Ctrl-C stops all peers.

Each peer is a process with its own data folder, so `kill -9` on one is a real crash. The data is kept between runs. On
a terminal there is a live view, otherwise one line per event.

`Watch` restarts peers. It restarts a peer that ended a few seconds later, so that one can see how the cluster works
without it. It does not restart a peer that ends repeatedly right after its start (its log shows why), nor a peer that
was removed from the cluster. `Watch` gets the time as an argument and prints nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec
import typer
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from avow.cli.cluster_api import Api
from avow.cli.local_listeners import listeners
from avow.cli.options import JsonOption
from avow.cli.output import console, number, numbers, plain, plural, print_json, size_text, table
from avow.cli.status import ClusterView, PeerView, gather, leader, peer_state
from avow.errors import AvowError, InvalidRequest
from avow.limits import PEERS_MAX
from avow.server import check_installed
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_ports import is_free

RESTART_AFTER_S: Final = 5.0
SHORT_RUN_S: Final = 10.0
SHORT_RUNS_MAX: Final = 3


class Event(Struct, frozen=True):
    """What happened to a peer: started, ready, died, restarted, abandoned or removed; printed as a line or as JSON."""

    peer: int
    event: str
    text: str


class Process(Protocol):
    @property
    def alive(self) -> bool: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def log_tail(self) -> str: ...


@dataclass(slots=True)
class _RunState:
    """Of one peer's process: its start, its end, and whether it is restarted."""

    started_at: float
    died_at: float | None = None
    short_runs: int = 0
    abandoned: bool = False


@dataclass(slots=True)
class Watch:
    processes: dict[int, Process]
    states: dict[int, _RunState] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        self.states = {number: _RunState(started_at=now) for number in self.processes}

    def tick(self, now: float, *, gone: frozenset[int] = frozenset()) -> list[Event]:
        """`gone`: numbers of peers that were removed from the cluster."""
        events = [self._check(number, state, now, gone=number in gone) for number, state in self.states.items()]
        return [event for event in events if event is not None]

    def returns_in_s(self, number: int, now: float) -> float | None:
        """Seconds until a peer that ended is restarted; None if it runs or will not be restarted."""
        state = self.states[number]
        if state.died_at is None or state.abandoned:
            return None
        return max(0.0, state.died_at + RESTART_AFTER_S - now)

    def _check(self, number: int, state: _RunState, now: float, *, gone: bool) -> Event | None:
        process = self.processes[number]
        if process.alive or state.abandoned:
            return None
        if state.died_at is None:
            return self._died(number, state, now, gone=gone)
        if now < state.died_at + RESTART_AFTER_S:
            return None
        process.start()
        state.started_at, state.died_at = now, None
        return Event(number, "restarted", f"peer {number} was restarted (pid {process.pid})")

    def _died(self, number: int, state: _RunState, now: float, *, gone: bool) -> Event:
        process = self.processes[number]
        state.died_at = now
        state.short_runs = state.short_runs + 1 if now - state.started_at < SHORT_RUN_S else 0
        how = _how(process.exit_code)
        if gone:
            state.abandoned = True
            text = f"peer {number} {how} after it was removed from the cluster; it is not restarted"
            return Event(number, "removed", text)
        if state.short_runs >= SHORT_RUNS_MAX:
            state.abandoned = True
            text = f"peer {number} {how} {SHORT_RUNS_MAX} times in a row and is not restarted; {process.log_tail()}"
            return Event(number, "abandoned", text)
        return Event(number, "died", f"peer {number} {how}; it will be restarted in {RESTART_AFTER_S:g} s")


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


POLL_S: Final = 0.5
EVENTS_SHOWN: Final = 6
LANES_SHOWN: Final = 16  # so that the commands to try stay on the screen
LINK_PORT_OFFSET: Final = 100  # a peer's link port is its API port plus this


def up(
    peers: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of peers.", show_default="3, or as many as --data holds")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder for the peers' data, kept between runs.")] = Path("avow-data"),
    port: Annotated[
        int, typer.Option(min=1, max=65_000, help="Base port: peer N serves the API on this port plus N.")
    ] = 7400,
    temporary: Annotated[bool, typer.Option("--temporary", help="Delete all data at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C, and show its state.

    A peer that ends is restarted after five seconds: kill one to see how the cluster reacts.
    """
    check_installed("avow up")
    count = peers or 3 if temporary else _count(data, peers)
    api_ports = [port + number for number in range(1, count + 1)]
    link_ports = [api + LINK_PORT_OFFSET for api in api_ports]
    _check_ports(api_ports + link_ports)
    cluster = LocalCluster(count, folder=None if temporary else data, api_ports=api_ports, link_ports=link_ports)
    with stopped_by_signals() as stopping, _closed(cluster):
        cluster.launch()
        UpLoop(cluster, stopping=stopping, kept=not temporary).run(
            live=sys.stdout.isatty() and not as_json, as_json=as_json
        )


class UpLoop:
    """Watches the peers and shows their state, from when all of them listen until `stopping` is set."""

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
        place = f"data in {cluster.folder}" if kept else "temporary data"
        self.title = f"avow up: {plural(len(cluster.founders), 'peer')}, {place}. Ctrl-C stops the cluster"

    def run(self, *, live: bool, as_json: bool) -> None:
        self.watch.begin(time.monotonic())
        if live:
            with Live(console=console(), auto_refresh=False, transient=True) as screen:
                while not self.stopping.wait(POLL_S):
                    self._record(self._poll())
                    screen.update(self._screen(), refresh=True)
            console().print("all peers have stopped", style="dim")
            return
        self._print([self._started(number) for number in self.cluster.founders], as_json=as_json)
        while not self.stopping.wait(POLL_S):
            self._print(self._poll(), as_json=as_json)

    def _poll(self) -> list[Event]:
        try:
            self.view = gather(self.api, subscribers=False)
        except AvowError:
            self.view = None
        gone = frozenset(self.view.removed) if self.view is not None else frozenset()
        events = self.watch.tick(time.monotonic(), gone=gone)
        if not self.was_ready and self._all_ready():
            self.was_ready = True
            events.append(
                Event(0, "ready", "ready; try in another terminal: " + "; ".join(next_lines(self.cluster.addresses)))
            )
        return events

    def _all_ready(self) -> bool:
        ready = {peer.number for peer in self.view.peers if peer.ready} if self.view is not None else set()
        return ready >= set(self.cluster.founders)

    def _started(self, number: int) -> Event:
        process = self.cluster.process(number)
        return Event(number, "started", f"peer {number} listens at {self.cluster.api(number)} (pid {process.pid})")

    def _record(self, events: list[Event]) -> None:
        at = time.strftime("%H:%M:%S")
        self.events += [f"{at} {event.text}" for event in events if event.event != "ready"]
        del self.events[:-EVENTS_SHOWN]

    def _print(self, events: list[Event], *, as_json: bool) -> None:
        for event in events:
            print_json(msgspec.to_builtins(event)) if as_json else typer.echo(event.text)
        sys.stdout.flush()

    def _screen(self) -> RenderableType:
        now = time.monotonic()
        rates = self.rates.update(self.view, now) if self.view is not None else {}
        return screen_of(
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
        except (OSError, IndexError):  # the process ended just now, or there is no /proc
            cpu_s, rss = 0.0, 0
        before_s, before = self._cpu.get(number, (cpu_s, now - POLL_S))
        self._cpu[number] = (cpu_s, now)
        share = max(0.0, cpu_s - before_s) / max(now - before, 1e-3)
        returns = self.watch.returns_in_s(number, now)
        return ProcessView(process.pid, process.alive, rss_bytes=rss, cpu=share, returns_in_s=returns)


# ---------------------------------------------------------------------- checks before the start, and the shutdown


def _count(data: Path, asked: int | None) -> int:
    """The number of peers: those that the folder holds, else as requested, else 3."""
    found = len([path for path in data.glob("peer-[0-9]*") if path.is_dir()]) if data.is_dir() else 0
    if found and asked not in (None, found):
        raise InvalidRequest(
            f"{data} holds a cluster of {found}; nothing was started. Omit --peers or choose another folder with "
            "--data; avow peer add shows how to add a peer"
        )
    return min(found or asked or 3, PEERS_MAX)


def _check_ports(ports: list[int]) -> None:
    for port in ports:
        if not is_free(port):
            known = listeners({port}).get(port)
            user = f"process {known.pid} ({known.command})" if known else "another process"
            raise InvalidRequest(
                f"port {port} is in use by {user}; nothing was started. End that process, or choose other ports with "
                "--port"
            )


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """The event is set by SIGINT, SIGTERM and SIGHUP (Ctrl-C, a request to end, a closed terminal)."""
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


# ---------------------------------------------------------------------- the live view


class ProcessView(Struct, frozen=True):
    """`returns_in_s`: seconds until a peer that ended is restarted; None if it runs or is not restarted."""

    pid: int
    alive: bool
    rss_bytes: int = 0
    cpu: float = 0.0
    returns_in_s: float | None = None


def next_lines(addresses: str) -> list[str]:
    return [
        f"export AVOW_API={addresses}",
        "avow queue create orders",
        "avow enqueue orders first second third",
        "avow read orders",
    ]


def screen_of(
    view: ClusterView | None,
    *,
    processes: Mapping[int, ProcessView],
    apis: Mapping[int, str],
    rates: Mapping[int, float],
    events: list[str],
    title: str,
    addresses: str,
) -> RenderableType:
    """`rates`: messages per second by global lane number."""
    known = {peer.number: peer for peer in view.peers} if view is not None else {}
    lag = _lag(view)
    columns = ("peer", "state", "api", ">pid", ">coordinates", ">behind", ">memory", ">cpu")
    rows = [_peer(n, one, known.get(n), api=apis[n], lag=lag.get(n, 0)) for n, one in sorted(processes.items())]
    rows += [_foreign(peer, lag.get(n, 0)) for n, peer in sorted(known.items()) if n not in processes]
    parts: list[RenderableType] = [table(title, *columns, rows=rows), ""]
    if view is not None:
        parts += [_lanes(view, rates), ""]
    parts.append(Text("try in another terminal:", style="bold"))
    parts += [Text(f"  {line}") for line in next_lines(addresses)]
    parts += [Text(line, style="dim") for line in ("", *events)]
    return Group(*parts)


def _peer(n: int, one: ProcessView, known: PeerView | None, *, api: str, lag: int) -> tuple[str, ...]:
    if not one.alive:
        back = "" if one.returns_in_s is None else f", restart in {one.returns_in_s:.0f} s"
        return (str(n), f"[bold red]down[/]{back}", api, "-", "-", "-", "-", "-")
    up = known is not None and known.up
    state = peer_state(known) if known is not None and up else "[yellow]starting[/]"
    coordinates = number(known.coordinates) if known is not None and up else "-"
    behind = number(lag) if up else "-"
    return (str(n), state, api, str(one.pid), coordinates, behind, size_text(one.rss_bytes), f"{one.cpu:.0%}")


def _foreign(peer: PeerView, lag: int) -> tuple[str, ...]:
    """A peer of the cluster that another process started."""
    return (
        str(peer.number),
        peer_state(peer),
        peer.api,
        str(peer.pid or "-"),
        number(peer.coordinates),
        number(lag),
        "-",
        "-",
    )


def _lanes(view: ClusterView, rates: Mapping[int, float]) -> RenderableType:
    columns = ("queue", "lane", "coordinator", "members", ">end", ">messages/s")
    lanes = [lane for lane in view.lanes if not lane.permanently_empty]
    rows = [
        (
            plain(lane.queue),
            str(lane.lane),
            leader(lane),
            numbers(lane.voters),
            number(lane.end),
            f"{rates.get(lane.number, 0.0):,.0f}",
        )
        for lane in lanes[:LANES_SHOWN]
    ]
    if len(lanes) > LANES_SHOWN:
        rows.append((f"and {len(lanes) - LANES_SHOWN} more lanes: avow status", *("",) * 5))
    return table("", *columns, rows=rows, empty="no queues yet")


def _lag(view: ClusterView | None) -> dict[int, int]:
    lag: dict[int, int] = {}
    for lane in view.lanes if view is not None else ():
        for peer, count in lane.lag.items():
            lag[peer] = lag.get(peer, 0) + count
    return lag


class Rates:
    """Messages per second of each lane between two updates."""

    __slots__ = ("_at", "_ends")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._at = 0.0

    def update(self, view: ClusterView, now: float) -> dict[int, float]:
        passed = now - self._at
        ends = {lane.number: lane.end for lane in view.lanes}
        rates = {n: max(0, end - self._ends.get(n, 0)) / passed for n, end in ends.items()} if self._at else {}
        self._ends, self._at = ends, now
        return rates
