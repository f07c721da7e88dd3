"""Handlers of reads: a range of a lane at a consistency level, one message by its version id, or a message's history.

The level says what the answer must include. `local`: whatever this peer has. `at_least`: a version that the reader
knows of. `linearizable`: everything acknowledged before, for which the coordinator is asked. The messages are always
read from this peer. A reader at the end may wait for the next version (`wait_s`).

Raw batches are sent as they are stored, in ranges (`wire.ranges`). A reader on the same machine may ask for the places
of their records in the lane's files instead (`wire.places`), and gets them where that is faster, else the batches. JSON
lines are encoded here, message by message, so the length of such an answer is bounded; `avow-next` says where to
continue.

The history of a message is what this peer knows of it. The coordinator of a two-phase lane knows most: with `redirect`
the client is redirected there, as with a write. Cursors of subscribers are those this peer has applied, and may lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from avow.errors import InvalidRequest, Trimmed, UnknownMessage
from avow.node.answers import Answer, Done, Refusal
from avow.node.message_trace import trace_of
from avow.node.records import MessageTrace, Served
from avow.queue.records import Queue, VisibleRange
from avow.replication.durable import Place
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.dispatch import negotiate
from avow.server.http.error_reply import reply_of, reply_of_answer
from avow.server.http.handlers_subscribers import subscribers_of
from avow.server.http.ndjson import lines_of, message_fields
from avow.server.http.read_turns import RangeAnswer
from avow.server.http.request import HttpRequest, Piece
from avow.server.http.route import NDJSON
from avow.wire.batch import Batch, pack_entry
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.places import PlacedRange, Places, encode_places
from avow.wire.ranges import CONTENT_TYPE as BATCHES
from avow.wire.ranges import range_parts

_TYPES: Final = (NDJSON, BATCHES, PLACES)


def read(api: Api, request: HttpRequest, asked: schemas.ReadParameters, content: None) -> None:  # noqa: ARG001
    target = api.target(api.queue(asked.queue), asked.lane)
    if asked.at_least is not None and asked.level == "linearizable":
        raise InvalidRequest("`at_least` cannot be combined with level=linearizable; leave it out")
    if asked.level == "at_least" and asked.at_least is None:
        raise InvalidRequest("level=at_least needs a version, for example at_least=5")
    ready = asked.level == "local" and asked.at_least is None
    if ready and (not asked.wait_s or asked.after < _end(api, target)[0]):
        _serve(api, request, target, asked)
        return
    work = _read_later(api, request, target, asked)
    api.listener.run(request, work, timeout_s=asked.timeout_s + asked.wait_s)


async def _read_later(api: Api, request: HttpRequest, target: Target, asked: schemas.ReadParameters) -> None:
    if asked.level != "local" or asked.at_least is not None:
        refusal = await _reach(api, target, asked)
        if refusal is not None:
            request.reply(reply_of_answer(refusal, details={"lane": target.lane}))
            return
    if asked.wait_s and asked.after >= _end(api, target)[0]:
        await _wait(api, target, asked)
    _serve(api, request, target, asked)


async def _reach(api: Api, target: Target, asked: schemas.ReadParameters) -> Answer | None:
    """Waits until this peer may serve the read. None: it may; else the refusal."""
    level = "linearizable" if asked.level == "linearizable" else "at_least"
    version = asked.at_least or 0
    try:
        async with asyncio.timeout(asked.timeout_s):
            answer = await api.ask(_reaching(api, target, level, version))
    except TimeoutError:
        reason = f"this peer did not reach the requested level in {asked.timeout_s:g} s; nothing was read. Try again"
        return Refusal("OFFLINE", reason=reason)
    return None if isinstance(answer, Done) else answer


async def _wait(api: Api, target: Target, asked: schemas.ReadParameters) -> None:
    """Waits until there is a version after `after`, or `wait_s` has passed. Returns at once if the lane has ended."""
    try:
        async with asyncio.timeout(asked.wait_s):
            await api.ask(_reaching(api, target, "at_least", asked.after + 1))
    except TimeoutError:
        return


def _reaching(api: Api, target: Target, level: str, version: int) -> Callable[[int], None]:
    def start(node_request: int) -> None:
        api.node.reach(node_request, target.number, level=level, version=version, now=api.peer.now())

    return start


def _end(api: Api, target: Target) -> tuple[int, int]:
    """The lane on this peer: its end, and the last trimmed version."""
    lane = api.node.lanes.get(target.number)
    if lane is not None:
        return lane.state.end, lane.state.trimmed_to
    held = api.node.pubsub.get(target.queue.name)
    known = api.node.metadata.state.lanes.by_number.get(target.number)
    return held.readable.get(target.number, 0) if held else 0, known.trimmed_to if known else 0


def _serve(api: Api, request: HttpRequest, target: Target, asked: schemas.ReadParameters) -> None:
    end, trimmed_to = _end(api, target)
    if asked.after < trimmed_to:
        gone = Trimmed(f"versions up to {trimmed_to} were removed; the first one to read is {trimmed_to + 1}")
        request.reply(reply_of(gone, details={"trimmed_to": trimmed_to}))
        return
    kind = negotiate(request.headers.get(b"accept", b"*/*"), _TYPES)
    if kind == PLACES:
        placed = request.connection.same_machine and api.node.places(
            target.number, after=asked.after, max_count=asked.max
        )
        if placed:
            last = placed[-1][0].first_version + placed[-1][0].count - 1
            body = encode_places(_places(placed, lane=target.lane))
            request.answer(200, body, _cursors(last, end, trimmed_to), PLACES.encode())
            return
    lines = kind not in (BATCHES, PLACES)
    make = partial(_answer_of, api, target, asked, lines)
    api.reads.serve(request, make, wanted=asked.max_bytes, timeout_s=asked.timeout_s)


def _answer_of(api: Api, target: Target, asked: schemas.ReadParameters, lines: bool, max_bytes: int) -> RangeAnswer:  # noqa: FBT001
    end, trimmed_to = _end(api, target)
    served: list[Served] = []
    if asked.after < end:
        count = min(asked.max, schemas.LINES_MAX) if lines else asked.max
        served = api.node.read(
            target.number, after=asked.after, max_count=count, max_bytes=min(asked.max_bytes, max_bytes)
        )
    last = served[-1].first_version + served[-1].count - 1 if served else asked.after
    found: bytes | list[Piece] = lines_of(served, lane=target.lane) if lines else _ranges(served, lane=target.lane)
    return RangeAnswer(found, _cursors(last, end, trimmed_to), (NDJSON if lines else BATCHES).encode())


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


def read_one(api: Api, request: HttpRequest, asked: schemas.MessageParameters, content: None) -> None:  # noqa: ARG001
    target = api.target(api.queue(asked.queue), asked.lane)
    found = api.node.peek(target.number, asked.version)
    if found is None:
        raise UnknownMessage(
            f"this peer has no message {asked.version} of lane {asked.lane}; it may come later, or another peer has it"
        )
    entry, offset, committed, stored_by = found
    fields = message_fields(Batch(pack_entry(entry)), offset, lane=target.lane, version=asked.version)
    message = schemas.NamedMessage(**fields, committed=committed, stored_by=list(stored_by))
    api.answer(request, message)


# ---------------------------------------------------------------------- the history of one message


def show_life(api: Api, request: HttpRequest, asked: schemas.LifeParameters, content: None) -> None:  # noqa: ARG001
    queue = api.queue(asked.queue)
    target = api.target(queue, asked.lane)
    if asked.redirect:
        api.check_coordinator(target, " and knows more; send the request there")
    found = trace_of(api.node, target.number, asked.version, api.peer.now())
    if found is None:
        raise UnknownMessage(
            f"this peer has no message {asked.version} of lane {asked.lane}; it may come later, or another peer has it"
        )
    api.answer(request, _shape(api, queue, asked, found))


def _shape(api: Api, queue: Queue, asked: schemas.LifeParameters, found: MessageTrace) -> schemas.Life:
    fields = message_fields(Batch(pack_entry(found.entry)), found.offset, lane=asked.lane, version=asked.version)
    stored_by = sorted(peer for peer, stored in found.stored.items() if stored)
    return schemas.Life(
        queue=queue.name,
        lane=asked.lane,
        version=asked.version,
        peer=api.node.me,
        created_ms=found.entry.created_ms,
        coordinator=found.coordinator or None,
        owner=found.owner or None,
        committed=found.committed,
        visible=found.visible,
        stored=[schemas.StoredAt(peer, stored) for peer, stored in sorted(found.stored.items())],
        subscribers=_readers(api, queue, lane=asked.lane, version=asked.version),
        message=schemas.NamedMessage(**fields, committed=found.committed, stored_by=stored_by),
    )


def _readers(api: Api, queue: Queue, *, lane: int, version: int) -> list[schemas.Reader]:
    cursors = {name: one.versions.get(str(lane), 0) for name, one in subscribers_of(api, queue).items()}
    return [schemas.Reader(name, cursor, read=cursor >= version) for name, cursor in cursors.items()]
