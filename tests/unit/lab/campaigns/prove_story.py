"""A queue that keeps every promise, played out at random, to plant mistakes in.

Sessions take turns; operations of different sessions overlap. Each takes effect at one moment between its two times, so
whatever comes out is a history that a checker must accept.
"""

from __future__ import annotations

import random
from array import array

from avow_lab.campaigns.peers.history import FinalLane, Kind, Op, Outcome, code_of, digest_of

QUEUE, LANES, SESSIONS, PEERS = "orders", 2, 5, 3
STEP_NS = 1000


class Story:
    """`lanes` are codes in order of version; `final` is what three agreeing peers show."""

    def __init__(self, seed: int, *, steps: int = 400) -> None:
        self.random = random.Random(seed)
        self.ops: list[Op] = []
        self.lanes: dict[int, array[int]] = {lane: array("q") for lane in range(LANES)}
        self.now_ns = 0
        self.cursor = 0
        self._running: dict[int, Op] = {}
        self._txns: dict[int, list[Op]] = {}
        self._known: dict[tuple[int, int], int] = {}
        for _ in range(steps):
            self._step()
        for session in list(self._running):
            self._finish(session)

    @property
    def final(self) -> list[FinalLane]:
        return [
            FinalLane(peer, QUEUE, lane, array("q", codes))
            for peer in range(1, PEERS + 1)
            for lane, codes in self.lanes.items()
        ]

    def done(self, kind: Kind, **having: object) -> list[Op]:
        """Operations of a kind that were done, or had the outcome asked for."""
        wanted = {"outcome": Outcome.DONE, **having}
        return [op for op in self.ops if op.kind is kind and all(getattr(op, k) == v for k, v in wanted.items())]

    # ------------------------------------------------------------------ playing

    def _step(self) -> None:
        self.now_ns += STEP_NS
        session = self.random.randrange(SESSIONS)
        if session in self._running:
            self._finish(session)
        else:
            self._running[session] = self._begin(session)

    def _begin(self, session: int) -> Op:
        staged = self._txns.get(session)
        lane = self.random.randrange(LANES)
        kind = self.random.choice([Kind.WRITE, Kind.WRITE, Kind.STAGE, Kind.READ, Kind.MOVE, Kind.CURSOR])
        if staged and self.random.random() < 0.6:
            kind = self.random.choice([Kind.PUBLISH, Kind.PUBLISH, Kind.DISCARD])
        if kind in (Kind.STAGE, Kind.PUBLISH, Kind.DISCARD) and staged:
            lane = staged[0].lane
        op = Op(len(self.ops) + 1, session, kind, QUEUE, self.now_ns, lane=lane, count=self.random.randint(1, 4))
        if kind is Kind.WRITE and self.random.random() < 0.3:
            op.expected = len(self.lanes[lane]) - self.random.randint(0, min(1, len(self.lanes[lane])))
        if kind in (Kind.STAGE, Kind.PUBLISH, Kind.DISCARD):
            op.txn = staged[0].txn if staged else op.number
        self.ops.append(op)
        return op

    def _finish(self, session: int) -> None:
        op = self._running.pop(session)
        op.completed_ns, op.outcome = self.now_ns, Outcome.DONE
        fate = self.random.random()
        if op.kind in (Kind.WRITE, Kind.STAGE) and fate < 0.1:
            op.outcome, op.code = Outcome.REFUSED, "OFFLINE"
            return
        getattr(self, f"_{op.kind}")(op)
        if op.kind in (Kind.WRITE, Kind.PUBLISH, Kind.STAGE) and op.outcome is Outcome.DONE and fate > 0.9:
            op.outcome, op.spans = Outcome.UNKNOWN, ()

    def _write(self, op: Op) -> None:
        codes = self.lanes[op.lane]
        if op.expected not in (-1, len(codes)):
            op.outcome, op.code, op.cursor = Outcome.REFUSED, "NOT_EQUAL", len(codes)
            return
        op.spans = (self._append(op.lane, [op]),)

    def _append(self, lane: int, batches: list[Op]) -> tuple[int, int, int]:
        codes = self.lanes[lane]
        first = len(codes) + 1
        for op in batches:
            codes.extend(code_of(op.number, index) for index in range(op.count))
        return (lane, first, len(codes))

    def _stage(self, op: Op) -> None:
        self._txns.setdefault(op.session, []).append(op)

    def _publish(self, op: Op) -> None:
        op.spans = (self._append(op.lane, self._txns.pop(op.session)),)

    def _discard(self, op: Op) -> None:
        del self._txns[op.session]

    def _read(self, op: Op) -> None:
        op.level = self.random.choice(["local", "at_least", "linearizable"])
        codes = self.lanes[op.lane]
        op.after = self.random.randint(0, len(codes))
        op.end = len(codes)
        op.digest = digest_of(codes[op.after : op.end])

    def _move(self, op: Op) -> None:
        op.lane, op.subscriber = 0, "spark"
        op.after = self.random.randint(0, len(self.lanes[0]))
        self.cursor = max(self.cursor, op.after)
        op.spans = ((0, 0, self.cursor),)

    def _cursor(self, op: Op) -> None:
        op.lane, op.subscriber = 0, "spark"
        op.spans = ((0, 0, self.cursor),)
