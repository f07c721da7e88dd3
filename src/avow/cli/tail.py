"""`avow tail`: messages as they come. With a subscriber, a cursor in the queue remembers how far it got."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from avow.cli.messages import Printer, form_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TimeoutOption, TokenOption
from avow.cli.read import ValuesOption
from avow.cli.session import reachable

if TYPE_CHECKING:
    from avow.client.queue import Queue


def tail(
    queue: QueueArgument,
    subscriber: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Start at its cursor, and move it behind what was printed.", show_default=False
        ),
    ] = "",
    after: Annotated[
        int | None, typer.Option(min=0, help="Start behind this version; 0: the oldest.", show_default="what is new")
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", min=1, help="End after so many.", show_default="never")] = None,
    lane: Annotated[int | None, typer.Option(min=0, help="Only this lane.", show_default="all")] = None,
    values_only: ValuesOption = False,
    timeout_s: TimeoutOption = 30.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Follow a queue until Ctrl-C. A peer that dies is replaced by another; nothing is skipped.

    A subscriber's cursor moves after printing, so a message may be printed again after a crash, and none is missed.
    """
    if subscriber and after is not None:
        raise typer.BadParameter("--after and --subscriber both say where to start; give one")
    printer = Printer(form_of(as_json=as_json, values_only=values_only), limit=limit)
    known = reachable(api, token=token, ca=ca, timeout_s=timeout_s)

    async def follow() -> None:
        import avow  # the client is for these commands alone

        async with await avow.connect(known, token=token or None, ca=ca or None, timeout_s=timeout_s) as client:
            await _follow(client.queue(queue), printer, subscriber=subscriber, after=after, lane=lane)

    asyncio.run(follow())  # Ctrl-C cancels it, which lets go of every long poll


async def _follow(queue: Queue, printer: Printer, *, subscriber: str, after: int | None, lane: int | None) -> None:
    start = None if subscriber else await _start(queue, after)
    async for batch in queue.follow(after=start, lane=lane, subscriber=subscriber or None):
        last = printer.print(batch)
        if subscriber and last == batch.last_version:
            await batch.commit()
        elif subscriber and last:
            await queue.move_cursor(subscriber, {batch.lane: last})
        if not printer.room:
            return


async def _start(queue: Queue, after: int | None) -> dict[int, int]:
    """New lanes of a pub-sub queue are read from their beginning in any case."""
    lanes = (await queue.info()).lanes
    return {lane.lane: lane.end if after is None else max(after, lane.trimmed_to) for lane in lanes}
