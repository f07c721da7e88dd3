"""`avow queue`: create, list, show, change, trim, delete."""

from __future__ import annotations

import enum
import sys
from typing import Annotated, Any

import typer

from avow.cli.cluster_api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TokenOption
from avow.cli.output import (
    console,
    duration_text,
    number,
    numbers,
    parsed_duration,
    parsed_size,
    plain,
    plural,
    print_json,
    size_text,
    table,
)
from avow.errors import InvalidRequest

app = typer.Typer(help="Create, list, change, trim and delete queues.", no_args_is_help=True)


class Strategy(enum.StrEnum):
    two_phase = "two-phase"
    pub_sub = "pub-sub"


AgeOption = Annotated[
    str | None, typer.Option("--age", metavar="7d", help="Messages older than this may be removed; none: no limit.")
]
SizeOption = Annotated[
    str | None,
    typer.Option("--size", metavar="10GB", help="The oldest messages beyond this size may be removed; none: no limit."),
]
PassedOption = Annotated[
    bool | None, typer.Option("--passed/--no-passed", help="Messages that every subscriber has read may be removed.")
]


@app.command()
def create(
    queue: QueueArgument,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="two-phase: one order per lane. pub-sub: every peer writes a lane of its own, no common order."
        ),
    ] = Strategy.two_phase,
    lanes: Annotated[int, typer.Option(min=1, help="Number of lanes. A key always goes to the same lane.")] = 1,
    peers: Annotated[str, typer.Option(metavar="1,2,3", help="Peers that store the queue.", show_default="all")] = "",
    age: AgeOption = None,
    size: SizeOption = None,
    passed: PassedOption = None,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Create a queue. If it exists with the same settings, this does nothing."""
    body = {
        "name": queue,
        "strategy": strategy.value,
        "lanes": lanes,
        "peers": _peer_numbers(peers),
        "retention": _rules({}, age=age, size=size, passed=passed),
    }
    made = Api(api, token=token, ca=ca).call("POST", path_of("queues"), body)
    _print(made, as_json=as_json, line=f"queue {queue} exists: {_described(made)}")


@app.command("list")
def list_queues(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """List the queues, as reported by the first peer that answers."""
    found = Api(api, token=token, ca=ca).get(path_of("queues"))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            plain(queue["name"]),
            queue["strategy"],
            str(len(queue["lanes"])),
            number(sum(lane.get("end") or 0 for lane in queue["lanes"])),
            _retention(queue.get("retention") or {}),
        )
        for queue in found["queues"]
    ]
    columns = ("queue", "strategy", ">lanes", ">messages", "retention")
    console().print(table("", *columns, rows=rows, empty="no queues yet: avow queue create NAME"))


@app.command()
def show(
    queue: QueueArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Show one queue and its lanes."""
    found = Api(api, token=token, ca=ca).get(path_of("queues", queue))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            str(lane["lane"]),
            number(lane.get("end")),
            number(lane.get("trimmed_to")),
            str(lane.get("coordinator") or "-"),
            str(lane.get("owner") or "-"),
            "yes" if lane.get("ended") else "no",
            numbers(lane.get("voters") or ()),
        )
        for lane in found["lanes"]
    ]
    columns = ("lane", ">end", ">trimmed to", "coordinator", "owner", "ended", "members")
    screen = console()
    screen.print(f"{found['name']}: {_described(found)}", markup=False)
    screen.print(table("", *columns, rows=rows, empty="no lanes yet"))


@app.command()
def change(
    queue: QueueArgument,
    age: AgeOption = None,
    size: SizeOption = None,
    passed: PassedOption = None,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Change a queue's retention. Rules that are not given stay; strategy and lanes cannot be changed."""
    if age is None and size is None and passed is None:
        raise typer.BadParameter("nothing to change: give --age, --size or --passed")
    cluster = Api(api, token=token, ca=ca)
    before = cluster.get(path_of("queues", queue)).get("retention") or {}
    body = {"retention": _rules(before, age=age, size=size, passed=passed)}
    after = cluster.call("PATCH", path_of("queues", queue), body)
    _print(after, as_json=as_json, line=f"queue {queue} is now: {_described(after)}")


@app.command()
def trim(
    queue: QueueArgument,
    upto: Annotated[int, typer.Option("--upto", min=1, help="The last version to remove.")],
    lane: Annotated[int, typer.Option(min=0, help="Lane to trim.")] = 0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Remove the oldest messages of a lane permanently. Stops at the cursor of a subscriber that holds messages."""
    body = {"lane": lane, "upto_version": upto}
    answer = Api(api, token=token, ca=ca).call("POST", path_of("queues", queue, "trim"), body)
    reached = int(answer["trimmed_to"])
    held = f" (requested: {upto:,}; a subscriber holds the rest, or it does not exist)" if reached < upto else ""
    _print(answer, as_json=as_json, line=f"lane {lane} of {queue}: versions up to {reached:,} are removed{held}")


@app.command()
def delete(
    queue: QueueArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Delete a queue and all its messages permanently."""
    cluster = Api(api, token=token, ca=ca)
    if not yes:
        _confirm(queue, cluster)
    answer = cluster.call("DELETE", path_of("queues", queue))
    _print(answer, as_json=as_json, line=f"queue {queue} is deleted")


def _confirm(queue: str, cluster: Api) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"deleting {queue} cannot be undone; nothing was deleted. Confirm with --yes")
    found = cluster.get(path_of("queues", queue))
    count = sum((lane.get("end") or 0) - (lane.get("trimmed_to") or 0) for lane in found["lanes"])
    typer.confirm(f"permanently delete {queue} with {plural(count, 'message')}?", abort=True)


def _print(value: object, *, as_json: bool, line: str) -> None:
    print_json(value) if as_json else typer.echo(line)


def _described(queue: dict[str, Any]) -> str:
    peers = f", peers {numbers(queue['peers'])}" if queue.get("peers") else ""
    kept = _retention(queue.get("retention") or {})
    lanes = "one lane per peer" if queue["strategy"] == "pub-sub" else plural(len(queue["lanes"]), "lane")
    return f"{queue['strategy']}, {lanes}{peers}, keeps messages {kept}"


def _retention(rules: dict[str, Any]) -> str:
    limits = []
    if rules.get("age_s") is not None:
        limits.append(f"for {duration_text(rules['age_s'])}")
    if rules.get("size_bytes") is not None:
        limits.append(f"up to {size_text(rules['size_bytes'])}")
    if rules.get("passed"):
        limits.append("until every subscriber has read them")
    return " or ".join(limits) or "until trimmed"


def _rules(before: dict[str, Any], *, age: str | None, size: str | None, passed: bool | None) -> dict[str, Any]:
    rules = {"age_s": before.get("age_s"), "size_bytes": before.get("size_bytes"), "passed": bool(before.get("passed"))}
    if age is not None:
        rules["age_s"] = parsed_duration(age)
    if size is not None:
        rules["size_bytes"] = parsed_size(size)
    if passed is not None:
        rules["passed"] = passed
    return {name: value for name, value in rules.items() if value is not None}


def _peer_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidRequest(
            f"--peers must be numbers separated by commas, such as 1,2,3, not {text!r}; nothing was changed"
        ) from error
