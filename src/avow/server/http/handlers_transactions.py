"""Handlers of transactions: stage, publish, discard.

In a queue with several lanes one of them, the home lane, decides a transaction for all (`node.transactions`). It is
opened there before anything is staged in another lane. Publish and discard of the whole transaction are steps that the
node takes; a discard of parts decides nothing, and each lane does it by itself.

A queue with one lane needs no such steps. Nor can they be taken while the cluster's level is 1, because peers of the
first release could not read them: then each lane decides its own batches. Publish is sent to every lane of the queue,
because a lane without the transaction refuses and stores nothing. Discard is sent to the lanes that have it. If only
some lanes do it, the answer lists them and is not definite.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from avow.errors import Incomplete, InvalidRequest, TooLarge, UnknownTransaction
from avow.limits import TRANSACTION_NAME_BYTES_MAX
from avow.node.answers import Answer, Decided, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.node.transactions import Wanted, home_of
from avow.queue.commands import BoundStageCommand, StageCommand, TransactionCommand, encode
from avow.queue.records import Queue
from avow.queue.transactions import Parts
from avow.server.http import schemas
from avow.server.http.api import Api, Target
from avow.server.http.error_reply import reply_of_answer
from avow.server.http.handlers_queues import check_name
from avow.server.http.handlers_writes import take
from avow.server.http.request import HttpRequest
from avow.server.http.write_replies import MultiLaneReply, joined
from avow.wire.messages import Kind


def stage(
    api: Api, request: HttpRequest, asked: schemas.StageParameters, content: Any
) -> Coroutine[Any, Any, None] | None:
    check_name("transaction", asked.txn)
    queue, txn = _two_phase(api, asked.queue), _txn(asked.txn)
    deadline_ms = api.peer.now_ms() + round(asked.deadline_s * 1000)
    command, home = StageCommand(txn, deadline_ms, asked.part), 0
    if api.node.transactions.is_bound(queue):
        home = home_of(queue, txn)
        command = BoundStageCommand(txn, deadline_ms, asked.part, home)
    control = encode(command)
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
    request.deadline = api.listener.now() + asked.timeout_s
    if home and any(target.number != home for target, _ in writes):
        return _stage_elsewhere(api, request, asked.txn, write_id, home, writes)
    _stage(api, request, write_id, writes)
    return None


def _stage(api: Api, request: HttpRequest, write_id: bytes, writes: Sequence[tuple[Target, Write]]) -> None:
    MultiLaneReply(api, request, writes, details={"write_id": write_id.hex()}, shape=_staged(write_id))
    api.peer.wake()


def _staged(write_id: bytes) -> Callable[[list[tuple[int, Done]]], schemas.Staged]:
    return lambda done: schemas.Staged(write_id.hex(), [schemas.LaneOnly(lane) for lane, _ in done])


async def _stage_elsewhere(
    api: Api, request: HttpRequest, txn: str, write_id: bytes, home: int, writes: list[tuple[Target, Write]]
) -> None:
    """The home lane first: it has the deadline, and knows if the transaction is decided."""
    node, opens = api.node, Write(Kind.STAGE, b"", control=writes[0][1].control)
    opened = await api.ask(lambda number: node.write(number, home, opens, api.peer.now()))
    if not isinstance(opened, Done):
        details: dict[str, Any] = {"write_id": write_id.hex(), **_fate(api, home, txn)}
        request.reply(reply_of_answer(opened, details=details))
        return

    def start(target: Target, write: Write) -> Callable[[int], None]:
        return lambda number: node.write(number, target.number, write, api.peer.now())

    answers = await api.ask_all([start(target, write) for target, write in writes])
    refusal, done = joined([(target.lane, answer) for (target, _), answer in zip(writes, answers, strict=True)])
    if refusal is None:
        api.answer(request, _staged(write_id)(done))
        return
    request.reply(reply_of_answer(refusal, details={"write_id": write_id.hex()}, partly=bool(done)))


def _fate(api: Api, home: int, txn: str) -> dict[str, str]:
    """How the transaction was decided, as this peer knows it."""
    lane = api.node.lanes.get(home)
    decision = lane.state.transactions.decided.get(txn.encode()) if lane is not None else None
    return {} if decision is None else {"fate": decision.fate}


async def publish(
    api: Api, request: HttpRequest, asked: schemas.TransactionParameters, content: schemas.Parts | None
) -> None:
    queue, txn = _two_phase(api, asked.queue), _txn(asked.txn)
    targets = _targets(api, queue, asked.lane)
    _check_parts(queue, content)
    if _decided_by_one(api, queue, txn):
        wanted = _wanted(queue, asked, content)
        answer = await api.ask(lambda number: api.node.transactions.publish(number, queue, txn, wanted))
        if not isinstance(answer, Decided):
            _refuse(request, answer, asked.txn, [])
            return
        spans = [(number - queue.first_lane, *span) for number, span in sorted(answer.versions.items())]
        shown = [schemas.Written(*span) for span in spans if span[2] >= span[1] and asked.lane in (None, span[0])]
        api.answer(request, schemas.Published(shown))
        return
    answers = await _decide(api, _commands(txn, targets, content), Kind.PUBLISH)
    known = [pair for pair in answers if not _is_unknown(pair[1])]
    if content is not None and len(known) < len(answers) and known:
        known.append((-1, Refusal(Incomplete.code)))  # a lane without the transaction has none of the parts
    refusal, done = joined(known or answers)
    if refusal is not None:
        _refuse(request, refusal, asked.txn, done)
        return
    found = [schemas.Written(lane, answer.first_version, answer.last_version) for lane, answer in done]
    api.answer(request, schemas.Published(found))


async def discard(
    api: Api, request: HttpRequest, asked: schemas.TransactionParameters, content: schemas.Parts | None
) -> None:
    queue, txn = _two_phase(api, asked.queue), _txn(asked.txn)
    targets = _targets(api, queue, asked.lane)
    _check_parts(queue, content)
    if content is None and _decided_by_one(api, queue, txn):
        answer = await api.ask(lambda number: api.node.transactions.discard(number, queue, txn))
        if not isinstance(answer, Decided):
            _refuse(request, answer, asked.txn, [])
            return
        api.answer(
            request, schemas.Discarded([schemas.LaneOnly(n - queue.first_lane) for n in sorted(answer.versions)])
        )
        return
    if asked.lane is None and content is None:
        found = await _knowing(api, targets, asked.txn)
        if not isinstance(found, list):
            _refuse(request, found, asked.txn, [])
            return
        targets = found
    refusal, done = joined(await _decide(api, _commands(txn, targets, content), Kind.DISCARD))
    if refusal is not None:
        _refuse(request, refusal, asked.txn, done)
        return
    api.answer(request, schemas.Discarded([schemas.LaneOnly(lane) for lane, _ in done]))


def _check_parts(queue: Queue, content: schemas.Parts | None) -> None:
    if content is None:
        return
    if (content.parts is None) == (content.lanes is None):
        raise InvalidRequest("the body must have either `parts` or `lanes`; nothing was done")
    lanes = [one.lane for one in content.lanes or ()]
    if len(set(lanes)) < len(lanes) or any(lane >= queue.lanes for lane in lanes):
        raise InvalidRequest(f"`lanes` must name lanes from 0 to {queue.lanes - 1}, each once; nothing was done")


def _decided_by_one(api: Api, queue: Queue, txn: bytes) -> bool:
    """Whether the transaction has a home lane. One that was begun before the cluster's level was raised has none."""
    lanes = [api.node.lanes.get(queue.first_lane + lane) for lane in range(queue.lanes)]
    opened = [lane.state.transactions.opened.get(txn) for lane in lanes if lane is not None]
    return api.node.transactions.is_bound(queue) and all(found is None or found.home for found in opened)


def _wanted(queue: Queue, asked: schemas.TransactionParameters, content: schemas.Parts | None) -> Wanted:
    only = 0 if asked.lane is None else queue.first_lane + asked.lane
    if content is None:
        return Wanted()
    if content.lanes is not None:
        return Wanted(lanes={queue.first_lane + one.lane: _parts(one.parts) for one in content.lanes})
    return Wanted(parts=_parts(content.parts or ()), only=only)


def _parts(parts: Sequence[schemas.Part]) -> Parts:
    return tuple((part.part, part.messages) for part in parts)


def _commands(
    txn: bytes, targets: list[Target], content: schemas.Parts | None
) -> list[tuple[Target, TransactionCommand]]:
    """The command for each lane. Lanes that the body does not name get none."""
    if content is None or content.parts is not None:
        parts = _parts(content.parts or ()) if content is not None else ()
        return [(target, TransactionCommand(txn, parts=parts)) for target in targets]
    named = {one.lane: _parts(one.parts) for one in content.lanes or ()}
    return [(t, TransactionCommand(txn, parts=named[t.lane])) for t in targets if t.lane in named]


async def _decide(api: Api, commands: list[tuple[Target, TransactionCommand]], kind: int) -> list[tuple[int, Answer]]:
    node, now = api.node, api.peer.now()

    def start(target: Target, command: TransactionCommand, node_request: int) -> None:
        node.write(node_request, target.number, Write(kind, os.urandom(16), control=encode(command)), now)

    answers = await api.ask_all([partial(start, target, command) for target, command in commands])
    return [(target.lane, answer) for (target, _), answer in zip(commands, answers, strict=True)]


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
