"""`GET /v1/queues/{queue}/messages/{lane}/{version}/life`: the history of one message, as this peer knows it.

The coordinator of a two-phase lane knows most: with `redirect` the client is redirected there, as with a write. The
cursors of subscribers are those this peer has applied, and may lag.
"""

from __future__ import annotations

from avow.errors import NotCoordinator, UnknownMessage
from avow.node.message_trace import trace_of
from avow.node.records import MessageTrace
from avow.queue.records import Queue
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.handlers_subscribers import subscribers_of
from avow.server.http.ndjson import message_fields
from avow.server.http.request import HttpRequest
from avow.wire.batch import Batch, pack_entry


def show_life(api: Api, request: HttpRequest, asked: schemas.LifeParameters, content: None) -> None:  # noqa: ARG001
    queue = api.queue(asked.queue)
    target = api.target(queue, asked.lane)
    if asked.redirect:
        _check_coordinator(api, target)
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


def _check_coordinator(api: Api, target: Target) -> None:
    lane = api.node.lanes.get(target.number)
    coordinator = lane.core.live_coordinator(api.peer.now()) if lane is not None else 0
    if coordinator and coordinator != api.node.me:
        raise NotCoordinator(
            f"peer {coordinator} coordinates lane {target.lane} and knows more; send the request there",
            coordinator=coordinator,
            api=api.api_of(coordinator),
        )
