"""Handlers of subscribers: named readers whose cursors are stored with the queue.

A two-phase lane stores the cursors of its own readers, so moving a subscriber in several lanes is an entry in each. The
lanes of a pub-sub queue come and go, so its cursor is one vector in the metadata lane. The API is the same for both.

Listing cursors reads this peer's state and may lag. A request that moves a cursor is answered with the decided values,
which this peer may not have applied yet.
"""

from __future__ import annotations

import os
from functools import partial

from avow.errors import UnknownSubscriber
from avow.node.answers import Answer, Done
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import Command, CursorCommand, LaneCursorsCommand, encode
from avow.queue.records import Queue, VectorCursor
from avow.queue.subscriptions import lanes_of
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.error_reply import reply_of_answer
from avow.server.http.handlers_queues import check_name
from avow.server.http.request import HttpRequest
from avow.server.http.write_replies import joined
from avow.wire.messages import Kind


def list_subscribers(api: Api, request: HttpRequest, asked: schemas.QueueParameters, content: None) -> None:  # noqa: ARG001
    api.answer(request, schemas.Subscribers(list(subscribers_of(api, api.queue(asked.queue)).values())))


async def show_subscriber(api: Api, request: HttpRequest, asked: schemas.SubscriberParameters, content: None) -> None:  # noqa: ARG001
    """A linearizable read: a cursor move that was acknowledged is visible at every peer."""
    behind = await _behind(api, api.queue(asked.queue))
    if behind is not None:
        request.reply(reply_of_answer(behind, details={"subscriber": asked.name}))
        return
    api.answer(request, _known(api, api.queue(asked.queue), asked.name))


async def _behind(api: Api, queue: Queue) -> Answer | None:
    """Waits until this peer has applied every move acknowledged before. None: it has; else the refusal."""
    if queue.strategy == "pub-sub":
        answers = [await api.catch_up()]
    else:
        node, now = api.node, api.peer.now()

        def start(target: Target, node_request: int) -> None:
            node.reach(node_request, target.number, level="linearizable", version=0, now=now)

        answers = await api.ask_all([partial(start, api.target(queue, lane)) for lane in range(queue.lanes)])
    return next((answer for answer in answers if not isinstance(answer, Done)), None)


async def move_cursor(
    api: Api, request: HttpRequest, asked: schemas.SubscriberParameters, content: schemas.Cursor
) -> None:
    check_name("subscriber", asked.name)
    queue = api.queue(asked.queue)
    if queue.strategy == "pub-sub":
        versions = tuple(sorted(content.versions.items()))
        command = LaneCursorsCommand(queue.name, asked.name, versions, content.hold, content.reset)
        answer = await api.command(Kind.CURSOR, encode(command), write_id=os.urandom(16))
        if not isinstance(answer, Done):
            request.reply(reply_of_answer(answer, details={"subscriber": asked.name}))
            return
        api.answer(request, _known(api, api.queue(asked.queue), asked.name))
        return
    await _move_lanes(api, request, queue, asked.name, content)


async def _move_lanes(api: Api, request: HttpRequest, queue: Queue, name: str, content: schemas.Cursor) -> None:
    """A new subscriber or a hold changes every lane; a version changes its own lane."""
    before = subscribers_of(api, queue).get(name, schemas.Subscriber(name, {}, hold=False))
    everywhere = content.hold is not None or not content.versions
    lanes = sorted({*content.versions, *(range(queue.lanes) if everywhere else ())})
    commands: dict[int, Command] = {
        lane: CursorCommand(
            name,
            content.versions.get(lane, 0),
            hold=content.hold,
            reset=content.reset and lane in content.versions,
        )
        for lane in lanes
    }
    answers = await _write_all(api, queue, commands)
    refusal, done = joined(answers)
    if refusal is not None:
        request.reply(reply_of_answer(refusal, details={"subscriber": name, "done": [lane for lane, _ in done]}))
        return
    versions = {**before.versions, **{str(lane): answer.last_version for lane, answer in done}}
    hold = before.hold if content.hold is None else content.hold
    api.answer(request, schemas.Subscriber(name, versions, hold, before.epoch, before.members))


async def remove_subscriber(api: Api, request: HttpRequest, asked: schemas.SubscriberParameters, content: None) -> None:  # noqa: ARG001
    queue = api.queue(asked.queue)
    _known(api, queue, asked.name)
    if queue.strategy == "pub-sub":
        control = encode(LaneCursorsCommand(queue.name, asked.name, remove=True))
        answer: Answer | None = await api.command(Kind.CURSOR, control, write_id=os.urandom(16))
        answer = None if isinstance(answer, Done) else answer
    else:
        commands: dict[int, Command] = {lane: CursorCommand(asked.name, remove=True) for lane in range(queue.lanes)}
        answer, _ = joined(await _write_all(api, queue, commands))
    if answer is not None:
        request.reply(reply_of_answer(answer, details={"subscriber": asked.name}))
        return
    api.answer(request, schemas.Removed(asked.name, removed=True))


async def _write_all(api: Api, queue: Queue, commands: dict[int, Command]) -> list[tuple[int, Answer]]:
    targets = [api.target(queue, lane) for lane in commands]
    node, now = api.node, api.peer.now()

    def start(target: Target, node_request: int) -> None:
        write = Write(Kind.CURSOR, os.urandom(16), control=encode(commands[target.lane]))
        node.write(node_request, target.number, write, now)

    answers = await api.ask_all([partial(start, target) for target in targets])
    return [(target.lane, answer) for target, answer in zip(targets, answers, strict=True)]


def subscribers_of(api: Api, queue: Queue) -> dict[str, schemas.Subscriber]:
    """By name, in this peer's state."""
    if queue.strategy == "pub-sub":
        cursors = {**{name: VectorCursor() for name in queue.subscriptions}, **queue.subscribers}
        return {
            name: _shown(
                api, queue, name, {str(lane): v for lane, v in sorted(cursor.versions.items())}, hold=cursor.hold
            )
            for name, cursor in sorted(cursors.items())
        }
    api.check_held(queue)
    versions: dict[str, dict[str, int]] = {}
    holds: set[str] = set()
    for index in range(queue.lanes):
        lane = api.node.lanes.get(queue.first_lane + index)
        for name, cursor in lane.state.subscribers.by_name.items() if lane is not None else ():
            versions.setdefault(name, {})[str(index)] = cursor.version
            if cursor.hold:
                holds.add(name)
    return {name: _shown(api, queue, name, versions[name], hold=name in holds) for name in sorted(versions)}


def _shown(api: Api, queue: Queue, name: str, versions: dict[str, int], *, hold: bool) -> schemas.Subscriber:
    subscription = queue.subscriptions.get(name)
    if subscription is None:
        return schemas.Subscriber(name, versions, hold)
    held = api.node.pubsub.get(queue.name)
    lanes = range(queue.lanes) if queue.strategy == "two-phase" else held.numbers if held is not None else ()
    members = [
        schemas.Member(member.name, member.peer, list(lanes_of(subscription, member.name, lanes)))
        for member in subscription.members
    ]
    return schemas.Subscriber(name, versions, hold, subscription.epoch, members)


def _known(api: Api, queue: Queue, name: str) -> schemas.Subscriber:
    found = subscribers_of(api, queue).get(name)
    if found is None:
        raise UnknownSubscriber(f"queue {queue.name!r} has no subscriber {name[:200]!r}; moving its cursor creates it")
    return found
