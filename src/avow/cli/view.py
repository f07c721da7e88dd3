"""One picture of a cluster, put together from what each of its peers says.

A peer knows its own ends and whom it hears; only asking all of them shows who is behind and who is gone. So the list of
peers comes from the first one that answers, then every peer is asked at the same time and given a moment. A peer that
does not answer is part of the picture, not an error. Only when nobody answers is there none.

A lane's end is the highest that any peer shows; a peer's lag is how far its own end is below that. The peers are not
asked in the same instant, so under load a lag of some messages is the time between two questions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from avow.cli.api import Api, path_of
from avow.cli.local import Listener, listeners
from avow.errors import AvowError, UnknownQueue
from avow.peer.access import is_loopback

PEER_S: Final = 2.0
ASKED_AT_ONCE: Final = 16


class PeerView(Struct, frozen=True):
    """`up`: it answered us. `trouble`: why not. `coordinates`: lanes, two-phase and its own pub-sub ones. `pid`: of its
    process, when that is on this machine and ours to see."""

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
    """`end` and `ends` count messages that can be read. `stored` and `committed` count entries of the log, as the
    coordinator has them: what is between them is on its way to a quorum."""

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
    lag: dict[int, int]  # peers that are behind -> by how much

    @property
    def empty_for_good(self) -> bool:
        """A pub-sub lane whose owner is no more and whose messages are removed, or were never there."""
        return self.ended and self.end == self.trimmed_to


class SubscriberView(Struct, frozen=True):
    queue: str
    name: str
    versions: dict[int, int]
    hold: bool
    lag: int


class ClusterView(Struct, frozen=True):
    """`peers` are those that belong to the cluster, `removed` the numbers of those that did."""

    cluster: str
    asked: str
    peers: tuple[PeerView, ...]
    queues: tuple[dict[str, Any], ...]
    lanes: tuple[LaneView, ...]
    subscribers: tuple[SubscriberView, ...] = ()
    removed: tuple[int, ...] = ()


class Said(Struct, frozen=True):
    """The answers of one peer."""

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
        answers = list(pool.map(lambda peer: _ask(api, str(peer.get("api") or "")), asked))
    said = {int(peer["number"]): answer for peer, answer in zip(asked, answers, strict=True)}
    view = compose(listed, said, asked=api.address)
    return replace(view, subscribers=tuple(_subscribers(api, view))) if subscribers else view


def compose(listed: list[dict[str, Any]], said: dict[int, Said], *, asked: str = "") -> ClusterView:
    """The picture from the answers; `listed` are the peers as one of them lists them."""
    listed = sorted(listed, key=lambda peer: int(peer["number"]))
    queues = _queues(said.values())
    lanes = tuple(_lane(queue, lane, said) for queue in queues for lane in queue["lanes"])
    here = listeners({_local_port(str(peer.get("api") or "")) for peer in listed} - {0})
    return ClusterView(
        cluster=next((str(one.cluster.get("cluster", "")) for one in said.values() if one.up), ""),
        asked=asked,
        peers=tuple(_peer(peer, said[int(peer["number"])], lanes, here) for peer in listed if peer["state"] != "gone"),
        queues=queues,
        lanes=lanes,
        removed=tuple(int(peer["number"]) for peer in listed if peer["state"] == "gone"),
    )


def _ask(api: Api, address: str) -> Said:
    if not address:
        return Said(trouble="has not said its address yet")
    try:
        one = api.only(address, timeout_s=PEER_S)
        cluster, queues = one.get(path_of("cluster")), one.get(path_of("queues"))["queues"]
    except AvowError as error:
        return Said(trouble=str(error))
    return Said(up=True, ready=_ready(one), cluster=cluster, queues=tuple(queues))


def _ready(one: Api) -> bool:
    try:
        one.get("/readyz")
    except AvowError:
        return False
    return True


def _queues(said: Iterable[Said]) -> tuple[dict[str, Any], ...]:
    """Every queue and every lane that any peer lists; a lane as the peer with the highest end shows it."""
    found: dict[str, dict[str, Any]] = {}
    for queue in (queue for one in said for queue in one.queues):
        known = found.setdefault(queue["name"], {**queue, "lanes": []})
        lanes = {lane["lane"]: lane for lane in known["lanes"]}
        for lane in queue["lanes"]:
            before = lanes.get(lane["lane"])
            if before is None or (lane.get("end") or 0) > (before.get("end") or 0):
                lanes[lane["lane"]] = lane
        known["lanes"] = [lanes[index] for index in sorted(lanes)]
    return tuple(found[name] for name in sorted(found))


def _lane(queue: dict[str, Any], lane: dict[str, Any], said: dict[int, Said]) -> LaneView:
    ends = {
        number: end for number, one in said.items() if (end := _end_at(one, queue["name"], lane["lane"])) is not None
    }
    end = max(ends.values(), default=0)
    coordinator = _coordinator(queue["name"], lane, said)
    log = _log_at(said.get(coordinator or 0), lane["number"])
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


def _coordinator(queue: str, lane: dict[str, Any], said: dict[int, Said]) -> int | None:
    """Whom most peers name; a peer that names itself counts first, since it alone can know."""
    named = [
        (one.get("coordinator"), number)
        for number, answer in said.items()
        for each in answer.queues
        if each["name"] == queue
        for one in each["lanes"]
        if one["lane"] == lane["lane"] and one.get("coordinator")
    ]
    for coordinator, number in named:
        if coordinator == number:
            return number
    return named[0][0] if named else None


def _log_at(one: Said | None, number: int) -> dict[str, Any]:
    """A lane as a peer describes it in its view of the cluster; nothing when there is no such peer."""
    lanes: list[dict[str, Any]] = one.cluster.get("lanes", []) if one is not None else []
    return next((lane for lane in lanes if lane.get("number") == number), {})


def _end_at(one: Said, name: str, index: int) -> int | None:
    for queue in one.queues:
        if queue["name"] == name:
            for lane in queue["lanes"]:
                if lane["lane"] == index:
                    return int(lane["end"]) if lane.get("held", True) else None
    return None


def _peer(peer: dict[str, Any], said: Said, lanes: tuple[LaneView, ...], here: dict[int, Listener]) -> PeerView:
    number = int(peer["number"])
    process = here.get(_local_port(str(peer.get("api") or "")))
    return PeerView(
        number=number,
        api=str(peer.get("api") or ""),
        link=str(peer.get("link") or ""),
        state=str(peer["state"]),
        voter=bool(peer.get("voter")),
        up=said.up,
        ready=said.ready,
        pid=process.pid if process is not None else None,
        incarnation=said.cluster.get("incarnation"),
        coordinates=sum(lane.coordinator == number or (lane.owner == number and not lane.ended) for lane in lanes),
        disk_full=bool(said.cluster.get("disk_full")),
        trouble=said.trouble,
    )


def _local_port(address: str) -> int:
    """0 unless the address is of this very machine, where processes can be looked at."""
    parts = urlsplit(address)
    return parts.port or 0 if parts.hostname and is_loopback(parts.hostname) else 0


def _subscribers(api: Api, view: ClusterView) -> Iterable[SubscriberView]:
    """As a peer that is ready sees them, if there is one. A queue may have been deleted meanwhile."""
    ready = next((peer.api for peer in view.peers if peer.ready), api.address)
    one = api.only(ready, timeout_s=PEER_S)
    for queue in view.queues:
        with contextlib.suppress(UnknownQueue):
            found = one.get(path_of("queues", queue["name"], "subscribers"))["subscribers"]
            lanes = [lane for lane in view.lanes if lane.queue == queue["name"]]
            yield from (_subscriber(queue["name"], each, lanes) for each in found)


def _subscriber(queue: str, said: dict[str, Any], lanes: list[LaneView]) -> SubscriberView:
    versions = {int(lane): int(version) for lane, version in said["versions"].items()}
    lag = sum(max(0, lane.end - max(versions.get(lane.lane, 0), lane.trimmed_to)) for lane in lanes)
    return SubscriberView(queue, said["name"], versions, bool(said["hold"]), lag)
