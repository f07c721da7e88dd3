"""`avow queue`: create, list, show, change, trim, delete."""

from __future__ import annotations

import enum
import sys
from typing import Annotated, Any

import typer

from avow.cli.api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TokenOption
from avow.cli.show import (
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

app = typer.Typer(help="Queues: create, list, show, change, trim, delete.", no_args_is_help=True)


class Strategy(enum.StrEnum):
    two_phase = "two-phase"
    pub_sub = "pub-sub"


AgeOption = Annotated[
    str | None, typer.Option("--age", metavar="7d", help="Messages older than this may be removed; none: never.")
]
SizeOption = Annotated[
    str | None, typer.Option("--size", metavar="10GB", help="Older messages may be removed beyond this; none: never.")
]
PassedOption = Annotated[
    bool | None, typer.Option("--passed/--no-passed", help="What every subscriber has read may be removed.")
]


@app.command()
def create(
    queue: QueueArgument,
    strategy: Annotated[
        Strategy, typer.Option(help="two-phase: one order. pub-sub: every peer writes at once, no common order.")
    ] = Strategy.two_phase,
    lanes: Annotated[int, typer.Option(min=1, help="Lanes; a key always goes to the same one.")] = 1,
    peers: Annotated[str, typer.Option(metavar="1,2,3", help="Only these peers hold it.", show_default="all")] = "",
    age: AgeOption = None,
    size: SizeOption = None,
    passed: PassedOption = None,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Create a queue. Creating it again exactly so does nothing."""
    body = {
        "name": queue,
        "strategy": strategy.value,
        "lanes": lanes,
        "peers": _peer_numbers(peers),
        "retention": _rules({}, age=age, size=size, passed=passed),
    }
    made = Api(api, token=token, ca=ca).call("POST", path_of("queues"), body)
    _print(made, as_json=as_json, line=f"queue {queue} is there: {_described(made)}")


@app.command("list")
def list_queues(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """List queues as the first peer that answers sees them."""
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
    columns = ("queue", "strategy", ">lanes", ">messages", "kept")
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
    screen.print(table("", *columns, rows=rows, empty="no lane yet"))


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
    """Change what a queue keeps. What is not named stays as it is; strategy and lanes are for life."""
    if age is None and size is None and passed is None:
        raise typer.BadParameter("nothing to change: give --age, --size or --passed")
    cluster = Api(api, token=token, ca=ca)
    before = cluster.get(path_of("queues", queue)).get("retention") or {}
    body = {"retention": _rules(before, age=age, size=size, passed=passed)}
    after = cluster.call("PATCH", path_of("queues", queue), body)
    _print(after, as_json=as_json, line=f"queue {queue} now: {_described(after)}")


@app.command()
def trim(
    queue: QueueArgument,
    upto: Annotated[int, typer.Option("--upto", min=1, help="The last version to remove.")],
    lane: Annotated[int, typer.Option(min=0)] = 0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Remove the oldest messages of a lane, for good. Stops at what a subscriber holds."""
    body = {"lane": lane, "upto_version": upto}
    answer = Api(api, token=token, ca=ca).call("POST", path_of("queues", queue, "trim"), body)
    reached = int(answer["trimmed_to"])
    held = f" (asked for {upto:,}; the rest is held or not there)" if reached < upto else ""
    _print(answer, as_json=as_json, line=f"lane {lane} of {queue}: versions up to {reached:,} are removed{held}")


@app.command()
def delete(
    queue: QueueArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Delete a queue with all its messages, for good."""
    cluster = Api(api, token=token, ca=ca)
    if not yes:
        _confirm(queue, cluster)
    answer = cluster.call("DELETE", path_of("queues", queue))
    _print(answer, as_json=as_json, line=f"queue {queue} is deleted")


def _confirm(queue: str, cluster: Api) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"deleting {queue} cannot be undone; nothing was deleted. Repeat with --yes")
    found = cluster.get(path_of("queues", queue))
    count = sum((lane.get("end") or 0) - (lane.get("trimmed_to") or 0) for lane in found["lanes"])
    typer.confirm(f"delete {queue} with {plural(count, 'message')} for good?", abort=True)


def _print(value: object, *, as_json: bool, line: str) -> None:
    print_json(value) if as_json else typer.echo(line)


def _described(queue: dict[str, Any]) -> str:
    peers = f", peers {numbers(queue['peers'])}" if queue.get("peers") else ""
    kept = _retention(queue.get("retention") or {})
    lanes = "a lane for each peer" if queue["strategy"] == "pub-sub" else plural(len(queue["lanes"]), "lane")
    return f"{queue['strategy']}, {lanes}{peers}, kept: {kept}"


def _retention(rules: dict[str, Any]) -> str:
    said = []
    if rules.get("age_s") is not None:
        said.append(f"for {duration_text(rules['age_s'])}")
    if rules.get("size_bytes") is not None:
        said.append(f"up to {size_text(rules['size_bytes'])}")
    if rules.get("passed"):
        said.append("until every subscriber has read it")
    return " or ".join(said) or "everything"


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
            f"--peers is numbers with commas, such as 1,2,3, not {text!r}; nothing was changed"
        ) from error
