"""One client of a campaign: it performs one random operation at a time and records request and answer.

A session remembers the highest version that it has seen of each lane. Its `at_least` reads ask for that version, its
appends with an expected cursor compare with it, and it moves its subscriber's cursor there.

It also keeps a producer over a channel, whose messages are covered by commits within the stream; the channel lasts from
one such operation to the next, so that faults meet it open.

An exception that is not an AvowError is a mistake of the client library; it is recorded, and fails the campaign.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from avow.client.descriptions import Level, Strategy, SubscriberInfo
from avow.errors import AvowError, NotEqual, Unknown
from avow_lab.campaigns.peers.history import History, Kind, Op, Outcome, Span, codes_of, digest_of, value_of, values_of

if TYPE_CHECKING:
    from avow.client.client import Client
    from avow.client.producer import Producer
    from avow.client.queue import Queue

BATCH_COUNT_MAX: Final = 12
BURST_COUNT: Final = 6
READ_COUNT_MAX: Final = 2_000
PAUSE_S: Final = (0.005, 0.06)
KEYS: Final = 64


class Plan(Struct, frozen=True):
    """A queue of the campaign."""

    name: str
    strategy: Strategy
    lanes: int = 1


PLANS: Final = (
    Plan("ledger", "two-phase"),
    Plan("orders", "two-phase", 3),
    Plan("events", "pub-sub"),
)

STREAM_COUNT_MAX: Final = 60
DEADLINES_S: Final = (0.2, 0.5, 0.8, 1.5, 3.0)

_WEIGHTS: Final = {
    "two-phase": {
        "one": 6,
        "many": 3,
        "burst": 2,
        "split": 1,
        "expected": 3,
        "transaction": 2,
        "stream": 2,
        "read": 5,
        "cursor": 2,
    },
    "pub-sub": {"one": 6, "many": 3, "burst": 2, "stream": 2, "read": 4, "cursor": 2},
}


class Emphasis(Struct):
    """What a fault wants most sessions to do while it lasts; shared by all of them."""

    streams: bool = False
    deadlines: bool = False  # transactions whose deadlines pass


class Session:
    """`troubles` is shared by all sessions: errors that a client library should not raise."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        client: Client,
        history: History,
        *,
        seed: int,
        troubles: list[str],
        emphasis: Emphasis | None = None,
    ) -> None:
        self.number, self.plan, self._history = number, plan, history
        self._client, self._emphasis = client, emphasis or Emphasis()
        self._producer: Producer | None = None
        self._queue: Queue = client.queue(plan.name)
        self._random = random.Random(seed * 1_000 + number)
        self._known: dict[int, int] = dict.fromkeys(range(plan.lanes), 0) if plan.strategy == "two-phase" else {}
        self._moved = False  # the subscriber exists
        self._troubles = troubles
        self._txn = 0
        self.subscriber = f"reader-{number % 3}"

    async def run(self, stopping: asyncio.Event) -> None:
        try:
            await self._run(stopping)
        finally:
            if self._producer is not None:
                self._producer.abort()

    async def _run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            step = self._next_step()
            try:
                await getattr(self, f"_{step}")()
            except AvowError as error:
                self._troubles.append(f"session {self.number}, {step}: {error.code}: {error}")
            except Exception as error:  # a task's boundary: the error becomes part of the verdict
                self._troubles.append(f"session {self.number}, {step}: {error!r}")
            await asyncio.sleep(self._random.uniform(*PAUSE_S))

    def _next_step(self) -> str:
        if self._emphasis.streams and self._random.random() < 0.8:
            return "stream"
        if self._emphasis.deadlines and self.plan.strategy == "two-phase" and self.plan.lanes >= 3:
            return "expiring"
        weights = _WEIGHTS[self.plan.strategy]
        return self._random.choices(list(weights), list(weights.values()))[0]

    # ------------------------------------------------------------------ writing

    async def _one(self) -> None:
        op = self._begin(Kind.WRITE, count=1)
        await self._record(op, self._queue.enqueue(value_of(op.number, 0), **self._place(op)))

    async def _many(self) -> None:
        op = self._begin(Kind.WRITE, count=self._random.randint(1, BATCH_COUNT_MAX))
        place = self._place(op)
        if "key" in place:
            place = {"keys": [place["key"]] * op.count}
        await self._record(op, self._queue.enqueue_many(values_of(op.number, op.count), **place))

    async def _burst(self) -> None:
        """Calls in one turn of the event loop are sent as one batch; each gets its own answer."""
        ops = [self._begin(Kind.WRITE, count=1) for _ in range(BURST_COUNT)]
        place = self._place(ops[0])
        await asyncio.gather(*(self._record(op, self._queue.send(value_of(op.number, 0), **place)) for op in ops))

    async def _split(self) -> None:
        op = self._begin(Kind.WRITE, count=self._random.randint(2, BATCH_COUNT_MAX), split=True)
        keys = [self._key() for _ in range(op.count)]
        await self._record(op, self._queue.enqueue_many(values_of(op.number, op.count), keys=keys))

    async def _expected(self) -> None:
        lane = self._random.choice(list(self._known))
        if self._random.random() < 0.8:
            await self._read_from(lane, level="linearizable")
        op = self._begin(Kind.WRITE, count=self._random.randint(1, 3), lane=lane, expected=self._known[lane])
        values = values_of(op.number, op.count)
        await self._record(op, self._queue.enqueue_many(values, lane=lane, expected=op.expected))

    def _place(self, op: Op) -> dict[str, Any]:
        """Two-phase: a lane by number, by key, or the client's choice. Pub-sub: always the client's choice."""
        if self.plan.strategy == "pub-sub" or self._random.random() < 0.3:
            return {}
        if self._random.random() < 0.5:
            return {"key": self._key()}
        op.lane = self._random.choice(list(self._known))
        return {"lane": op.lane}

    def _key(self) -> bytes:
        return b"key-%d" % self._random.randrange(KEYS)

    # ------------------------------------------------------------------ streams

    async def _stream(self) -> None:
        """Messages in several records, with another commit in the middle; acknowledged when the last commit is."""
        producer, self._producer = self._producer, None
        if producer is None:
            producer = self._client.producer(self.plan.name)
            try:
                await producer.open()
            except AvowError:
                return  # nothing was sent
        op = self._begin(Kind.STREAM, count=self._random.randint(1, STREAM_COUNT_MAX))
        key = self._key() if self.plan.strategy == "two-phase" and self._random.random() < 0.5 else None
        middle: asyncio.Task[None] | None = None
        try:
            for index in range(op.count):
                await producer.send(value_of(op.number, index), key=key)
                if self._random.random() < 0.3:
                    await asyncio.sleep(0)  # the record ends
                if index == op.count // 2:
                    middle = asyncio.ensure_future(producer.commit())
            await producer.commit()
        except AvowError as error:
            producer.abort()
            self._history.end(op, Outcome.UNKNOWN, code=error.code)
        else:
            self._history.end(op, Outcome.DONE)
            self._producer = producer
        finally:
            if middle is not None:
                await asyncio.gather(middle, return_exceptions=True)

    # ------------------------------------------------------------------ transactions

    async def _transaction(self) -> None:
        """Stage in one lane or in two; then publish, discard, or leave it to its deadline."""
        self._txn += 1
        number = self.number * 1_000_000 + self._txn
        lanes = self._random.sample(list(self._known), min(len(self._known), self._random.choice([1, 1, 2])))
        transaction = self._queue.transaction(name=f"txn-{number}", deadline_s=30)
        for _ in range(self._random.randint(1, 3)):
            for lane in lanes:
                count = self._random.randint(1, 4)
                op = self._begin(Kind.STAGE, count=count, lane=lane, txn=number)
                await self._record(op, transaction.enqueue_many(values_of(op.number, count), lane=lane), staged=True)
        fate = self._random.random()
        if fate < 0.7:
            op = self._begin(Kind.PUBLISH, txn=number)
            await self._record(op, transaction.publish())
        elif fate < 0.9:
            op = self._begin(Kind.DISCARD, txn=number)
            await self._record(op, transaction.discard())

    async def _expiring(self) -> None:
        """Stage in three lanes under two deadlines, and decide about when they pass."""
        self._txn += 1
        number = self.number * 1_000_000 + self._txn
        *lanes, last = self._random.sample(list(self._known), 3)
        deadlines_s = self._random.sample(DEADLINES_S, 2)
        first, second = (
            self._queue.transaction(name=f"txn-{number}", deadline_s=deadline_s) for deadline_s in deadlines_s
        )
        for lane in (*lanes, last, lanes[0]):
            transaction = second if lane == last else first
            count = self._random.randint(1, 4)
            op = self._begin(Kind.STAGE, count=count, lane=lane, txn=number)
            await self._record(op, transaction.enqueue_many(values_of(op.number, count), lane=lane), staged=True)
        await asyncio.sleep(self._random.choice([0.0, min(deadlines_s), min(deadlines_s) + 0.15, max(deadlines_s)]))
        if self._random.random() < 0.9:
            op = self._begin(Kind.PUBLISH, txn=number)
            await self._record(op, first.publish())

    # ------------------------------------------------------------------ reading

    async def _read(self) -> None:
        if not self._known:
            return
        lane = self._random.choice(list(self._known))
        levels: list[Level] = ["local", "at_least"]
        if self.plan.strategy == "two-phase":
            levels.append("linearizable")
        await self._read_from(lane, level=self._random.choice(levels))

    async def _read_from(self, lane: int, *, level: Level) -> None:
        known = self._known[lane]
        after = max(0, known - self._random.randint(0, 40))
        op = self._begin(Kind.READ, lane=lane, level=level, after=after)
        codes = array("q")
        try:
            async for batch in self._queue.read(after=after, lane=lane, level=level, at_least=known):
                codes.extend(codes_of(bytes(value) for value in batch.values()))
                if len(codes) >= READ_COUNT_MAX:
                    op.cut = True
                    break
        except AvowError as error:
            self._end(op, error)
            return
        op.end, op.digest = after + len(codes), digest_of(codes)
        self._history.end(op, Outcome.DONE)
        self._known[lane] = max(known, op.end)

    async def _cursor(self) -> None:
        """Move the cursor to the version that this session knows, or read it."""
        if not self._known:
            return
        lane = self._random.choice(list(self._known))
        if self._random.random() < 0.5:
            op = self._begin(Kind.MOVE, lane=lane, after=self._known[lane], subscriber=self.subscriber)
            await self._record_cursor(op, self._queue.move_cursor(self.subscriber, {lane: op.after}))
        elif self._moved:
            op = self._begin(Kind.CURSOR, lane=lane, subscriber=self.subscriber)
            await self._record_cursor(op, self._queue.cursor(self.subscriber))

    async def _record_cursor(self, op: Op, answer: Awaitable[SubscriberInfo | dict[int, int]]) -> None:
        try:
            answered = await answer
        except AvowError as error:
            self._end(op, error)
            return
        versions = answered if isinstance(answered, dict) else answered.versions
        self._moved = True
        self._history.end(op, Outcome.DONE, spans=[(lane, 0, version) for lane, version in versions.items()])

    # ------------------------------------------------------------------ recording

    def _begin(self, kind: Kind, **fields: Any) -> Op:
        return self._history.begin(kind, self.plan.name, self.number, **fields)

    async def _record(self, op: Op, answer: Awaitable[Any], *, staged: bool = False) -> None:
        try:
            done = await answer
        except AvowError as error:
            self._end(op, error)
            if isinstance(error, Unknown) and op.kind is Kind.WRITE and not op.split:
                await self._lookup(op, error)
            return
        spans = [] if staged or done is None else spans_of(done)
        for lane, _, last in spans:
            self._known[lane] = max(self._known.get(lane, 0), last)
        self._history.end(op, Outcome.DONE, spans=spans)

    async def _lookup(self, write: Op, unknown: Unknown) -> None:
        """Ask for the outcome of a write without an answer."""
        write_id: bytes = getattr(unknown, "write_id", b"")
        lane: int | None = getattr(unknown, "lane", None)
        if not write_id:
            return
        op = self._begin(Kind.LOOKUP, about=write.number, lane=-1 if lane is None else lane)
        await self._record(op, self._queue.outcome(write_id, lane=lane))

    def _end(self, op: Op, error: AvowError) -> None:
        if isinstance(error, NotEqual):
            op.cursor = error.current
            self._known[op.lane] = max(self._known[op.lane], error.current)
        definite = error.definite and not isinstance(error, Unknown)
        self._history.end(op, Outcome.REFUSED if definite else Outcome.UNKNOWN, code=error.code)


def spans_of(done: Any) -> Sequence[Span]:
    """Of one Done or several."""
    several: Iterable[Any] = done if isinstance(done, (list, tuple)) else (done,)
    return [(one.lane, one.first_version, one.last_version) for one in several]
