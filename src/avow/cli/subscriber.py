"""`avow subscriber`: list, show, move, reset, remove. A cursor moves forward; only a reset takes it back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from avow.cli.cluster_api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TokenOption
from avow.cli.output import console, number, plain, print_json, table
from avow.errors import InvalidRequest

app = typer.Typer(help="List, move, reset and remove subscribers.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
PlacesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[LANE:]VERSION...",
        help="New position: a version (5), lane:version (0:5), start or end.",
        show_default=False,
    ),
]
HoldOption = Annotated[
    bool | None,
    typer.Option("--hold/--no-hold", help="Keep all messages after the cursor from being removed.", show_default=False),
]


@app.command("list")
def list_subscribers(
    queue: QueueArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """List the subscribers of a queue, and how many messages each one is behind."""
    cluster = Api(api, token=token, ca=ca)
    found = cluster.get(path_of("queues", queue, "subscribers"))
    if as_json:
        print_json(found)
        return
    lanes = cluster.get(path_of("queues", queue))["lanes"]
    rows = [(plain(one["name"]), _places(one), _holds(one), number(_lag(one, lanes))) for one in found["subscribers"]]
    columns = ("name", "lane:version", "holds", ">behind")
    console().print(
        table(
            "",
            *columns,
            rows=rows,
            empty=f"{plain(queue)} has no subscribers yet: avow tail {plain(queue)} --subscriber NAME",
        )
    )


@app.command()
def show(
    queue: QueueArgument,
    name: NameArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Show one subscriber's cursor."""
    _print(Api(api, token=token, ca=ca).get(path_of("queues", queue, "subscribers", name)), as_json=as_json)


@app.command()
def move(
    queue: QueueArgument,
    name: NameArgument,
    places: PlacesArgument,
    hold: HoldOption = None,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Move a cursor forward, or create a subscriber. A version before the cursor changes nothing."""
    _put(Api(api, token=token, ca=ca), queue, name, places, hold=hold, reset=False, as_json=as_json)


@app.command()
def reset(
    queue: QueueArgument,
    name: NameArgument,
    places: PlacesArgument,
    hold: HoldOption = None,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Set a cursor to any version. If it moves back, the messages after it are read again."""
    _put(Api(api, token=token, ca=ca), queue, name, places, hold=hold, reset=True, as_json=as_json)


@app.command()
def remove(
    queue: QueueArgument,
    name: NameArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Remove a subscriber. Messages that it held may then be removed."""
    answer = Api(api, token=token, ca=ca).call("DELETE", path_of("queues", queue, "subscribers", name))
    print_json(answer) if as_json else typer.echo(f"subscriber {name} of {queue} is removed")


def _put(
    cluster: Api, queue: str, name: str, places: list[str], *, hold: bool | None, reset: bool, as_json: bool
) -> None:
    body: dict[str, Any] = {"versions": _versions(cluster, queue, places)}
    if hold is not None:
        body["hold"] = hold
    if reset:
        body["reset"] = True
    _print(cluster.call("PUT", path_of("queues", queue, "subscribers", name), body), as_json=as_json)


def _versions(cluster: Api, queue: str, places: list[str]) -> dict[str, int]:
    """`start` and `end` without a lane mean every lane. A version without a lane needs a queue with one lane."""
    lanes: list[dict[str, Any]] = cluster.get(path_of("queues", queue))["lanes"]
    versions: dict[str, int] = {}
    for place in places:
        named, _, where = place.rpartition(":")
        if not named and where.isdigit() and len(lanes) != 1:
            raise InvalidRequest(
                f"{queue} has {len(lanes)} lanes, so {place!r} must name one, such as 0:{place}; nothing was changed"
            )
        chosen = [lane for lane in lanes if not named or str(lane["lane"]) == named]
        if not chosen:
            raise InvalidRequest(
                f"{queue} has no lane {named!r}; nothing was changed. avow queue show {queue} lists them"
            )
        versions.update({str(lane["lane"]): _version(where, lane) for lane in chosen})
    return versions


def _version(where: str, lane: dict[str, Any]) -> int:
    if where == "start":
        return int(lane.get("trimmed_to") or 0)
    if where == "end":
        return int(lane.get("end") or 0)
    if not where.isdigit():
        raise InvalidRequest(f"{where!r} is neither a version nor start or end; nothing was changed")
    return int(where)


def _print(subscriber: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(subscriber)
    else:
        held = ", holds messages after it" if subscriber.get("hold") else ""
        typer.echo(f"{subscriber['name']} is at {_places(subscriber)} (lane:version){held}")


def _places(subscriber: dict[str, Any]) -> str:
    places = sorted((int(lane), version) for lane, version in subscriber["versions"].items())
    return " ".join(f"{lane}:{version}" for lane, version in places) or "-"


def _holds(subscriber: dict[str, Any]) -> str:
    return "yes" if subscriber.get("hold") else "no"


def _lag(subscriber: dict[str, Any], lanes: list[dict[str, Any]]) -> int:
    at = subscriber["versions"]
    return sum(
        max(0, (lane.get("end") or 0) - max(at.get(str(lane["lane"]), 0), lane.get("trimmed_to") or 0))
        for lane in lanes
    )
