"""`avow pledge`: list, show, retry, redrive and stop pledges, manage topics, print the barrier's table.

`migration` contacts no peer: it prints the statements that create the barrier's table, for a service's migration tool.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from avow.barrier.schema import migration as migration_of
from avow.cli.cluster_api import Api, path_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, TokenOption
from avow.cli.output import console, duration_text, number, parsed_duration, plain, plural, print_json, table
from avow.errors import InvalidRequest

app = typer.Typer(
    help="List, retry and stop pledges; manage topics. A pledge is a message that depends on a transaction.",
    no_args_is_help=True,
)

GidArgument = Annotated[str, typer.Argument(metavar="GID", show_default=False)]
SomeGidArgument = Annotated[str, typer.Argument(metavar="[GID]", show_default=False)]
AllOption = Annotated[bool, typer.Option("--all", help="Apply to all pledges instead of one.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of pledges.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
UrlArgument = Annotated[str, typer.Argument(metavar="URL", show_default=False)]

CHECKBACK: Final = "00"
ERROR_CHARS: Final = 60


@app.command("list")
def list_pledges(
    status: Annotated[
        str,
        typer.Option(
            "--status", metavar="NAME,...", help="Only these: prepared, submitted, succeeded, failed or dead."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="DURATION", help="Created within this time, such as 90s, 12h or 7d.")
    ] = "",
    before: Annotated[str, typer.Option("--before", metavar="DURATION", help="Created longer ago than this.")] = "",
    limit: LimitOption = 20,
    position: Annotated[
        str, typer.Option("--position", help="Start of the next page, as the previous page printed it.")
    ] = "",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """List pledges, newest first."""
    query = {
        "status": status or None,
        "created_from_ms": _ago_ms(since),
        "created_to_ms": _ago_ms(before),
        "limit": limit,
        "position": position or None,
    }
    found = Api(api, token=token, ca=ca).get(path_of("pledges", query=query))
    if as_json:
        print_json(found)
        return
    rows = [_row(pledge) for pledge in found["pledges"]]
    columns = ("gid", "status", "delivery", "age", "delivered", ">attempts", "last error")
    console().print(table("", *columns, rows=rows, empty="no pledges"))
    if found["next_position"]:
        typer.echo(f"next page: --position {found['next_position']}")


@app.command()
def show(
    gid: GidArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Show one pledge: its branches and a timeline of its attempts."""
    _print(Api(api, token=token, ca=ca).get(path_of("pledges", gid)), as_json=as_json)


@app.command()
def retry(
    gid: SomeGidArgument = "",
    every: AllOption = False,
    limit: LimitOption = 1_000,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Retry a pledge now instead of at the end of its back-off; --all: every pledge that waits."""
    _one_or_all(Api(api, token=token, ca=ca), "retry", gid, every=every, limit=limit, as_json=as_json)


@app.command()
def redrive(
    gid: SomeGidArgument = "",
    every: AllOption = False,
    limit: LimitOption = 1_000,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Start the delivery of a dead pledge again; --all: of every dead pledge."""
    _one_or_all(Api(api, token=token, ca=ca), "redrive", gid, every=every, limit=limit, as_json=as_json)


@app.command()
def stop(
    gid: GidArgument,
    reason: Annotated[str, typer.Option("--reason", help="Text stored with the pledge.")] = "",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Stop the delivery of a pledge, whether or not its transaction committed."""
    found = Api(api, token=token, ca=ca).call("POST", path_of("pledges", gid, "stop"), {"reason": reason})
    print_json(found) if as_json else typer.echo(f"{gid} is {found['status']}: {found['reason']}")


# ---------------------------------------------------------------------- topics


@app.command()
def topics(
    as_json: JsonOption = False, api: ApiOption = DEFAULT_API, token: TokenOption = "", ca: CaOption = ""
) -> None:
    """List topics and their subscribers."""
    found = Api(api, token=token, ca=ca).get(path_of("topics", query={"limit": 1_000}))
    if as_json:
        print_json(found)
        return
    rows = [
        (plain(topic["name"]), plain(one["url"]), plain(one["remark"]))
        for topic in found["topics"]
        for one in topic["subscribers"]
    ]
    empty = "no topics yet: avow pledge subscribe TOPIC URL"
    console().print(table("", "topic", "subscriber", "remark", rows=rows, empty=empty))


@app.command()
def subscribe(
    topic: TopicArgument,
    url: UrlArgument,
    remark: Annotated[str, typer.Option("--remark", help="Note shown in the list of topics.")] = "",
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Subscribe a URL to a topic. It receives what is pledged to the topic from now on."""
    body = {"url": url, "remark": remark}
    found = Api(api, token=token, ca=ca).call("POST", path_of("topics", topic, "subscribers"), body)
    print_json(found) if as_json else typer.echo(f"{topic} has {plural(len(found['subscribers']), 'subscriber')}")


@app.command()
def unsubscribe(
    topic: TopicArgument,
    url: UrlArgument,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Unsubscribe a URL from a topic. It receives nothing that is pledged to the topic from now on."""
    path = path_of("topics", topic, "subscribers", query={"url": url})
    found = Api(api, token=token, ca=ca).call("DELETE", path)
    print_json(found) if as_json else typer.echo(f"{topic} has {plural(len(found['subscribers']), 'subscriber')}")


# ---------------------------------------------------------------------- the service's database


@app.command()
def migration(
    dialect: Annotated[
        str,
        typer.Option("--dialect", metavar="NAME", help="Database: postgresql, mysql or sqlite.", show_default=False),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Name of the table.",
            show_default="dtm_barrier.barrier; SQLite: barrier",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print the SQL that creates the barrier's table in a service's database if it is missing."""
    script = migration_of(dialect, table=name)
    print_json({"dialect": dialect, "sql": script}) if as_json else typer.echo(script, nl=False)


# ---------------------------------------------------------------------- parts


def _one_or_all(cluster: Api, what: str, gid: str, *, every: bool, limit: int, as_json: bool) -> None:
    if every == bool(gid):
        raise InvalidRequest(
            f"give either the gid of a pledge or --all; nothing was done. For one pledge: avow pledge {what} GID"
        )
    if gid:
        _print(cluster.call("POST", path_of("pledges", gid, what)), as_json=as_json)
        return
    found = cluster.call("POST", path_of("pledges", what, query={"limit": limit}))
    if as_json:
        print_json(found)
    else:
        more = "; there are more, repeat the command" if found["more"] else ""
        typer.echo(f"{plural(found['changed'], 'pledge')} will be tried now{more}")


def _ago_ms(text: str) -> int | None:
    if not text:
        return None
    seconds = parsed_duration(text)
    if seconds is None:
        raise InvalidRequest(f"{text!r} is not a duration such as 90s, 12h or 7d; nothing was done")
    return round((time.time() - seconds) * 1000)


def _row(pledge: dict[str, Any]) -> tuple[str, ...]:
    branches = pledge["branches"]
    done = sum(branch["status"] == "succeeded" for branch in branches)
    return (
        plain(pledge["gid"]),
        pledge["status"],
        pledge["delivery"] if pledge["delivery"] != pledge["status"] else "",
        duration_text(max(0, round(time.time() - pledge["created_ms"] / 1000))),
        f"{done} of {len(branches)}",
        number(sum(branch["attempts"] for branch in branches)),
        plain(_short(pledge["reason"] or pledge["last_error"])),
    )


def _print(pledge: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(pledge)
        return
    out = console()
    out.print(f"[bold]{plain(pledge['gid'])}[/bold]  {_state(pledge)}")
    for line in _facts(pledge):
        out.print(f"  {plain(line)}")
    rows = [
        (
            branch["branch_id"],
            branch["status"],
            number(branch["attempts"]),
            plain(branch["url"] or "(nothing to call)"),
            plain(_short(branch["last_error"])),
        )
        for branch in pledge["branches"]
    ]
    out.print(table("branches", "", "status", ">attempts", "url", "last error", rows=rows, empty="no branches"))
    out.print(table("timeline", "", ">after", "", "", ">took", "", rows=_timeline(pledge)))


def _state(pledge: dict[str, Any]) -> str:
    state = pledge["status"] if pledge["delivery"] in (pledge["status"], "") else f"submitted, {pledge['delivery']}"
    if pledge["aborting"]:
        state += ", abort requested"
    if pledge["next_at_ms"] is not None:
        wait_s = pledge["next_at_ms"] / 1000 - time.time()
        state += f"; next attempt in {duration_text(round(wait_s, 1))}" if wait_s > 0 else "; due now"
    return state


def _facts(pledge: dict[str, Any]) -> list[str]:
    facts = []
    if pledge["checkback"]:
        facts.append(f"checkback {pledge['checkback']}")
    if pledge["options"]:
        facts.append("options " + ", ".join(f"{name}={value}" for name, value in pledge["options"].items()))
    if pledge["reason"]:
        facts.append(f"reason: {pledge['reason']}")
    return facts


def _timeline(pledge: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows in order of time: creation, the attempts that are stored, the end."""
    created_ms = pledge["created_ms"]
    events: list[tuple[int, str, str, str, str]] = [(created_ms, "created", "", "", "")]
    for attempt in pledge["attempts"]:
        what = "checkback" if attempt["branch_id"] == CHECKBACK else f"branch {attempt['branch_id']}"
        took = f"{attempt['took_ms']:,} ms"
        events.append((attempt["at_ms"], what, attempt["verdict"], took, _short(attempt["text"])))
    if pledge["finished_ms"] is not None:
        events.append((pledge["finished_ms"], pledge["status"], "", "", _short(pledge["reason"])))
    return [
        (_clock(at_ms), f"+{(at_ms - created_ms) / 1000:,.3f} s", what, verdict, took, plain(text))
        for at_ms, what, verdict, took, text in events
    ]


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _short(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else text[: ERROR_CHARS - 1] + "…"
