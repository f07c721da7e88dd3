"""`GET /v1/queues/{queue}/messages/{lane}/{version}/life`: what became of one message, as this peer knows it.

A two-phase lane's coordinator knows most: with `redirect` a client is sent there, as it is with a write. Cursors of
subscribers are this peer's own, and may lag.
"""

from __future__ import annotations

from avow.errors import NotCoordinator, UnknownMessage
from avow.peer.http import shapes
from avow.peer.http.api import Api, Target
from avow.peer.http.exchange import Exchange
from avow.peer.http.handlers_subscribers import subscribers_of
from avow.peer.http.lines import message_fields
from avow.peer.life import Life, life_of
from avow.queue.catalog import Queue
from avow.wire.batch import Batch, pack_entry


def show_life(api: Api, exchange: Exchange, asked: shapes.LifeParameters, content: None) -> None:  # noqa: ARG001
    queue = api.queue(asked.queue)
    target = api.target(queue, asked.lane)
    if asked.redirect:
        _check_coordinator(api, target)
    found = life_of(api.node, target.number, asked.version, api.peer.now())
    if found is None:
        raise UnknownMessage(
            f"this peer knows no message {asked.version} of lane {asked.lane}; it may come, or another peer may know it"
        )
    api.answer(exchange, _shape(api, queue, asked, found))


def _shape(api: Api, queue: Queue, asked: shapes.LifeParameters, found: Life) -> shapes.Life:
    fields = message_fields(Batch(pack_entry(found.entry)), found.offset, lane=asked.lane, version=asked.version)
    stored_by = sorted(peer for peer, stored in found.stored.items() if stored)
    return shapes.Life(
        queue=queue.name,
        lane=asked.lane,
        version=asked.version,
        peer=api.node.me,
        created_ms=found.entry.created_ms,
        coordinator=found.coordinator or None,
        owner=found.owner or None,
        committed=found.committed,
        visible=found.visible,
        stored=[shapes.StoredAt(peer, stored) for peer, stored in sorted(found.stored.items())],
        subscribers=_readers(api, queue, lane=asked.lane, version=asked.version),
        message=shapes.NamedMessage(**fields, committed=found.committed, stored_by=stored_by),
    )


def _readers(api: Api, queue: Queue, *, lane: int, version: int) -> list[shapes.Reader]:
    cursors = {name: one.versions.get(str(lane), 0) for name, one in subscribers_of(api, queue).items()}
    return [shapes.Reader(name, cursor, read=cursor >= version) for name, cursor in cursors.items()]


def _check_coordinator(api: Api, target: Target) -> None:
    lane = api.node.lanes.get(target.number)
    coordinator = lane.core.live_coordinator(api.peer.now()) if lane is not None else 0
    if coordinator and coordinator != api.node.me:
        raise NotCoordinator(
            f"peer {coordinator} coordinates lane {target.lane} and knows more of it; ask it there",
            coordinator=coordinator,
            api=api.api_of(coordinator),
        )
