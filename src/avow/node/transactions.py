"""Transactions over several lanes: one decision in the home lane, which all other lanes follow.

    publish   read all lanes ─► PREPARE in each follower ─► DECIDE in the home lane ─► FOLLOW in each follower ─► CLOSE
    discard   read all lanes ─► DISCARD in the home lane ─► DISCARD in each follower
    tick      what a peer that coordinates a lane does for transactions whose writer died, or whose deadline passed:
              the home lane  FOLLOW in its followers, then CLOSE
              a follower     once the home lane has no such open transaction and names no such follower: DISCARD

Each is a generator: it yields requests to this node's lanes, gets their answers, and returns the answer to the client.
It may stop at any step, because its peer dies. What it has not done is repeated by the client or completed by `tick`.

A transaction is published if and only if DECIDE is in the log of its home lane. Before that a follower has promised to
keep its batches (PREPARE), and it drops them only after a linearizable read has shown that the home lane does not have
the transaction any more. A DECIDE names the position at which the home lane opened it, and a follower's DISCARD the
position at which the follower last changed it. So neither can meet a later transaction of the same name.

Transactions from before level 2, and those of a queue with one lane, have no home lane. Each lane decides alone, and an
answer about several lanes says what each of them did.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from avow.errors import AlreadyDecided, Incomplete, InvalidRequest, Offline, UnknownTransaction
from avow.limits import WAITING_REQUESTS_MAX
from avow.node.answers import LOST, Answer, Decided, Done, Refusal
from avow.node.lane.requests import Write
from avow.queue.commands import DecisionCommand, DecisionStep, TransactionCommand, encode
from avow.queue.key_to_lane import lane_for
from avow.queue.transactions import Followers, OpenTransaction, Parts, Transactions
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.node.node import Node
    from avow.queue.records import Queue

LEVEL: Final = 2  # of the cluster, from which on transactions are bound

Ask: TypeAlias = Callable[[int], None]  # starts a request with this number
Work: TypeAlias = Generator[list[Ask], list[Answer], Answer]

_TOO_MANY: Final = Refusal("TOO_MANY")
_NOT_HELD: Final = Refusal(Offline.code, reason="this peer does not hold all lanes of the queue yet; nothing was done")
_BEGUN: Final = "a publish of it has begun and stands unless the deadline passes first"


class Wanted(Struct, frozen=True):
    """What to publish. Nothing is set: everything staged. `lanes`: these parts of these lanes (by number). `parts`:
    these parts, with their messages in all lanes. `only`: a client that publishes lane by lane has named this one."""

    lanes: Mapping[int, Parts] | None = None
    parts: Parts = ()
    only: int = 0


class _Running:
    __slots__ = ("answers", "left", "requests", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.requests: list[int] = []
        self.answers: dict[int, Answer] = {}
        self.left = 0


class TransactionDriver:
    """Runs the generators of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: dict[int, _Running] = {}  # by the number of each request that has no answer yet
        self._clients: dict[_Running, int] = {}  # -> the client's request; not those of `tick`
        self._tidying: dict[tuple[int, bytes], _Running] = {}  # (lane, transaction)
        self._due_at = 0.0

    # ------------------------------------------------------------------ requests

    def publish(self, request: int, queue: Queue, txn: bytes, wanted: Wanted) -> None:
        """Answers Decided with the versions in each lane, Refusal (nothing was changed) or Lost."""
        self._start(request, self._publish(queue, txn, wanted))

    def discard(self, request: int, queue: Queue, txn: bytes) -> None:
        """Answers Decided with the lanes that had the transaction, Refusal or Lost."""
        self._start(request, self._discard(queue, txn))

    def is_bound(self, queue: Queue) -> bool:
        """Whether transactions of this queue that begin now are decided by one lane for all."""
        return queue.lanes > 1 and self._node.metadata.state.level >= LEVEL

    def _start(self, request: int, work: Work) -> None:
        if len(self._clients) >= WAITING_REQUESTS_MAX:
            self._node.answers.append((request, _TOO_MANY))
            return
        running = _Running(work)
        self._clients[running] = request
        self._advance(running, None)

    # ------------------------------------------------------------------ running

    def takes(self, request: int) -> bool:
        return request in self._running

    def on_answer(self, request: int, answer: Answer) -> None:
        running = self._running.pop(request)
        running.answers[request] = answer
        running.left -= 1
        if not running.left:
            self._advance(running, [running.answers[number] for number in running.requests])

    def _advance(self, running: _Running, answers: list[Answer] | None) -> None:
        """A work that asks nothing goes on at once."""
        while True:
            try:
                asks = next(running.work) if answers is None else running.work.send(answers)
            except StopIteration as over:
                self._finished(running, over.value)
                return
            if asks:
                break
            answers = []
        node = self._node
        running.requests = [node.next_request() for _ in asks]
        running.answers, running.left = {}, len(asks)
        self._running.update(dict.fromkeys(running.requests, running))
        for number, ask in zip(tuple(running.requests), asks, strict=True):
            ask(number)

    def _finished(self, running: _Running, answer: Answer) -> None:
        request = self._clients.pop(running, 0)
        if request:
            self._node.answers.append((request, answer))
        else:
            self._tidying = {key: other for key, other in self._tidying.items() if other is not running}

    # ------------------------------------------------------------------ publish

    def _publish(self, queue: Queue, txn: bytes, wanted: Wanted) -> Work:
        home, numbers = home_of(queue, txn), _numbers(queue)
        reached = yield [self._read(number) for number in numbers]
        if (failed := _first_failed(reached)) is not None:
            return failed
        states = self._states(numbers)
        if states is None:
            return _NOT_HELD
        here = states[home]
        if txn not in here.following and here.decided.get(txn) is None:
            opened = {number: state.opened[txn] for number, state in states.items() if txn in state.opened}
            if home not in opened:
                return _forgotten(states, txn)
            chosen = _chosen(opened, home, wanted)
            if isinstance(chosen, Refusal):
                return chosen
            answer = yield from self._decide(txn, home, chosen, opened_at=opened[home].opened_at)
            if not isinstance(answer, Done):
                return answer
            reached = yield [self._read(home)]
            if _first_failed(reached) is not None:
                return LOST  # it is decided
        return (yield from self._follow(txn, home, numbers))

    def _decide(self, txn: bytes, home: int, chosen: Mapping[int, Parts], *, opened_at: int) -> Work:
        numbers = [number for number in chosen if number != home]
        prepared = yield [self._step(number, txn, "prepare", parts=chosen[number]) for number in numbers]
        if (failed := _first_failed(prepared)) is not None:
            return failed
        lanes = tuple(
            (number, answer.last_version)
            for number, answer in zip(numbers, prepared, strict=True)
            if isinstance(answer, Done)
        )
        [answer] = yield [self._step(home, txn, "decide", parts=chosen[home], at=opened_at, lanes=lanes)]
        return answer

    def _follow(self, txn: bytes, home: int, numbers: list[int]) -> Work:
        """The home lane has decided, and this peer has applied it."""
        states = self._states(numbers)
        if states is None:
            return LOST
        decision = states[home].decided.get(txn)
        if decision is not None and decision.fate != "published":
            return Refusal(AlreadyDecided.code)
        followers = states[home].following.get(txn, ())
        if followers:
            followed = yield [self._step(number, txn, "follow", at=at) for number, at in followers]
        else:  # all have followed, maybe after they were read
            followed = yield [self._read(number) for number in numbers]
        if _first_failed(followed) is not None:
            return LOST  # it is decided: no refusal of a follower may say that nothing was changed
        found = {
            number: (answer.first_version, answer.last_version)
            for (number, _), answer in zip(followers, followed, strict=False)
            if isinstance(answer, Done)
        }
        for number, state in states.items():
            known = state.decided.get(txn)
            if known is not None and known.fate == "published":
                found[number] = (known.first_version, known.last_version)
        return Decided(found)

    # ------------------------------------------------------------------ discard

    def _discard(self, queue: Queue, txn: bytes) -> Work:
        home, numbers = home_of(queue, txn), _numbers(queue)
        reached = yield [self._read(number) for number in numbers]
        if (failed := _first_failed(reached)) is not None:
            return failed
        states = self._states(numbers)
        if states is None:
            return _NOT_HELD
        having = [n for n, state in states.items() if txn in state.opened or state.decided.get(txn) is not None]
        if not having:
            return Refusal(UnknownTransaction.code)
        [answer] = yield [self._write(home, Kind.DISCARD, TransactionCommand(txn))]
        if not isinstance(answer, Done):
            return answer
        drops = [(n, state.opened[txn].changed_at) for n, state in states.items() if n != home and txn in state.opened]
        yield [self._drop(number, txn, at, reason="client") for number, at in drops]  # `tick` repeats what fails
        return Decided(dict.fromkeys(having, (0, 0)))

    # ------------------------------------------------------------------ without a client

    def tick(self, now: float, now_ms: int) -> None:
        node = self._node
        if now < self._due_at:
            return
        self._due_at = now + node.pace.every_s
        for number, lane in node.lanes.items():
            state = lane.state.transactions
            if lane.core.role != COORDINATOR or not (state.following or state.opened):
                continue
            for txn, followers in list(state.following.items()):
                self._tidy(number, txn, self._complete(number, txn, followers))
            for txn, found in state.followers(number).items():
                if self._may_be_over(number, txn, found, now_ms):
                    self._tidy(number, txn, self._end(number, txn, found))

    def _tidy(self, number: int, txn: bytes, work: Work) -> None:
        if (number, txn) in self._tidying or len(self._tidying) >= WAITING_REQUESTS_MAX:
            return
        running = self._tidying[number, txn] = _Running(work)
        self._advance(running, None)

    def _complete(self, home: int, txn: bytes, followers: Followers) -> Work:
        """All followers publish; then the home lane need not remember them."""
        followed = yield [self._step(number, txn, "follow", at=at) for number, at in followers]
        if (failed := _first_failed(followed)) is not None:
            return failed
        [answer] = yield [self._step(home, txn, "close")]
        return answer

    def _may_be_over(self, number: int, txn: bytes, found: OpenTransaction, now_ms: int) -> bool:
        """By what this peer has of the home lane, which may be old."""
        home = self._states([found.home])
        return (
            home is not None
            and is_over(home[found.home], txn, number)
            and (home[found.home].decided.get(txn) is not None or found.deadline_ms <= now_ms)
        )

    def _end(self, number: int, txn: bytes, found: OpenTransaction) -> Work:
        """The home lane has ended the transaction without this follower. `at` is taken before the home lane is read."""
        at, home = found.changed_at, found.home
        [reached] = yield [self._read(home)]
        states = self._states([home])
        if not isinstance(reached, Done) or states is None or not is_over(states[home], txn, number):
            return reached
        decision = states[home].decided.get(txn)
        discarded = decision is not None and decision.fate == "discarded"
        [answer] = yield [self._drop(number, txn, at, reason="client" if discarded else "deadline")]
        return answer

    # ------------------------------------------------------------------ requests to lanes

    def _states(self, numbers: list[int]) -> dict[int, Transactions] | None:
        lanes = self._node.lanes
        if any(number not in lanes for number in numbers):
            return None
        return {number: lanes[number].state.transactions for number in numbers}

    def _read(self, number: int) -> Ask:
        node = self._node
        return lambda request: node.reach(request, number, level="linearizable", version=0, now=node.now)

    def _write(self, number: int, kind: int, command: TransactionCommand) -> Ask:
        node, write = self._node, Write(kind, b"", control=encode(command))
        return lambda request: node.write(request, number, write, node.now)

    def _step(
        self, number: int, txn: bytes, step: DecisionStep, *, parts: Parts = (), at: int = 0, lanes: Followers = ()
    ) -> Ask:
        return self._write(number, Kind.PUBLISH, DecisionCommand(txn, parts=parts, step=step, at=at, lanes=lanes))

    def _drop(self, number: int, txn: bytes, at: int, *, reason: str) -> Ask:
        command = DecisionCommand(txn, "client" if reason == "client" else "deadline", step="follow", at=at)
        return self._write(number, Kind.DISCARD, command)


def home_of(queue: Queue, txn: bytes) -> int:
    """The number of the lane that decides a transaction."""
    return queue.first_lane + lane_for(txn, queue.lanes)


def is_over(home: Transactions, txn: bytes, number: int) -> bool:
    """Whether the home lane, in this state, will never publish the batches that this follower has now."""
    return txn not in home.opened and number not in dict(home.following.get(txn, ()))


def _numbers(queue: Queue) -> list[int]:
    return [queue.first_lane + lane for lane in range(queue.lanes)]


def _first_failed(answers: list[Answer]) -> Answer | None:
    """A refusal that stays comes before one that passes, and before no answer."""
    failed = [answer for answer in answers if not isinstance(answer, Done)]
    final = [answer for answer in failed if isinstance(answer, Refusal) and answer.code != Offline.code]
    return (final or failed or [None])[0]


def _forgotten(states: Mapping[int, Transactions], txn: bytes) -> Answer:
    """The home lane knows nothing of it: it expired, or was decided before other lanes forgot it."""
    known = {number: found for number, state in states.items() if (found := state.decided.get(txn)) is not None}
    shown = {n: (found.first_version, found.last_version) for n, found in known.items() if found.fate == "published"}
    if shown:
        return Decided(shown)
    return Refusal(AlreadyDecided.code if known else UnknownTransaction.code)


def _chosen(opened: Mapping[int, OpenTransaction], home: int, wanted: Wanted) -> dict[int, Parts] | Refusal:
    """The parts to publish, of each lane that has some, and of the home lane."""
    having = {number: found for number, found in opened.items() if found.positions}
    if not having and (wanted.lanes or wanted.parts):
        return Refusal(UnknownTransaction.code)  # all parts were dropped: only its name is left
    if wanted.lanes is not None:
        missing = [number for number in wanted.lanes if number not in having]
        if missing:
            return Refusal(Incomplete.code)
        return {home: (), **_dropped(having), **wanted.lanes}
    if not wanted.parts:
        return {home: (), **dict.fromkeys(having, ())}
    if wanted.only and set(having) - {wanted.only}:
        reason = "the transaction has batches in other lanes, too, and is decided in all of them at once; nothing was "
        return Refusal(InvalidRequest.code, reason=reason + "published. Name the parts of each lane in one request")
    return _split(having, home, wanted.parts)


def _dropped(having: Mapping[int, OpenTransaction]) -> dict[int, Parts]:
    """No lane but those named: nothing of them is published, and their batches are dropped."""
    return dict.fromkeys(having, NONE)


NONE: Final[Parts] = ((1 << 62, 0),)  # a part that nobody staged


def _split(having: Mapping[int, OpenTransaction], home: int, parts: Parts) -> dict[int, Parts] | Refusal:
    """The messages of each part are counted over all lanes."""
    counts = {number: found.count_parts() for number, found in having.items()}
    totals = {part: sum(of.get(part, 0) for of in counts.values()) for part, _ in parts}
    if len(totals) != len(parts) or any(totals[part] != messages for part, messages in parts):
        return Refusal(Incomplete.code)
    chosen = {number: tuple((part, of[part]) for part in totals if part in of) or NONE for number, of in counts.items()}
    return {home: NONE, **chosen}
