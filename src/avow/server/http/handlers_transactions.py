"""Handlers of transactions: stage, publish, discard.

Each lane has its own batches of a transaction and its own decision. A request without a lane is for every lane that has
the transaction. Publish is sent to every lane of the queue, because a lane without the transaction refuses and stores
nothing. Discard is not: a lane stores the discard of a transaction it has never seen, so that a late stage cannot open
it. So the lanes with the transaction are first found by a linearizable read.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from avow.errors import InvalidRequest, TooLarge, UnknownTransaction
from avow.limits import TRANSACTION_NAME_BYTES_MAX
from avow.node.answers import Answer, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import StageCommand, TransactionCommand, encode
from avow.queue.records import Queue
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.error_reply import reply_of_answer
from avow.server.http.handlers_queues import check_name
from avow.server.http.handlers_writes import take
from avow.server.http.request import HttpRequest
from avow.server.http.write_replies import MultiLaneReply, joined
from avow.wire.messages import Kind


def stage(api: Api, request: HttpRequest, asked: schemas.StageParameters, content: Any) -> None:
    check_name("transaction", asked.txn)
    queue = _two_phase(api, asked.queue)
    deadline_ms = api.peer.now_ms() + round(asked.deadline_s * 1000)
    control = encode(StageCommand(_txn(asked.txn), deadline_ms, asked.part))
    write_id, age_ms, batches = take(api, request, queue, asked, content)
    writes = [
        (
            target,
            Write(
                kind=Kind.STAGE,
                write_id=write_id,
                count=taken.count,
                created_ms=taken.created_ms,
                control=control,
                batch=taken.section,
                age_ms=age_ms,
            ),
        )
        for target, taken in batches
    ]

    def shape(done: list[tuple[int, Done]]) -> schemas.Staged:
        return schemas.Staged(write_id.hex(), [schemas.LaneOnly(lane) for lane, _ in done])

    request.deadline = api.listener.now() + asked.timeout_s
    MultiLaneReply(api, request, writes, details={"write_id": write_id.hex()}, shape=shape)
    api.peer.wake()


async def publish(
    api: Api, request: HttpRequest, asked: schemas.TransactionParameters, content: schemas.Parts | None
) -> None:
    targets = _targets(api, _two_phase(api, asked.queue), asked.lane)
    answers = await _decide(api, targets, _command(asked.txn, content), Kind.PUBLISH)
    known = [pair for pair in answers if not _is_unknown(pair[1])]
    refusal, done = joined(known or answers)
    if refusal is not None:
        _refuse(request, refusal, asked.txn, done)
        return
    found = [schemas.Written(lane, answer.first_version, answer.last_version) for lane, answer in done]
    api.answer(request, schemas.Published(found))


async def discard(
    api: Api, request: HttpRequest, asked: schemas.TransactionParameters, content: schemas.Parts | None
) -> None:
    targets = _targets(api, _two_phase(api, asked.queue), asked.lane)
    if asked.lane is None and content is None:
        found = await _knowing(api, targets, asked.txn)
        if not isinstance(found, list):
            _refuse(request, found, asked.txn, [])
            return
        targets = found
    refusal, done = joined(await _decide(api, targets, _command(asked.txn, content), Kind.DISCARD))
    if refusal is not None:
        _refuse(request, refusal, asked.txn, done)
        return
    api.answer(request, schemas.Discarded([schemas.LaneOnly(lane) for lane, _ in done]))


def _command(txn: str, content: schemas.Parts | None) -> TransactionCommand:
    parts = content.parts if content is not None else ()
    return TransactionCommand(_txn(txn), parts=tuple((part.part, part.messages) for part in parts))


async def _decide(api: Api, targets: list[Target], command: TransactionCommand, kind: int) -> list[tuple[int, Answer]]:
    node, now = api.node, api.peer.now()
    control = encode(command)

    def start(target: Target, node_request: int) -> None:
        node.write(node_request, target.number, Write(kind, os.urandom(16), control=control), now)

    answers = await api.ask_all([partial(start, target) for target in targets])
    return [(target.lane, answer) for target, answer in zip(targets, answers, strict=True)]


async def _knowing(api: Api, targets: list[Target], txn: str) -> list[Target] | Answer:
    """The lanes in which the transaction is open or decided. Raises UnknownTransaction if there are none."""
    node, now, name = api.node, api.peer.now(), _txn(txn)

    def start(target: Target, node_request: int) -> None:
        node.reach(node_request, target.number, level="linearizable", version=0, now=now)

    reached = await api.ask_all([partial(start, target) for target in targets])
    for answer in reached:
        if not isinstance(answer, Done):
            return answer
    found = []
    for target in targets:
        lane = node.lanes.get(target.number)
        known = lane.state.transactions if lane is not None else None
        if known is not None and (name in known.opened or known.decided.get(name) is not None):
            found.append(target)
    if not found:
        raise UnknownTransaction(f"no lane of the queue has a transaction {txn[:200]!r}; nothing was done")
    return found


def _two_phase(api: Api, name: str) -> Queue:
    queue = api.queue(name)
    if queue.strategy != "two-phase":
        raise InvalidRequest(
            "only two-phase queues have transactions, because a decision needs one order of writes; nothing was done"
        )
    return queue


def _targets(api: Api, queue: Queue, lane: int | None) -> list[Target]:
    return [api.target(queue, at) for at in (range(queue.lanes) if lane is None else (lane,))]


def _txn(name: str) -> bytes:
    txn = name.encode()
    if len(txn) > TRANSACTION_NAME_BYTES_MAX:
        raise TooLarge(
            f"the transaction's name has {len(txn)} bytes, at most {TRANSACTION_NAME_BYTES_MAX} are allowed; "
            "nothing was done"
        )
    return txn


def _is_unknown(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code == UnknownTransaction.code


def _refuse(request: HttpRequest, answer: Answer, txn: str, done: list[tuple[int, Done]]) -> None:
    details: dict[str, Any] = {"transaction": txn}
    if done:
        details["done"] = [lane for lane, _ in done]
    request.reply(reply_of_answer(answer, details=details, partly=bool(done)))
