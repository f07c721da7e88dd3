"""Writes: the hot path of a peer. No task, no coroutine: a write leaves a callback with the node.

    one lane        `Single`: the answer of the lane is the answer of the request
    several lanes   `Spread`: JSON messages whose keys belong to different lanes; the answer waits for all of them.
                    Some done and some not is neither done nor refused: it is UNKNOWN, names what was written, and the
                    same request again with the same write id completes it

An answer that does not come in time is UNKNOWN too. The write goes on; its write id finds out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from crc32c import crc32c

from avow.errors import InvalidRequest, NotCoordinator, UnknownMessage
from avow.peer.answers import Answer, Done, Refusal
from avow.peer.http import shapes
from avow.peer.http.api import Api, Target
from avow.peer.http.errors import reply_of, reply_of_answer
from avow.peer.http.exchange import Exchange
from avow.peer.http.intake import Taken, take_batch, take_messages
from avow.peer.http.pending import Single, Spread
from avow.peer.http.route import BATCH
from avow.peer.lane import Write
from avow.queue.catalog import Queue
from avow.wire.messages import Kind

_AGE_DIGITS_MAX: Final = 12


def enqueue(api: Api, exchange: Exchange, asked: shapes.EnqueueParameters, content: Any) -> None:
    queue = api.queue(asked.queue)
    if queue.strategy == "pub-sub":
        _enqueue_pubsub(api, exchange, queue, asked, content)
        return
    if content == BATCH:
        _enqueue_batch(api, exchange, queue, asked)
        return
    write_id, batches = take(api, exchange, queue, content, lane=asked.lane, write_id=asked.write_id)
    if asked.expected is not None and len(batches) > 1:
        raise InvalidRequest("`expected` compares with one lane, and these messages go to several; nothing was stored")
    expected, age_ms = -1 if asked.expected is None else asked.expected, age_ms_of(exchange)
    writes = [
        (target, write_of(taken, write_id=write_id, expected=expected, age_ms=age_ms)) for target, taken in batches
    ]
    if asked.redirect:
        _check_coordinator(api, [target for target, _ in writes])
    exchange.deadline = api.listener.now() + asked.timeout_s
    if len(writes) == 1:
        target, write = writes[0]
        single = Single(api, exchange, write_id, target.lane, target.number, asked.expected)
        single.request = request = api.peer.expect(single.hear)
        exchange.watcher = single
        api.node.write(request, target.number, write, api.peer.now())
    else:
        Spread(api, exchange, writes, details={"write_id": write_id.hex()}, shape=_enqueued(write_id))
    api.peer.wake()


def _enqueue_batch(api: Api, exchange: Exchange, queue: Queue, asked: shapes.EnqueueParameters) -> None:
    """The same as for JSON, for the one batch in one lane that most writes are."""
    taken = take_batch(exchange.body)
    write_id, lane, expected = _write_id(taken, asked.write_id), asked.lane, asked.expected
    if lane is None:
        lane = 0 if queue.lanes == 1 else take_lane(write_id, queue.lanes)
    number = queue.first_lane + lane
    if lane >= queue.lanes or queue.peers or asked.redirect:
        target = api.target(queue, lane)  # it says what is wrong, if something is
        if asked.redirect:
            _check_coordinator(api, [target])
    now, peer = api.peer.now(), api.peer
    single = Single(api, exchange, write_id, lane, number, expected)
    single.request = request = peer.expect(single.hear)
    exchange.watcher, exchange.deadline = single, api.listener.now() + asked.timeout_s
    age_ms = age_ms_of(exchange)
    write = write_of(taken, write_id=write_id, expected=-1 if expected is None else expected, age_ms=age_ms)
    peer.node.write(request, number, write, now)
    peer.wake()


def _write_id(taken: Taken, asked: str | None) -> bytes:
    """The batch's own, or the query's, or a new one."""
    chosen = bytes.fromhex(asked) if asked is not None else b""
    if taken.write_id and chosen and chosen != taken.write_id:
        raise InvalidRequest("the batch has a write id, and the query names another; nothing was stored")
    return taken.write_id or chosen or os.urandom(16)


def _enqueued(write_id: bytes) -> Callable[[list[tuple[int, Done]]], shapes.Enqueued]:
    def shape(done: list[tuple[int, Done]]) -> shapes.Enqueued:
        return shapes.Enqueued(write_id.hex(), [shapes.Written(at, d.first_version, d.last_version) for at, d in done])

    return shape


def _enqueue_pubsub(api: Api, exchange: Exchange, queue: Queue, asked: shapes.EnqueueParameters, content: Any) -> None:
    if asked.expected is not None:
        raise InvalidRequest(
            "a pub-sub queue has no single end to compare with; nothing was stored. Leave `expected` out"
        )
    write_id, batches = take(api, exchange, queue, content, lane=asked.lane, write_id=asked.write_id)
    write = write_of(batches[0][1], write_id=write_id, age_ms=age_ms_of(exchange))
    held = api.node.pubsub.get(queue.name)
    lane = asked.lane or (held.open_lane if held is not None else 0)
    single = Single(api, exchange, write_id, lane, 0, None)
    single.request = request = api.peer.expect(single.hear)
    exchange.watcher = single
    exchange.deadline = api.listener.now() + asked.timeout_s
    api.node.write_pubsub(request, queue.name, write, api.peer.now(), lane=asked.lane or 0)
    api.peer.wake()


async def look_up_write(api: Api, exchange: Exchange, asked: shapes.LookupParameters, content: None) -> None:  # noqa: ARG001
    """Two-phase: a lane knows its recent writes, and this peer knows what the lane does after a linearizable read."""
    queue, write_id = api.queue(asked.queue), bytes.fromhex(asked.write_id)
    node, now = api.node, api.peer.now()
    if queue.strategy == "pub-sub":
        lane = asked.lane
        if not lane:
            raise InvalidRequest("name the lane this write was bound to; nothing can be known without it")
        answer = await api.ask(lambda request: node.lookup(request, queue.name, lane, write_id, since=asked.since))
        found = [(lane, answer)]
    else:
        lanes = range(queue.lanes) if asked.lane is None else (asked.lane,)
        targets = [api.target(queue, lane) for lane in lanes]
        found = await _known(api, targets, write_id, now)
    _answer_lookup(api, exchange, asked.write_id, found)


async def _known(api: Api, targets: list[Target], write_id: bytes, now: float) -> list[tuple[int, Answer]]:
    node = api.node

    def start(target: Target, request: int) -> None:
        node.reach(request, target.number, level="linearizable", version=0, now=now)

    reached = await api.ask_all([partial(start, target) for target in targets])
    found: list[tuple[int, Answer]] = []
    for target, answer in zip(targets, reached, strict=True):
        lane = node.lanes.get(target.number)
        if not isinstance(answer, Done) or lane is None:
            found.append((target.lane, answer))
            continue
        outcome = lane.state.outcome_of(write_id)
        if outcome is not None and outcome.code:
            found.append((target.lane, Refusal(outcome.code, outcome.last_version)))
        elif outcome is not None:
            found.append((target.lane, Done(outcome.first_version, outcome.last_version)))
    return found


def _answer_lookup(api: Api, exchange: Exchange, write_id: str, found: list[tuple[int, Answer]]) -> None:
    done = [shapes.Written(lane, a.first_version, a.last_version) for lane, a in found if isinstance(a, Done)]
    refused = [answer for _, answer in found if not isinstance(answer, Done)]
    if refused:
        exchange.reply(reply_of_answer(refused[0], details={"write_id": write_id}))
    elif done:
        api.answer(exchange, shapes.Enqueued(write_id.lower(), done))
    else:
        error = UnknownMessage("no lane remembers this write: it was never seen, or too many came after it")
        exchange.reply(reply_of(error, details={"write_id": write_id}))


# ---------------------------------------------------------------------- what is written


def take(
    api: Api, exchange: Exchange, queue: Queue, content: Any, *, lane: int | None, write_id: str | None
) -> tuple[bytes, list[tuple[Target, Taken]]]:
    """The write id, and a batch for each lane that gets one. Without an id from the client, one is chosen."""
    pubsub = queue.strategy == "pub-sub"
    if content == BATCH:
        taken = take_batch(exchange.body)
        chosen = _write_id(taken, write_id)
        if lane is None and queue.lanes > 1:
            lane = take_lane(chosen, queue.lanes)
        batches = {lane or 0: taken}
    else:
        chosen = bytes.fromhex(write_id) if write_id is not None else os.urandom(16)
        lanes = 1 if pubsub else queue.lanes
        batches = take_messages(content.messages, write_id=chosen, lane=lane, lanes=lanes, now_ms=api.peer.now_ms())
    if pubsub:
        return chosen, [(Target(queue, at, at), taken) for at, taken in batches.items()]
    return chosen, [(api.target(queue, at), taken) for at, taken in batches.items()]


def take_lane(write_id: bytes, lanes: int) -> int:
    """Where messages without a key go: together, and the same place when the write is repeated."""
    return crc32c(write_id) % lanes


def write_of(taken: Taken, *, write_id: bytes, expected: int = -1, age_ms: int = 0) -> Write:
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


def age_ms_of(exchange: Exchange) -> int:
    """How long ago the client first sent this write; 0 for a first attempt."""
    text = exchange.headers.get(b"avow-age-ms")
    if text is None:
        return 0
    if not text.isdigit() or len(text) > _AGE_DIGITS_MAX:
        raise InvalidRequest("avow-age-ms is a number of milliseconds; nothing was stored")
    return int(text)


def _check_coordinator(api: Api, targets: list[Target]) -> None:
    """With `redirect`: a client that wants to save the detour is sent to the coordinator."""
    for target in targets:
        lane = api.node.lanes.get(target.number)
        coordinator = lane.core.live_coordinator(api.peer.now()) if lane is not None else 0
        if coordinator and coordinator != api.node.me:
            raise NotCoordinator(
                f"peer {coordinator} coordinates lane {target.lane}; nothing was stored. Send it there",
                coordinator=coordinator,
                api=api.api_of(coordinator),
            )
