"""Queues: list, create, show, change, trim, delete.

Creating, changing and deleting are entries of the metadata lane; so is the trim of a pub-sub queue. The trim of a
two-phase queue is an entry of its lane. All are idempotent: repeated, they are answered as if for the first time.

What a request gets to see is this peer's own state, after it has applied what it asked for. Creating also waits until
the new lanes take writes, since that is what the next request will want.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from avow.errors import Forbidden, InvalidRequest
from avow.limits import INTERNAL_QUEUE_PREFIX, PIPELINES_QUEUE
from avow.peer.answers import Done
from avow.peer.http import shapes
from avow.peer.http.api import Api
from avow.peer.http.errors import reply_of_answer
from avow.peer.http.exchange import Exchange
from avow.peer.lane import Write
from avow.queue.catalog import Queue
from avow.queue.commands import LaneTrimCommand, QueueCommand, RetentionRules, TrimCommand, encode
from avow.wire.messages import Kind

_WRITABLE_EVERY_S: Final = 0.02
_WRITABLE_TRIES: Final = 100


def list_queues(api: Api, exchange: Exchange, asked: shapes.ListParameters, content: None) -> None:  # noqa: ARG001
    token = api.token(exchange)
    queues = [queue for queue in api.node.metadata.state.queues() if token.may("read", queue.name)]
    if not asked.internal:
        queues = [queue for queue in queues if not queue.name.startswith(INTERNAL_QUEUE_PREFIX)]
    api.answer(exchange, shapes.Queues([view(api, queue) for queue in queues]))


async def create_queue(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: shapes.NewQueue) -> None:  # noqa: ARG001
    check_name("queue", content.name)
    check_not_internal(content.name)
    api.token(exchange).check("manage", content.name)
    _check_new(api, content)
    existed = content.name in api.node.metadata.state.catalog.by_name
    command = QueueCommand(
        action="create",
        name=content.name,
        strategy=content.strategy,
        lanes=content.lanes,
        retention=_rules(content.retention),
        peers=tuple(sorted(set(content.peers))),
    )
    answer = await api.command(Kind.QUEUE, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer))
        return
    queue = api.queue(content.name)
    await _until_writable(api, queue)
    api.answer(exchange, view(api, queue), status=200 if existed else 201)


def show_queue(api: Api, exchange: Exchange, asked: shapes.QueueParameters, content: None) -> None:  # noqa: ARG001
    api.answer(exchange, view(api, api.queue(asked.queue)))


async def change_queue(
    api: Api, exchange: Exchange, asked: shapes.QueueParameters, content: shapes.ChangedQueue
) -> None:
    command = QueueCommand(action="change", name=asked.queue, retention=_rules(content.retention))
    answer = await api.command(Kind.QUEUE, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer))
        return
    api.answer(exchange, view(api, api.queue(asked.queue)))


async def delete_queue(api: Api, exchange: Exchange, asked: shapes.QueueParameters, content: None) -> None:  # noqa: ARG001
    command = QueueCommand(action="delete", name=asked.queue)
    answer = await api.command(Kind.QUEUE, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer))
        return
    await api.catch_up()
    await _until_everybody_knows(api)
    api.answer(exchange, shapes.Deleted(asked.queue, deleted=True))


async def trim_queue(api: Api, exchange: Exchange, asked: shapes.QueueParameters, content: shapes.Trim) -> None:
    target = api.target(api.queue(asked.queue), content.lane)
    node, now, write_id = api.node, api.peer.now(), os.urandom(16)
    if target.queue.strategy == "pub-sub":
        upto = api.node.pubsub[target.queue.name].trim_limit(target.number, content.upto_version)
        control = encode(LaneTrimCommand(target.number, upto))
        answer = await api.command(Kind.TRIM, control, write_id=write_id)
    else:
        write = Write(Kind.TRIM, write_id, control=encode(TrimCommand(content.upto_version)))
        answer = await api.ask(lambda request: node.write(request, target.number, write, now))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer))
        return
    api.answer(exchange, shapes.TrimmedTo(target.lane, answer.last_version))


# ---------------------------------------------------------------------- shared


def check_name(what: str, name: str) -> None:
    """Names end up in headers, files of logs and terminals: they are one line that can be seen."""
    if not name.isprintable() or name != name.strip() or name in (".", ".."):
        raise InvalidRequest(
            f"the name of a {what} has visible characters, and spaces only inside; not {name[:200]!r}. Nothing was done"
        )


def is_internal(name: str) -> bool:
    """Only the cluster itself changes it. Where pipelines report is not listed among the data, and theirs to write."""
    return name.startswith(INTERNAL_QUEUE_PREFIX) and name != PIPELINES_QUEUE


def check_not_internal(name: str) -> None:
    """Raises Forbidden."""
    if is_internal(name):
        raise Forbidden(
            f"queues whose name begins with {INTERNAL_QUEUE_PREFIX!r} are the cluster's own: they are not created, "
            "changed or written from outside. Nothing was done"
        )


def view(api: Api, queue: Queue) -> shapes.Queue:
    node, pubsub = api.node, queue.strategy == "pub-sub"
    if pubsub:
        numbers = [lane.number for lane in node.metadata.state.lanes.by_number.values() if lane.queue == queue.name]
    else:
        numbers = list(range(queue.first_lane, queue.first_lane + queue.lanes))
    held = node.pubsub.get(queue.name) if pubsub else None
    rules = queue.retention
    return shapes.Queue(
        name=queue.name,
        strategy=queue.strategy,
        peers=list(queue.peers),
        retention=shapes.Retention(rules.age_s, rules.size_bytes, rules.passed),
        open_lane=(held.open_lane or None) if held is not None else None,
        lanes=[_lane(api, queue, number) for number in numbers],
    )


def _lane(api: Api, queue: Queue, number: int) -> shapes.Lane:
    pubsub = queue.strategy == "pub-sub"
    lane = number if pubsub else number - queue.first_lane
    seen = api.node.lane_view(number)
    if seen is None:
        voters = list(queue.peers or queue.founders)
        return shapes.Lane(lane, number, 0, 0, None, voters, None, ended=False, held=False)
    return shapes.Lane(
        lane=lane,
        number=number,
        end=seen.end,
        trimmed_to=seen.trimmed_to,
        coordinator=seen.coordinator or None,
        voters=list(seen.voters),
        owner=seen.owner or None,
        ended=seen.ended,
        held=True,
    )


def _check_new(api: Api, wanted: shapes.NewQueue) -> None:
    """What the metadata lane would refuse with a bare code, in words. It decides again, on what is then true."""
    if wanted.strategy == "pub-sub" and (wanted.lanes > 1 or wanted.peers):
        raise InvalidRequest("a pub-sub queue has a lane for each run of each voter: leave `lanes` and `peers` out")
    strangers = sorted(set(wanted.peers) - set(api.node.metadata.state.voters))
    if strangers:
        raise InvalidRequest(f"peers {strangers} do not vote in this cluster; nothing was created. GET /v1/peers")


async def _until_everybody_knows(api: Api) -> None:
    """A peer that has not heard of it yet would still take a write for the queue, from the one who deleted it."""
    metadata, known = api.node.metadata, api.node.metadata.applied
    for _ in range(_WRITABLE_TRIES):
        core, oldest = metadata.core, api.peer.now() - metadata.core.tuning.heartbeat_fresh_s
        others = [peer for peer in core.members.everyone if peer != core.me and core.heard.get(peer, 0.0) >= oldest]
        if all(core.accepted.get(peer, 0) >= known for peer in others):
            return
        await asyncio.sleep(_WRITABLE_EVERY_S)


async def _until_writable(api: Api, queue: Queue) -> None:
    """A lane takes writes once it has a coordinator or an owner. Whoever creates a queue means to write to it next."""
    node = api.node
    for _ in range(_WRITABLE_TRIES):
        held = node.pubsub.get(queue.name)
        lanes = [node.lanes.get(queue.first_lane + index) for index in range(queue.lanes)] if held is None else []
        now = api.peer.now()
        if (
            held.open_lane
            if held is not None
            else all(lane is None or lane.core.live_coordinator(now) for lane in lanes)
        ):
            return
        await asyncio.sleep(_WRITABLE_EVERY_S)


def _rules(retention: shapes.Retention) -> RetentionRules:
    return RetentionRules(retention.age_s, retention.size_bytes, retention.passed)
