"""Handlers of writes, the hot path of a peer: no task and no coroutine, the node calls back with the answer.

    one lane        `SingleLaneReply`: the answer of the lane is the answer of the request
    several lanes   `MultiLaneReply`: JSON messages whose keys belong to different lanes; the answer waits for all. If
                    only some are done the answer is UNKNOWN and lists what was written; repeating the request with the
                    same write id completes it

If the node does not answer in time the answer is UNKNOWN too. The write may still be stored: a request with the same
write id tells.

A lane forgets write ids. A write with an id that it does not know is stored only if the write is so young that its id
would be known had it been stored before; otherwise the answer is UNKNOWN (pub-sub: OFFLINE). So every write whose id
the client chose has an age (`age_ms_of`), and one that says nothing about its age may be of any age.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from crc32c import crc32c

from avow.errors import InvalidRequest, UnknownMessage
from avow.node.answers import Answer, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.queue.entry_outcome import repeated
from avow.queue.records import Queue
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.error_reply import reply_of, reply_of_answer
from avow.server.http.request import HttpRequest
from avow.server.http.route import BATCH
from avow.server.http.write_body import WriteBody, age_since, take_batch, take_messages
from avow.server.http.write_replies import MultiLaneReply, SingleLaneReply
from avow.wire.messages import Kind

_AGE_DIGITS_MAX: Final = 12
_ELSEWHERE: Final = "; nothing was stored. Send the request there"


def enqueue(api: Api, request: HttpRequest, asked: schemas.EnqueueParameters, content: Any) -> None:
    queue = api.queue(asked.queue)
    if queue.strategy == "pub-sub":
        _enqueue_pubsub(api, request, queue, asked, content)
        return
    if content == BATCH:
        _enqueue_batch(api, request, queue, asked)
        return
    write_id, age_ms, batches = take(api, request, queue, asked, content)
    if asked.expected is not None and len(batches) > 1:
        raise InvalidRequest("`expected` works for one lane, but these messages go to several; nothing was stored")
    expected = -1 if asked.expected is None else asked.expected
    writes = [
        (target, write_of(taken, write_id=write_id, expected=expected, age_ms=age_ms)) for target, taken in batches
    ]
    if asked.redirect:
        for target, _ in writes:
            api.check_coordinator(target, _ELSEWHERE)
    request.deadline = api.listener.now() + asked.timeout_s
    if len(writes) == 1:
        target, write = writes[0]
        reply = SingleLaneReply(api, request, write_id, target.lane, target.number, asked.expected)
        reply.node_request = node_request = api.peer.expect(reply.answered)
        request.watcher = reply
        api.node.write(node_request, target.number, write, api.peer.now())
    else:
        MultiLaneReply(api, request, writes, details={"write_id": write_id.hex()}, shape=_enqueued(write_id))
    api.peer.wake()


def _enqueue_batch(api: Api, request: HttpRequest, queue: Queue, asked: schemas.EnqueueParameters) -> None:
    """The common case: one batch for one lane, without redirects."""
    taken = take_batch(request.body)
    write_id, lane, expected = _write_id(taken, asked.write_id), asked.lane, asked.expected
    if lane is None:
        lane = 0 if queue.lanes == 1 else take_lane(write_id, queue.lanes)
    number = queue.first_lane + lane
    if lane >= queue.lanes or queue.peers or asked.redirect:
        target = api.target(queue, lane)  # raises if the lane is wrong or not held here
        if asked.redirect:
            api.check_coordinator(target, _ELSEWHERE)
    now, peer = api.peer.now(), api.peer
    reply = SingleLaneReply(api, request, write_id, lane, number, expected)
    reply.node_request = node_request = peer.expect(reply.answered)
    request.watcher, request.deadline = reply, api.listener.now() + asked.timeout_s
    chosen, created_ms = bool(taken.write_id or asked.write_id), asked.created_ms or taken.created_ms
    age_ms = age_ms_of(request, chosen=chosen, created_ms=created_ms, now_ms=peer.now_ms())
    write = write_of(taken, write_id=write_id, expected=-1 if expected is None else expected, age_ms=age_ms)
    peer.node.write(node_request, number, write, now)
    peer.wake()


def _write_id(taken: WriteBody, asked: str | None) -> bytes:
    """The batch's own, or the query's, or a new one."""
    chosen = bytes.fromhex(asked) if asked is not None else b""
    if taken.write_id and chosen and chosen != taken.write_id:
        raise InvalidRequest("the batch and the query have different write ids; nothing was stored")
    return taken.write_id or chosen or os.urandom(16)


def _enqueued(write_id: bytes) -> Callable[[list[tuple[int, Done]]], schemas.Enqueued]:
    def shape(done: list[tuple[int, Done]]) -> schemas.Enqueued:
        return schemas.Enqueued(
            write_id.hex(), [schemas.Written(at, d.first_version, d.last_version) for at, d in done]
        )

    return shape


def _enqueue_pubsub(
    api: Api, request: HttpRequest, queue: Queue, asked: schemas.EnqueueParameters, content: Any
) -> None:
    if asked.expected is not None:
        raise InvalidRequest(
            "a pub-sub queue has no single end to compare with; nothing was stored. Leave out `expected`"
        )
    write_id, age_ms, batches = take(api, request, queue, asked, content)
    write = write_of(batches[0][1], write_id=write_id, age_ms=age_ms)
    held = api.node.pubsub.get(queue.name)
    lane = asked.lane or (held.open_lane if held is not None else 0)
    reply = SingleLaneReply(api, request, write_id, lane, 0, None)
    reply.node_request = node_request = api.peer.expect(reply.answered)
    request.watcher = reply
    request.deadline = api.listener.now() + asked.timeout_s
    api.node.write_pubsub(node_request, queue.name, write, api.peer.now(), lane=asked.lane or 0)
    api.peer.wake()


async def look_up_write(api: Api, request: HttpRequest, asked: schemas.LookupParameters, content: None) -> None:  # noqa: ARG001
    """Two-phase: a lane remembers its recent writes; after a linearizable read this peer's copy is up to date."""
    queue, write_id = api.queue(asked.queue), bytes.fromhex(asked.write_id)
    node, now = api.node, api.peer.now()
    if queue.strategy == "pub-sub":
        lane = asked.lane
        if not lane:
            raise InvalidRequest("a pub-sub queue needs `lane`, the lane to which the write was bound")
        answer = await api.ask(
            lambda node_request: node.lookup(node_request, queue.name, lane, write_id, since=asked.since)
        )
        found = [(lane, answer)]
    else:
        lanes = range(queue.lanes) if asked.lane is None else (asked.lane,)
        targets = [api.target(queue, lane) for lane in lanes]
        found = await _known(api, targets, write_id, now)
    _answer_lookup(api, request, asked.write_id, found)


async def _known(api: Api, targets: list[Target], write_id: bytes, now: float) -> list[tuple[int, Answer]]:
    node = api.node

    def start(target: Target, node_request: int) -> None:
        node.reach(node_request, target.number, level="linearizable", version=0, now=now)

    reached = await api.ask_all([partial(start, target) for target in targets])
    found: list[tuple[int, Answer]] = []
    for target, answer in zip(targets, reached, strict=True):
        lane = node.lanes.get(target.number)
        if not isinstance(answer, Done) or lane is None:
            found.append((target.lane, answer))
            continue
        known = lane.state.outcome_of(write_id)
        outcome = None if known is None else repeated(Kind.DATA, known)
        if outcome is not None and outcome.code:
            found.append((target.lane, Refusal(outcome.code, outcome.last_version)))
        elif outcome is not None:
            found.append((target.lane, Done(outcome.first_version, outcome.last_version)))
    return found


def _answer_lookup(api: Api, request: HttpRequest, write_id: str, found: list[tuple[int, Answer]]) -> None:
    done = [schemas.Written(lane, a.first_version, a.last_version) for lane, a in found if isinstance(a, Done)]
    refused = [answer for _, answer in found if not isinstance(answer, Done)]
    if refused:
        request.reply(reply_of_answer(refused[0], details={"write_id": write_id}))
    elif done:
        api.answer(request, schemas.Enqueued(write_id.lower(), done))
    else:
        error = UnknownMessage("no lane remembers this write: it was not stored, or too many writes came after it")
        request.reply(reply_of(error, details={"write_id": write_id}))


# ---------------------------------------------------------------------- bodies


def take(
    api: Api,
    request: HttpRequest,
    queue: Queue,
    asked: schemas.EnqueueParameters | schemas.StageParameters,
    content: Any,
) -> tuple[bytes, int, list[tuple[Target, WriteBody]]]:
    """The write id, the age of the write, and one batch per lane. A write id is generated if the client gave none."""
    pubsub, lane, write_id = queue.strategy == "pub-sub", asked.lane, asked.write_id
    now_ms, created_ms, given = api.peer.now_ms(), asked.created_ms, write_id is not None
    if content == BATCH:
        taken = take_batch(request.body)
        chosen, given = _write_id(taken, write_id), given or bool(taken.write_id)
        created_ms = created_ms or taken.created_ms
        if lane is None and queue.lanes > 1:
            lane = take_lane(chosen, queue.lanes)
        batches = {lane or 0: taken}
    else:
        chosen = bytes.fromhex(write_id) if write_id is not None else os.urandom(16)
        lanes = 1 if pubsub else queue.lanes
        batches = take_messages(content.messages, write_id=chosen, lane=lane, lanes=lanes, now_ms=now_ms)
    age_ms = age_ms_of(request, chosen=given, created_ms=created_ms, now_ms=now_ms)
    if pubsub:
        return chosen, age_ms, [(Target(queue, at, at), taken) for at, taken in batches.items()]
    return chosen, age_ms, [(api.target(queue, at), taken) for at, taken in batches.items()]


def take_lane(write_id: bytes, lanes: int) -> int:
    """The lane of messages without a key: they stay together, and a repeated write goes to the same lane."""
    return crc32c(write_id) % lanes


def write_of(taken: WriteBody, *, write_id: bytes, expected: int = -1, age_ms: int = 0) -> Write:
    return Write(
        kind=Kind.DATA,
        write_id=write_id,
        count=taken.count,
        expected=expected,
        created_ms=taken.created_ms,
        batch=taken.section,
        mergeable=taken.mergeable and expected < 0,
        age_ms=age_ms,
    )


def age_ms_of(request: HttpRequest, *, chosen: bool, created_ms: int | None, now_ms: int) -> int:
    """The time since the client first sent this write, as far as the request shows; 0 for a first attempt.

    `chosen`: the client chose the write id, so the request may be a repetition. The header says how old it is. Without
    the header `created_ms` does, from the query or the record: it is the same in every repetition of the request.
    """
    text = request.headers.get(b"avow-age-ms")
    if text is not None:
        if not text.isdigit() or len(text) > _AGE_DIGITS_MAX:
            raise InvalidRequest("avow-age-ms must be a number of milliseconds; nothing was stored")
        return int(text)
    return age_since(created_ms, now_ms) if chosen else 0
