"""`avow status`: who is there, who coordinates what, where each lane ends, and who is behind."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live

from avow.cli.api import Api
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.show import console, number, numbers, plain, plural, print_json, table
from avow.cli.view import ClusterView, LaneView, PeerView, gather
from avow.errors import AvowError


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until Ctrl-C.")] = False,
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 1.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Show peers, lanes with coordinator, end and lag, and subscribers. Every peer is asked.

    With --watch and --json: one object per line, as long as somebody reads.
    """
    cluster = Api(api, token=token, ca=ca)
    if not watch:
        view = gather(cluster)
        print_json(as_object(view)) if as_json else console().print(picture(view))
    elif as_json:
        _repeat_json(cluster, interval_s)
    else:
        _repeat(cluster, interval_s)


def _repeat(cluster: Api, interval_s: float) -> None:
    """On a terminal in place, elsewhere one after the other."""
    gather(cluster)  # nobody there: say so at once
    screen = console()
    with Live(console=screen, auto_refresh=False) if screen.is_terminal else nullcontext() as live:
        while True:
            seen = _picture_or_trouble(cluster)
            live.update(seen, refresh=True) if live is not None else screen.print(seen)
            time.sleep(interval_s)


def _picture_or_trouble(cluster: Api) -> RenderableType:
    try:
        return picture(gather(cluster))
    except AvowError as error:
        return f"{error.code}: {error}"


def _repeat_json(cluster: Api, interval_s: float) -> None:
    while True:
        print_json(as_object(gather(cluster)))
        time.sleep(interval_s)


def as_object(view: ClusterView) -> dict[str, Any]:
    """For programs: what the tables show, by the names of the API."""
    return {
        "cluster": view.cluster,
        "asked": view.asked,
        "peers": msgspec.to_builtins(view.peers),
        "lanes": [
            {**msgspec.to_builtins(lane), "ends": _by_text(lane.ends), "lag": _by_text(lane.lag)} for lane in view.lanes
        ],
        "subscribers": [{**msgspec.to_builtins(one), "versions": _by_text(one.versions)} for one in view.subscribers],
    }


def picture(view: ClusterView) -> RenderableType:
    parts = [peers_table(view), lanes_table(view), _subscribers_table(view)]
    return Group(*(piece for part in parts if part for piece in (part, "")))


def peers_table(view: ClusterView) -> RenderableType:
    columns = ("peer", "state", "api", "votes", ">coordinates", ">behind", ">pid", "")
    rows = [
        (
            str(peer.number),
            peer_state(peer),
            peer.api,
            "yes" if peer.voter else "no",
            number(peer.coordinates) if peer.up else "-",
            number(sum(lane.lag.get(peer.number, 0) for lane in view.lanes)) if peer.up else "-",
            str(peer.pid or "-"),
            "" if peer.up else f"[red]{plain(_short(peer.trouble))}[/]",
        )
        for peer in view.peers
    ]
    up = sum(peer.up for peer in view.peers)
    return table(f"{plural(len(view.peers), 'peer')}, {up} up", *columns, rows=rows)


def lanes_table(view: ClusterView) -> RenderableType:
    """End and trimmed are versions; committed counts entries, with those behind it that wait for a quorum."""
    columns = ("queue", "lane", "coordinator", "members", ">end", ">trimmed", ">committed", "behind")
    rows = [
        (
            plain(lane.queue),
            str(lane.lane),
            leader(lane),
            numbers(lane.voters),
            number(lane.end),
            number(lane.trimmed_to),
            _committed(lane),
            _behind(lane),
        )
        for lane in view.lanes
        if not lane.empty_for_good
    ]
    named = {lane.queue for lane in view.lanes}
    rows += [(plain(queue["name"]), *("-",) * 6, "no lane yet") for queue in view.queues if queue["name"] not in named]
    return table("lanes", *columns, rows=rows, empty="no queues yet: avow queue create NAME")


def _subscribers_table(view: ClusterView) -> RenderableType:
    rows = [
        (
            plain(one.queue),
            plain(one.name),
            " ".join(f"{lane}:{version}" for lane, version in sorted(one.versions.items())) or "-",
            "yes" if one.hold else "no",
            number(one.lag),
        )
        for one in view.subscribers
    ]
    return table("subscribers", "queue", "name", "lane:version", "holds", ">behind", rows=rows) if rows else ""


def peer_state(peer: PeerView) -> str:
    if not peer.up:
        return "[bold red]down[/]"
    if peer.disk_full:
        return "[bold red]disk full[/]"
    if peer.state != "ready":
        return f"[yellow]{peer.state}[/]"
    return "[green]up[/]" if peer.ready else "[yellow]not ready[/]"


def leader(lane: LaneView) -> str:
    if lane.strategy == "pub-sub":
        return f"owner {lane.owner}{' (ended)' if lane.ended else ''}"
    return str(lane.coordinator) if lane.coordinator else "[bold red]none[/]"


def _committed(lane: LaneView) -> str:
    waiting = (lane.stored or 0) - (lane.committed or 0)
    return number(lane.committed) + (f" +{waiting:,}" if waiting > 0 else "")


def _behind(lane: LaneView) -> str:
    return " ".join(f"{peer}:-{count:,}" for peer, count in sorted(lane.lag.items())) or "-"


def _short(trouble: str) -> str:
    return trouble.split("; nothing")[0].removeprefix("no peer answered (").removesuffix(")")


def _by_text(found: dict[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in sorted(found.items())}
