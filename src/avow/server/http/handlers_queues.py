"""Handlers of queues: list, create, show, change, trim, delete.

Creating, changing and deleting are entries of the metadata lane; so is the trim of a pub-sub queue. The trim of a
two-phase queue is an entry of its lane. All are idempotent: a repeated request gets the same answer.

A request is answered from this peer's own state, after it has applied the change. Creating a queue also waits until the
new lanes accept writes, because the next request is likely to be a write.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from itertools import chain, repeat
from typing import Final

from avow.errors import Forbidden, InvalidRequest, TooMany
from avow.limits import INTERNAL_QUEUE_PREFIX, PIPELINES_QUEUE, TWO_PHASE_LANES_COUNT
from avow.node.answers import Done
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import LaneTrimCommand, QueueCommand, RetentionRules, TrimCommand, encode
from avow.queue.records import Queue
from avow.server.http import schemas
from avow.server.http.api import Api
from avow.server.http.error_reply import reply_of_answer
from avow.server.http.request import HttpRequest
from avow.wire.messages import Kind

_WAIT_S: Final = 2.0
_LOOK_S: Final = (0.002, 0.004, 0.008, 0.016)  # pauses between looks; the last is repeated


def list_queues(api: Api, request: HttpRequest, asked: schemas.ListParameters, content: None) -> None:  # noqa: ARG001
    token = api.token(request)
    queues = [queue for queue in api.node.metadata.state.queues() if token.may("read", queue.name)]
    if not asked.internal:
        queues = [queue for queue in queues if not queue.name.startswith(INTERNAL_QUEUE_PREFIX)]
    api.answer(request, schemas.Queues([view(api, queue) for queue in queues]))


async def create_queue(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: schemas.NewQueue) -> None:  # noqa: ARG001
    check_name("queue", content.name)
    check_not_internal(content.name)
    api.token(request).check("manage", content.name)
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
        request.reply(reply_of_answer(answer))
        return
    queue = api.queue(content.name)
    await _until_writable(api, queue)
    api.answer(request, view(api, queue), status=200 if existed else 201)


def show_queue(api: Api, request: HttpRequest, asked: schemas.QueueParameters, content: None) -> None:  # noqa: ARG001
    api.answer(request, view(api, api.queue(asked.queue)))


async def change_queue(
    api: Api, request: HttpRequest, asked: schemas.QueueParameters, content: schemas.ChangedQueue
) -> None:
    command = QueueCommand(action="change", name=asked.queue, retention=_rules(content.retention))
    answer = await api.command(Kind.QUEUE, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        request.reply(reply_of_answer(answer))
        return
    api.answer(request, view(api, api.queue(asked.queue)))


async def delete_queue(api: Api, request: HttpRequest, asked: schemas.QueueParameters, content: None) -> None:  # noqa: ARG001
    command = QueueCommand(action="delete", name=asked.queue)
    answer = await api.command(Kind.QUEUE, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        request.reply(reply_of_answer(answer))
        return
    await api.catch_up()
    await _until_all_peers_applied(api)
    api.answer(request, schemas.Deleted(asked.queue, deleted=True))


async def trim_queue(api: Api, request: HttpRequest, asked: schemas.QueueParameters, content: schemas.Trim) -> None:
    target = api.target(api.queue(asked.queue), content.lane)
    node, now, write_id = api.node, api.peer.now(), os.urandom(16)
    if target.queue.strategy == "pub-sub":
        upto = api.node.pubsub[target.queue.name].trim_limit(target.number, content.upto_version)
        control = encode(LaneTrimCommand(target.number, upto))
        answer = await api.command(Kind.TRIM, control, write_id=write_id)
    else:
        write = Write(Kind.TRIM, write_id, control=encode(TrimCommand(content.upto_version)))
        answer = await api.ask(lambda node_request: node.write(node_request, target.number, write, now))
    if not isinstance(answer, Done):
        request.reply(reply_of_answer(answer))
        return
    api.answer(request, schemas.TrimmedTo(target.lane, answer.last_version))


# ---------------------------------------------------------------------- shared


def check_name(what: str, name: str) -> None:
    """Names are shown in headers, log files and terminals, so they must be one line of visible characters."""
    if not name.isprintable() or name != name.strip() or name in (".", ".."):
        raise InvalidRequest(
            f"the name of a {what} must consist of visible characters, with spaces only inside; {name[:200]!r} does "
            "not. Nothing was done"
        )


def is_internal(name: str) -> bool:
    """Whether only the cluster itself may change the queue. Pipelines write their reports to `PIPELINES_QUEUE`."""
    return name.startswith(INTERNAL_QUEUE_PREFIX) and name != PIPELINES_QUEUE


def check_not_internal(name: str) -> None:
    """Raises Forbidden for the cluster's own queues."""
    if is_internal(name):
        raise Forbidden(
            f"queues whose names begin with {INTERNAL_QUEUE_PREFIX!r} belong to the cluster: clients cannot create, "
            "change or write them. Nothing was done"
        )


def view(api: Api, queue: Queue) -> schemas.Queue:
    node, pubsub = api.node, queue.strategy == "pub-sub"
    if pubsub:
        numbers = [lane.number for lane in node.metadata.state.lanes.by_number.values() if lane.queue == queue.name]
    else:
        numbers = list(range(queue.first_lane, queue.first_lane + queue.lanes))
    held = node.pubsub.get(queue.name) if pubsub else None
    rules = queue.retention
    return schemas.Queue(
        name=queue.name,
        strategy=queue.strategy,
        peers=list(queue.peers),
        retention=schemas.Retention(rules.age_s, rules.size_bytes, rules.passed),
        open_lane=(held.open_lane or None) if held is not None else None,
        lanes=[_lane(api, queue, number) for number in numbers],
    )


def _lane(api: Api, queue: Queue, number: int) -> schemas.Lane:
    pubsub = queue.strategy == "pub-sub"
    lane = number if pubsub else number - queue.first_lane
    seen = api.node.lane_view(number)
    if seen is None:
        voters = list(queue.peers or queue.founders)
        return schemas.Lane(lane, number, 0, 0, None, voters, None, ended=False, held=False)
    return schemas.Lane(
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


def _check_new(api: Api, wanted: schemas.NewQueue) -> None:
    """Checks what the metadata lane would refuse with only a code. The lane checks again when it applies the entry."""
    if wanted.strategy == "pub-sub" and (wanted.lanes > 1 or wanted.peers):
        raise InvalidRequest(
            "a pub-sub queue has a lane for each run of each voter; nothing was created. Leave out `lanes` and `peers`"
        )
    check_room(api.node.metadata.state.queues(), wanted)
    others = sorted(set(wanted.peers) - set(api.node.metadata.state.voters))
    if others:
        raise InvalidRequest(
            f"peers {others} are not voters of this cluster; nothing was created. GET /v1/peers lists the voters"
        )


def check_room(queues: Iterable[Queue], wanted: schemas.NewQueue) -> None:
    """Raises TooMany. Two creations at the same moment may go a little beyond the limit."""
    if wanted.strategy != "two-phase":
        return
    held = sum(queue.lanes for queue in queues if queue.strategy == "two-phase" and queue.name != wanted.name)
    if held + wanted.lanes > TWO_PHASE_LANES_COUNT:
        raise TooMany(
            f"the two-phase queues have {held} lanes, and a cluster may have {TWO_PHASE_LANES_COUNT}; nothing was "
            "created. Delete queues, or ask for fewer lanes"
        )


async def _until_all_peers_applied(api: Api) -> None:
    """Waits until all reachable peers have the deletion: a peer without it would still accept writes to the queue."""
    metadata, known = api.node.metadata, api.node.metadata.applied
    async for _ in _looks():
        core, oldest = metadata.core, api.peer.now() - metadata.core.tuning.heartbeat_fresh_s
        others = [peer for peer in core.members.everyone if peer != core.me and core.heard.get(peer, 0.0) >= oldest]
        if all(core.accepted.get(peer, 0) >= known for peer in others):
            return


async def _until_writable(api: Api, queue: Queue) -> None:
    """Waits until each lane has a coordinator or an owner, and so accepts writes."""
    node = api.node
    async for _ in _looks():
        held = node.pubsub.get(queue.name)
        lanes = [node.lanes.get(queue.first_lane + index) for index in range(queue.lanes)] if held is None else []
        now = api.peer.now()
        if (
            held.open_lane
            if held is not None
            else queue.first_lane + queue.lanes - 1 not in node.queues.unopened
            and all(lane is None or lane.core.live_coordinator(now) for lane in lanes)
        ):
            return


async def _looks() -> AsyncIterator[None]:
    """Soon at first, because most of what is waited for takes a few milliseconds."""
    waited_s = 0.0
    for pause_s in chain(_LOOK_S, repeat(_LOOK_S[-1])):
        yield
        if waited_s >= _WAIT_S:
            return
        await asyncio.sleep(pause_s)
        waited_s += pause_s


def _rules(retention: schemas.Retention) -> RetentionRules:
    return RetentionRules(retention.age_s, retention.size_bytes, retention.passed)
