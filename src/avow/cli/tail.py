"""`avow tail`: print messages as they arrive. With a subscriber, the queue stores how far it has read.

A tail with `--subscriber` becomes the subscriber's reader: a second one takes over, and the first ends with FENCED.
Members share the lanes. `--no-commit` prints what the subscriber would get next without becoming its reader.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from avow.cli.cluster_api import reachable
from avow.cli.message_output import Printer, ValuesOption, form_of
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TimeoutOption, TokenOption
from avow.errors import UnknownSubscriber

if TYPE_CHECKING:
    from avow.client.client import Client
    from avow.client.observer import Event
    from avow.client.queue import Queue


def tail(
    queue: QueueArgument,
    subscriber: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Start at this subscriber's cursor, and move it past printed messages.",
            show_default=False,
        ),
    ] = "",
    member: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Join the subscriber under this name and share its lanes.", show_default=False
        ),
    ] = "",
    commit: Annotated[bool, typer.Option(help="Move the subscriber's cursor.")] = True,
    after: Annotated[
        int | None,
        typer.Option(min=0, help="Start after this version; 0 starts at the oldest.", show_default="new messages"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this many messages.", show_default="never")
    ] = None,
    lane: Annotated[int | None, typer.Option(min=0, help="Read only this lane.", show_default="all")] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Show what the peers of a pub-sub queue enqueue, store and commit.")
    ] = False,
    values_only: ValuesOption = False,
    timeout_s: TimeoutOption = 30.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Print messages as they arrive, until Ctrl-C.

    If the peer fails, the next one is used and no message is skipped. A subscriber's cursor moves after printing, so
    after a crash a message may be printed again, but none is missed.
    """
    _check(subscriber, member, commit=commit, after=after, lane=lane, observe=observe)
    printer = Printer(form_of(as_json=as_json, values_only=values_only), limit=limit)
    known = reachable(api, token=token, ca=ca, timeout_s=timeout_s)

    async def follow() -> None:
        import avow  # only these commands need the client

        async with await avow.connect(known, token=token or None, ca=ca or None, timeout_s=timeout_s) as client:
            if observe:
                await _observe(client, queue, as_json=as_json, limit=limit)
            elif subscriber and commit:
                await _subscribe(client, queue, printer, subscriber=subscriber, member=member)
            else:
                handle = client.queue(queue)
                start = await (_cursor(handle, subscriber) if subscriber else _start(handle, after))
                await _follow(handle, printer, start=start, lane=lane)

    asyncio.run(follow())  # Ctrl-C cancels the coroutine, which closes every channel


def _check(subscriber: str, member: str, *, commit: bool, after: int | None, lane: int | None, observe: bool) -> None:
    if subscriber and after is not None:
        raise typer.BadParameter("--after and --subscriber both set where to start; give only one of them")
    if (member or not commit) and not subscriber:
        raise typer.BadParameter("--member and --no-commit need --subscriber")
    if lane is not None and subscriber and commit:
        raise typer.BadParameter("a subscriber reads all lanes assigned to it; use --lane only with --no-commit")
    if observe and (subscriber or after is not None or lane is not None):
        raise typer.BadParameter("--observe shows the whole queue; it can only be combined with --max and --json")


async def _follow(queue: Queue, printer: Printer, *, start: dict[int, int], lane: int | None) -> None:
    async for batch in queue.follow(after=start, lane=lane):
        printer.print(batch)
        if not printer.remaining:
            return


async def _subscribe(client: Client, queue: str, printer: Printer, *, subscriber: str, member: str) -> None:
    async with client.subscribe(queue, subscriber, member=member or None) as batches:
        async for batch in batches:
            last = printer.print(batch)
            if last == batch.last_version:
                await batch.commit()
            elif last:
                await client.queue(queue).move_cursor(subscriber, {batch.lane: last})
            if not printer.remaining:
                return


async def _start(queue: Queue, after: int | None) -> dict[int, int]:
    """The start of each existing lane. A pub-sub lane opened later is always read from its beginning."""
    lanes = (await queue.info()).lanes
    return {lane.lane: lane.end if after is None else max(after, lane.trimmed_to) for lane in lanes}


async def _cursor(queue: Queue, subscriber: str) -> dict[int, int]:
    try:
        return await queue.cursor(subscriber)
    except UnknownSubscriber:
        return {}


# ---------------------------------------------------------------------- events


async def _observe(client: Client, queue: str, *, as_json: bool, limit: int | None) -> None:
    shown = 0
    async for event in client.observe(queue):
        line = msgspec.json.encode(_as_object(event)).decode() if as_json else _as_line(event)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        shown += 1
        if shown == limit:
            return


def _as_line(event: Event) -> str:
    from avow.client.observer import Enqueued, Stored

    if isinstance(event, Enqueued):
        return f"enqueued   {event.lane}:{event.first_version} to {event.lane}:{event.last_version}"
    if isinstance(event, Stored):
        return f"stored     {event.lane}:{event.upto_version} by peer {event.peer}"
    return f"committed  {event.lane}:{event.upto_version}"


def _as_object(event: Event) -> dict[str, Any]:
    from avow.client.observer import Enqueued, Stored

    if isinstance(event, Enqueued):
        values = [base64.b64encode(value).decode() for value in event.batch.values()]
        versions = {"first_version": event.first_version, "last_version": event.last_version}
        return {"event": "enqueued", "lane": event.lane, **versions, "values_base64": values}
    if isinstance(event, Stored):
        return {"event": "stored", "lane": event.lane, "peer": event.peer, "upto_version": event.upto_version}
    return {"event": "committed", "lane": event.lane, "upto_version": event.upto_version}
