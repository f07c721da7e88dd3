"""Reading: a range of a lane at a level, or one message by its version id.

A level is about what this peer may show: `local` is whatever it has; `at_least` waits until it has a version the reader
knows of; `linearizable` asks the coordinator what was acknowledged before. Once that is settled the messages are read
from here. A reader that is at the end may wait (`wait_s`): that is waiting for the next version, with patience.

Raw batches leave as they are stored, in ranges (`wire.ranges`). A reader on this machine may ask for the places of
their records in the lane's files instead (`wire.places`), and gets them where that is worth it, else the batches. Lines
of JSON are made here, message by message, so an answer of lines is bounded; `avow-next` says where to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from avow.errors import InvalidRequest, Trimmed, UnknownMessage
from avow.peer.answers import Answer, Done, Refusal
from avow.peer.http import shapes
from avow.peer.http.api import Api, Target
from avow.peer.http.dispatch import negotiate
from avow.peer.http.errors import reply_of, reply_of_answer
from avow.peer.http.exchange import Exchange, Piece
from avow.peer.http.lines import lines_of, message_fields
from avow.peer.http.route import NDJSON
from avow.peer.reading import Served
from avow.queue.visible import VisibleRange
from avow.storage.segments import Place
from avow.wire.batch import Batch, pack_entry
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.places import PlacedRange, Places, encode_places
from avow.wire.ranges import CONTENT_TYPE as BATCHES
from avow.wire.ranges import range_parts

_TYPES: Final = (NDJSON, BATCHES, PLACES)


def read(api: Api, exchange: Exchange, asked: shapes.ReadParameters, content: None) -> None:  # noqa: ARG001
    target = api.target(api.queue(asked.queue), asked.lane)
    if asked.at_least is not None and asked.level == "linearizable":
        raise InvalidRequest("`at_least` is a level of its own; leave it out of a linearizable read")
    if asked.level == "at_least" and asked.at_least is None:
        raise InvalidRequest("level `at_least` needs the version: at_least=5")
    ready = asked.level == "local" and asked.at_least is None
    if ready and (not asked.wait_s or asked.after < _end(api, target)[0]):
        _serve(api, exchange, target, asked)
        return
    work = _read_later(api, exchange, target, asked)
    api.listener.run(exchange, work, timeout_s=asked.timeout_s + asked.wait_s)


async def _read_later(api: Api, exchange: Exchange, target: Target, asked: shapes.ReadParameters) -> None:
    if asked.level != "local" or asked.at_least is not None:
        refusal = await _reach(api, target, asked)
        if refusal is not None:
            exchange.reply(reply_of_answer(refusal, details={"lane": target.lane}))
            return
    if asked.wait_s and asked.after >= _end(api, target)[0]:
        await _wait(api, target, asked)
    _serve(api, exchange, target, asked)


async def _reach(api: Api, target: Target, asked: shapes.ReadParameters) -> Answer | None:
    """None: this peer may serve the lane now."""
    level = "linearizable" if asked.level == "linearizable" else "at_least"
    version = asked.at_least or 0
    try:
        async with asyncio.timeout(asked.timeout_s):
            answer = await api.ask(_reaching(api, target, level, version))
    except TimeoutError:
        reason = f"this peer did not come to serve that within {asked.timeout_s:g} s; nothing was read. Ask again"
        return Refusal("OFFLINE", reason=reason)
    return None if isinstance(answer, Done) else answer


async def _wait(api: Api, target: Target, asked: shapes.ReadParameters) -> None:
    """Until something follows `after`, or long enough. A lane that has ended is not waited for."""
    try:
        async with asyncio.timeout(asked.wait_s):
            await api.ask(_reaching(api, target, "at_least", asked.after + 1))
    except TimeoutError:
        return


def _reaching(api: Api, target: Target, level: str, version: int) -> Callable[[int], None]:
    def start(request: int) -> None:
        api.node.reach(request, target.number, level=level, version=version, now=api.peer.now())

    return start


def _end(api: Api, target: Target) -> tuple[int, int]:
    """What this peer shows of the lane: its end, and up to where it was trimmed."""
    lane = api.node.lanes.get(target.number)
    if lane is not None:
        return lane.state.end, lane.state.trimmed_to
    held = api.node.pubsub.get(target.queue.name)
    known = api.node.metadata.state.lanes.by_number.get(target.number)
    return held.readable.get(target.number, 0) if held else 0, known.trimmed_to if known else 0


def _serve(api: Api, exchange: Exchange, target: Target, asked: shapes.ReadParameters) -> None:
    end, trimmed_to = _end(api, target)
    if asked.after < trimmed_to:
        gone = Trimmed(f"versions up to {trimmed_to} were removed; the first one to read is {trimmed_to + 1}")
        exchange.reply(reply_of(gone, details={"trimmed_to": trimmed_to}))
        return
    kind = negotiate(exchange.headers.get(b"accept", b"*/*"), _TYPES)
    if kind == PLACES:
        placed = exchange.connection.same_machine and api.node.places(
            target.number, after=asked.after, max_count=asked.max
        )
        if placed:
            last = placed[-1][0].first_version + placed[-1][0].count - 1
            body = encode_places(_places(placed, lane=target.lane))
            exchange.answer(200, body, _cursors(last, end, trimmed_to), PLACES.encode())
            return
    lines = kind not in (BATCHES, PLACES)
    served: list[Served] = []
    if asked.after < end:
        count = min(asked.max, shapes.LINES_MAX) if lines else asked.max
        served = api.node.read(target.number, after=asked.after, max_count=count, max_bytes=asked.max_bytes)
    last = served[-1].first_version + served[-1].count - 1 if served else asked.after
    found: bytes | list[Piece] = lines_of(served, lane=target.lane) if lines else _ranges(served, lane=target.lane)
    exchange.answer(200, found, _cursors(last, end, trimmed_to), (NDJSON if lines else BATCHES).encode())


def _cursors(last: int, end: int, trimmed_to: int) -> bytes:
    return b"avow-next: %d\r\navow-end: %d\r\navow-trimmed: %d\r\n" % (last, end, trimmed_to)


def _places(placed: Sequence[tuple[VisibleRange, Place]], *, lane: int) -> Places:
    numbers: dict[tuple[str, bool], int] = {}
    ranges = [
        PlacedRange(
            meant.first_version,
            meant.offset,
            meant.count,
            numbers.setdefault((place.path, place.full), len(numbers)),
            place.offset,
            place.header,
        )
        for meant, place in placed
    ]
    return Places(lane, list(numbers), ranges)


def _ranges(served: list[Served], *, lane: int) -> list[Piece]:
    parts: list[Piece] = []
    for one in served:
        parts += range_parts(one.entry, lane=lane, first_version=one.first_version, offset=one.offset, count=one.count)
    return parts


def read_one(api: Api, exchange: Exchange, asked: shapes.MessageParameters, content: None) -> None:  # noqa: ARG001
    target = api.target(api.queue(asked.queue), asked.lane)
    found = api.node.peek(target.number, asked.version)
    if found is None:
        raise UnknownMessage(
            f"this peer knows no message {asked.version} of lane {asked.lane}; it may come, or another peer may know it"
        )
    entry, offset, committed, stored_by = found
    fields = message_fields(Batch(pack_entry(entry)), offset, lane=target.lane, version=asked.version)
    message = shapes.NamedMessage(**fields, committed=committed, stored_by=list(stored_by))
    api.answer(exchange, message)
