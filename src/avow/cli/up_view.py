"""What `avow up` shows while it runs: peers, lanes with their rates, the next lines to type, what happened lately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from avow.cli.show import number, numbers, plain, size_text, table
from avow.cli.status import leader, peer_state
from avow.cli.view import ClusterView, PeerView

LANES_SHOWN: Final = 16  # the lines to type must stay on the screen


class ProcessView(Struct, frozen=True):
    """`returns_in_s`: a dead peer is started again then; None: it runs, or it stays down."""

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


def picture(
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
    rows += [_other(peer, lag.get(n, 0)) for n, peer in sorted(known.items()) if n not in processes]
    parts: list[RenderableType] = [table(title, *columns, rows=rows), ""]
    if view is not None:
        parts += [_lanes(view, rates), ""]
    parts.append(Text("in another terminal:", style="bold"))
    parts += [Text(f"  {line}") for line in next_lines(addresses)]
    parts += [Text(line, style="dim") for line in ("", *events)]
    return Group(*parts)


def _peer(n: int, one: ProcessView, said: PeerView | None, *, api: str, lag: int) -> tuple[str, ...]:
    if not one.alive:
        back = (
            "[bold red]down[/]" if one.returns_in_s is None else f"[bold red]down[/], back in {one.returns_in_s:.0f} s"
        )
        return (str(n), back, api, "-", "-", "-", "-", "-")
    up = said is not None and said.up
    state = peer_state(said) if said is not None and up else "[yellow]starting[/]"
    coordinates = number(said.coordinates) if said is not None and up else "-"
    behind = number(lag) if up else "-"
    return (str(n), state, api, str(one.pid), coordinates, behind, size_text(one.rss_bytes), f"{one.cpu:.0%}")


def _other(peer: PeerView, lag: int) -> tuple[str, ...]:
    """A peer that somebody else started."""
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
    lanes = [lane for lane in view.lanes if not lane.empty_for_good]
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
    """Messages per second of each lane between one look and the next."""

    __slots__ = ("_at", "_ends")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._at = 0.0

    def look(self, view: ClusterView, now: float) -> dict[int, float]:
        passed = now - self._at
        ends = {lane.number: lane.end for lane in view.lanes}
        rates = {n: max(0, end - self._ends.get(n, 0)) / passed for n, end in ends.items()} if self._at else {}
        self._ends, self._at = ends, now
        return rates
