"""`avow read`: print the messages of a queue up to its present end.

By default a two-phase queue is read linearizably: whichever peer answers, the result contains every message
acknowledged before the read. That needs a quorum; `--level local` does not.
"""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from avow.cli.cluster_api import connected
from avow.cli.message_output import Printer, ValuesOption, form_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TimeoutOption, TokenOption


class Level(enum.StrEnum):
    local = "local"
    linearizable = "linearizable"


def read(
    queue: QueueArgument,
    after: Annotated[
        int | None, typer.Option(min=0, help="Start after this version.", show_default="the oldest")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="Maximum number of messages to print.", show_default="all")
    ] = None,
    lane: Annotated[
        int | None, typer.Option(min=0, help="Read only this lane.", show_default="all, one after the other")
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            help="linearizable: includes everything acknowledged before the read. local: what the peer has now.",
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
    """Print the messages of a queue. Each line is lane:version, key and value; with --json, a JSON object."""
    printer = Printer(form_of(as_json=as_json, values_only=values_only), limit=limit)
    with connected(api, token=token, ca=ca, timeout_s=timeout_s) as client:
        handle = client.queue(queue)
        info = handle.info()
        wanted = level or (Level.local if info.pubsub else Level.linearizable)
        for one in info.lanes:
            if lane not in (None, one.lane) or not printer.remaining:
                continue
            start = one.trimmed_to if after is None else after
            for batch in handle.read(after=start, lane=one.lane, level=wanted.value):
                printer.print(batch)
                if not printer.remaining:
                    break
    if not printer.printed and sys.stderr.isatty():
        sys.stderr.write("no messages\n")
