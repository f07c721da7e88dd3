"""`avow read`: what is in a queue, once, up to where it ends now.

Whoever has just written wants to see it, so a queue with one order is read with everything that was acknowledged
before, whichever peer answers. That needs a quorum; `--level local` does not.
"""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from avow.cli.messages import Printer, form_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TimeoutOption, TokenOption
from avow.cli.session import connected
from avow.cli.show import plural


class Level(enum.StrEnum):
    local = "local"
    linearizable = "linearizable"


ValuesOption = Annotated[bool, typer.Option("--values-only", help="Print the values alone, a line each.")]


def read(
    queue: QueueArgument,
    after: Annotated[
        int | None, typer.Option(min=0, help="Start behind this version.", show_default="the oldest")
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", min=1, help="At most so many.", show_default="all")] = None,
    lane: Annotated[int | None, typer.Option(min=0, help="Only this lane.", show_default="all, one by one")] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            help="linearizable: with everything acknowledged before. local: what the peer that answers has.",
            show_default="linearizable; local for pub-sub",
        ),
    ] = None,
    values_only: ValuesOption = False,
    timeout_s: TimeoutOption = 30.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Print messages as lane:version, key and value. With --json a line of JSON for each."""
    printer = Printer(form_of(as_json=as_json, values_only=values_only), limit=limit)
    with connected(api, token=token, ca=ca, timeout_s=timeout_s) as client:
        handle = client.queue(queue)
        info = handle.info()
        wanted = level or (Level.local if info.pubsub else Level.linearizable)
        for one in info.lanes:
            if lane not in (None, one.lane) or not printer.room:
                continue
            start = one.trimmed_to if after is None else after
            for batch in handle.read(after=start, lane=one.lane, level=wanted.value):
                printer.print(batch)
                if not printer.room:
                    break
    if not printer.printed and sys.stderr.isatty():
        sys.stderr.write(f"{plural(0, 'message')} there\n")
