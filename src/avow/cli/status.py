"""`avow status`: the state of a cluster: peers, coordinators, the end of each lane, and which peers lag behind.

A peer knows only its own lane ends and connections, so the view is composed from the answers of all peers. The list of
peers comes from the first one that answers; then all peers are asked in parallel, each with a short timeout. A peer
that does not answer is shown as down; only if no peer answers is this an error.

A lane's end is the highest that any peer reports; a peer's lag is how far its own end is below that. The peers do not
answer at the same instant, so under load a lag of a few messages only reflects the time between two answers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live

from avow.cli.cluster_api import Api, path_of
from avow.cli.local_listeners import Listener, listeners
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.output import console, number, numbers, plain, plural, print_json, table
from avow.errors import AvowError, UnknownQueue
from avow.server.access import is_loopback

PEER_S: Final = 2.0
ASKED_AT_ONCE: Final = 16


class PeerView(Struct, frozen=True):
    """`up`: the peer answered; `trouble`: why it did not. `coordinates`: the number of lanes it coordinates or owns.
    `pid`: of its process, if that runs on this machine and may be read."""

    number: int
    api: str
    link: str
    state: str
    voter: bool
    up: bool
    ready: bool
    pid: int | None
    incarnation: int | None
    coordinates: int
    disk_full: bool = False
    trouble: str = ""


class LaneView(Struct, frozen=True):
    """`end` and `ends` are versions, which count readable messages. `stored` and `committed` count log entries at the
    coordinator; the entries between them wait for a quorum."""

    queue: str
    lane: int
    number: int
    strategy: str
    end: int
    trimmed_to: int
    coordinator: int | None
    owner: int | None
    ended: bool
    voters: tuple[int, ...]
    stored: int | None
    committed: int | None
    ends: dict[int, int]  # peer -> its end
    lag: dict[int, int]  # peer that is behind -> number of missing messages

    @property
    def permanently_empty(self) -> bool:
        """A pub-sub lane whose owner has ended and that holds no messages."""
        return self.ended and self.end == self.trimmed_to


class SubscriberView(Struct, frozen=True):
    queue: str
    name: str
    versions: dict[int, int]
    hold: bool
    lag: int


class ClusterView(Struct, frozen=True):
    """`peers` are the present members of the cluster, `removed` the numbers of former members."""

    cluster: str
    asked: str
    peers: tuple[PeerView, ...]
    queues: tuple[dict[str, Any], ...]
    lanes: tuple[LaneView, ...]
    subscribers: tuple[SubscriberView, ...] = ()
    removed: tuple[int, ...] = ()


class PeerAnswers(Struct, frozen=True):
    """What one peer reported about the cluster and its queues."""

    up: bool = False
    ready: bool = False
    cluster: dict[str, Any] = {}
    queues: tuple[dict[str, Any], ...] = ()
    trouble: str = ""


def gather(api: Api, *, subscribers: bool = True) -> ClusterView:
    """Raises Offline when no peer answers."""
    listed: list[dict[str, Any]] = api.get(path_of("peers"))["peers"]
    asked = [peer for peer in listed if peer["state"] != "gone"]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        received = list(pool.map(lambda peer: _ask(api, str(peer.get("api") or "")), asked))
    answers = {int(peer["number"]): answer for peer, answer in zip(asked, received, strict=True)}
    view = compose(listed, answers, asked=api.address)
    return replace(view, subscribers=tuple(_subscribers(api, view))) if subscribers else view


def compose(listed: list[dict[str, Any]], answers: dict[int, PeerAnswers], *, asked: str = "") -> ClusterView:
    """The view from the answers by peer number; `listed` is the list of peers that one of them returned."""
    listed = sorted(listed, key=lambda peer: int(peer["number"]))
    queues = _queues(answers.values())
    lanes = tuple(_lane(queue, lane, answers) for queue in queues for lane in queue["lanes"])
    here = listeners({_local_port(str(peer.get("api") or "")) for peer in listed} - {0})
    return ClusterView(
        cluster=next((str(one.cluster.get("cluster", "")) for one in answers.values() if one.up), ""),
        asked=asked,
        peers=tuple(
            _peer(peer, answers[int(peer["number"])], lanes, here) for peer in listed if peer["state"] != "gone"
        ),
        queues=queues,
        lanes=lanes,
        removed=tuple(int(peer["number"]) for peer in listed if peer["state"] == "gone"),
    )


def _ask(api: Api, address: str) -> PeerAnswers:
    if not address:
        return PeerAnswers(trouble="it has not announced its address yet")
    try:
        one = api.only(address, timeout_s=PEER_S)
        cluster, queues = one.get(path_of("cluster")), one.get(path_of("queues"))["queues"]
    except AvowError as error:
        return PeerAnswers(trouble=str(error))
    return PeerAnswers(up=True, ready=_ready(one), cluster=cluster, queues=tuple(queues))


def _ready(one: Api) -> bool:
    try:
        one.get("/readyz")
    except AvowError:
        return False
    return True


def _queues(answers: Iterable[PeerAnswers]) -> tuple[dict[str, Any], ...]:
    """Every queue and lane that any peer lists. A lane is taken from the peer that reports the highest end."""
    found: dict[str, dict[str, Any]] = {}
    for queue in (queue for one in answers for queue in one.queues):
        known = found.setdefault(queue["name"], {**queue, "lanes": []})
        lanes = {lane["lane"]: lane for lane in known["lanes"]}
        for lane in queue["lanes"]:
            before = lanes.get(lane["lane"])
            if before is None or (lane.get("end") or 0) > (before.get("end") or 0):
                lanes[lane["lane"]] = lane
        known["lanes"] = [lanes[index] for index in sorted(lanes)]
    return tuple(found[name] for name in sorted(found))


def _lane(queue: dict[str, Any], lane: dict[str, Any], answers: dict[int, PeerAnswers]) -> LaneView:
    ends = {
        number: end for number, one in answers.items() if (end := _end_at(one, queue["name"], lane["lane"])) is not None
    }
    end = max(ends.values(), default=0)
    coordinator = _coordinator(queue["name"], lane, answers)
    log = _log_at(answers.get(coordinator or 0), lane["number"])
    return LaneView(
        queue=queue["name"],
        lane=lane["lane"],
        number=lane["number"],
        strategy=queue["strategy"],
        end=end,
        trimmed_to=lane.get("trimmed_to") or 0,
        coordinator=coordinator,
        owner=lane.get("owner"),
        ended=bool(lane.get("ended")),
        voters=tuple(lane.get("voters") or ()),
        stored=log.get("log_end"),
        committed=log.get("committed"),
        ends=ends,
        lag={number: end - own for number, own in ends.items() if own < end},
    )


def _coordinator(queue: str, lane: dict[str, Any], answers: dict[int, PeerAnswers]) -> int | None:
    """A peer that names itself is believed first, since only the coordinator itself can know; then any other."""
    named = [
        (one.get("coordinator"), peer)
        for peer, answer in answers.items()
        for each in answer.queues
        if each["name"] == queue
        for one in each["lanes"]
        if one["lane"] == lane["lane"] and one.get("coordinator")
    ]
    for coordinator, peer in named:
        if coordinator == peer:
            return peer
    return named[0][0] if named else None


def _log_at(one: PeerAnswers | None, number: int) -> dict[str, Any]:
    """A lane in a peer's answer about the cluster; empty if the peer or the lane is missing."""
    lanes: list[dict[str, Any]] = one.cluster.get("lanes", []) if one is not None else []
    return next((lane for lane in lanes if lane.get("number") == number), {})


def _end_at(one: PeerAnswers, name: str, index: int) -> int | None:
    for queue in one.queues:
        if queue["name"] == name:
            for lane in queue["lanes"]:
                if lane["lane"] == index:
                    return int(lane["end"]) if lane.get("held", True) else None
    return None


def _peer(
    peer: dict[str, Any], answer: PeerAnswers, lanes: tuple[LaneView, ...], here: dict[int, Listener]
) -> PeerView:
    number = int(peer["number"])
    process = here.get(_local_port(str(peer.get("api") or "")))
    return PeerView(
        number=number,
        api=str(peer.get("api") or ""),
        link=str(peer.get("link") or ""),
        state=str(peer["state"]),
        voter=bool(peer.get("voter")),
        up=answer.up,
        ready=answer.ready,
        pid=process.pid if process is not None else None,
        incarnation=answer.cluster.get("incarnation"),
        coordinates=sum(lane.coordinator == number or (lane.owner == number and not lane.ended) for lane in lanes),
        disk_full=bool(answer.cluster.get("disk_full")),
        trouble=answer.trouble,
    )


def _local_port(address: str) -> int:
    """The port if the address is a loopback one, so that its process is on this machine; otherwise 0."""
    parts = urlsplit(address)
    return parts.port or 0 if parts.hostname and is_loopback(parts.hostname) else 0


def _subscribers(api: Api, view: ClusterView) -> Iterable[SubscriberView]:
    """As reported by a ready peer if there is one. Queues deleted meanwhile are skipped."""
    ready = next((peer.api for peer in view.peers if peer.ready), api.address)
    one = api.only(ready, timeout_s=PEER_S)
    for queue in view.queues:
        with contextlib.suppress(UnknownQueue):
            found = one.get(path_of("queues", queue["name"], "subscribers"))["subscribers"]
            lanes = [lane for lane in view.lanes if lane.queue == queue["name"]]
            yield from (_subscriber(queue["name"], each, lanes) for each in found)


def _subscriber(queue: str, found: dict[str, Any], lanes: list[LaneView]) -> SubscriberView:
    versions = {int(lane): int(version) for lane, version in found["versions"].items()}
    lag = sum(max(0, lane.end - max(versions.get(lane.lane, 0), lane.trimmed_to)) for lane in lanes)
    return SubscriberView(queue, found["name"], versions, bool(found["hold"]), lag)


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the status until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, help="Seconds between two refreshes with --watch.")
    ] = 1.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Show peers, lanes (coordinator, end, lag) and subscribers. Every peer is asked.

    With --watch and --json, one object per line.
    """
    cluster = Api(api, token=token, ca=ca)
    if not watch:
        view = gather(cluster)
        print_json(as_object(view)) if as_json else console().print(tables(view))
    elif as_json:
        _repeat_json(cluster, interval_s)
    else:
        _repeat(cluster, interval_s)


def _repeat(cluster: Api, interval_s: float) -> None:
    """On a terminal the view is updated in place; otherwise the views are printed one after the other."""
    gather(cluster)  # if no peer answers, fail at once
    screen = console()
    with Live(console=screen, auto_refresh=False) if screen.is_terminal else nullcontext() as live:
        while True:
            shown = _tables_or_error(cluster)
            live.update(shown, refresh=True) if live is not None else screen.print(shown)
            time.sleep(interval_s)


def _tables_or_error(cluster: Api) -> RenderableType:
    try:
        return tables(gather(cluster))
    except AvowError as error:
        return f"{error.code}: {error}"


def _repeat_json(cluster: Api, interval_s: float) -> None:
    while True:
        print_json(as_object(gather(cluster)))
        time.sleep(interval_s)


def as_object(view: ClusterView) -> dict[str, Any]:
    """The content of the tables as JSON, with the field names of the API."""
    return {
        "cluster": view.cluster,
        "asked": view.asked,
        "peers": msgspec.to_builtins(view.peers),
        "lanes": [
            {**msgspec.to_builtins(lane), "ends": _by_text(lane.ends), "lag": _by_text(lane.lag)} for lane in view.lanes
        ],
        "subscribers": [{**msgspec.to_builtins(one), "versions": _by_text(one.versions)} for one in view.subscribers],
    }


def tables(view: ClusterView) -> RenderableType:
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
    """`end` and `trimmed` are versions; `committed` counts entries, followed by the number that wait for a quorum."""
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
        if not lane.permanently_empty
    ]
    named = {lane.queue for lane in view.lanes}
    rows += [(plain(queue["name"]), *("-",) * 6, "no lanes yet") for queue in view.queues if queue["name"] not in named]
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
