"""The retry logic of writes: attempts a write until it is done, refused or unknown.

A write is attempted until an answer decides it or its deadline passes. Every attempt has the same write id, so a
repeated write takes effect once. Clients, channels, pledges and queue branches differ in what they send and where; this
module decides when to send, retry, wait and give up. Time is an argument, randomness is injected, nothing blocks.

A write is in one of four states:

    waiting     not sent, or to be sent again       in the source, in order
    in flight   sent, not answered
    failed      an attempt failed                   held until it may be sent again
    decided     reported to the caller, once        a late answer only frees its place in the window

    state       event                               next        and
    ---------   ---------------------------------   ---------   ------------------------------------------------------
    waiting     drain: window and target are free   in flight   in lanes: bound to the lane that is open now
    waiting     deadline                            decided     refused, or unknown if `maybe`
    in flight   DONE                                decided     done
    in flight   REFUSED                             decided     refused, or unknown if `maybe`
    in flight   ENDED, in lanes                     waiting     free: bound to no lane, and not `maybe`
    in flight   ENDED, else                         decided     refused: no attempt has happened or will
    in flight   ELSEWHERE, in lanes, not `maybe`    waiting     bound to no lane
    in flight   ELSEWHERE or UNCERTAIN, else        failed      UNCERTAIN sets `maybe`
    in flight   deadline                            decided     unknown; with `waits_for_answer` at the answer
    failed      deadline                            decided     refused, or unknown if `maybe`
    failed      ordered: nothing is in flight       waiting     before writes never sent; then a pause, then a probe
    failed      else: its own pause is over         in flight   in lanes: to the lane it is bound to, and no other

Order (`ordered`). While nothing fails, as many writes are in flight as the window allows. After a failure nothing new
is sent until every attempt in flight is answered. Then the failed writes wait again, in order, and after a pause the
first one is sent alone, as a probe. When a write is done, the full window is used again.

Lanes (`in_lanes`). The same write in two lanes would be stored twice, because each lane remembers its own write ids. A
write leaves the lane it is bound to only when that lane does not and will never contain it: all its attempts were
refused, or the lane has ended without it. Until then it is retried in that lane, while other writes use the next one.

Targets. `aim` chooses one before the first attempt, after each failed round, and after `redirect`, which takes effect
when nothing is in flight: two writes to two peers could overtake each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from typing import Generic

from avow.errors import AvowError
from avow.writer.backoff import Backoff, Randomness, Steady
from avow.writer.steps import Aim, Decided, Ready, Settings, Source, Step, Verdict, W


def _stay(*, failed: bool) -> bool:  # noqa: ARG001
    return False


class Waiting(Generic[W]):
    """The source of a writer whose writes are submitted to it. Numbers the writes."""

    __slots__ = ("_last_number", "_writes")

    def __init__(self) -> None:
        self._writes: deque[W] = deque()
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._writes)

    def number(self, write: W) -> None:
        self._last_number += 1
        write.number = self._last_number

    def put(self, write: W) -> None:
        self._writes.append(write)

    def take(self) -> W | None:
        return self._writes.popleft() if self._writes else None

    def put_back(self, writes: Sequence[W], /) -> None:
        self._writes = deque(sorted((*writes, *self._writes), key=lambda write: write.number))

    def drop(self, write: W) -> None:
        if write in self._writes:
            self._writes.remove(write)

    def expired(self, now: float) -> list[W]:
        late = [write for write in self._writes if write.deadline <= now]
        if late:
            self._writes = deque(write for write in self._writes if write.deadline > now)
        return late

    def first_deadline(self) -> float:
        return min((write.deadline for write in self._writes), default=inf)


class Writer(Generic[W]):
    """Call `drain` after every other call, perform its result, and call `tick` and `drain` again at its `wake_at`.

    Without `source`, writes are passed to `submit`. With it, for example a client's message accumulator, the writer
    takes the next write from the source whenever one may be sent, and `submit` must not be called.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        rng: Randomness | None = None,
        source: Source[W] | None = None,
        aim: Aim = _stay,
    ) -> None:
        self._settings, self._aim = settings, aim
        self._random: Randomness = rng or Steady()
        self._window, self._ordered, self._in_lanes = settings.window, settings.ordered, settings.in_lanes
        self._own: Waiting[W] = Waiting()
        self._source: Source[W] = self._own if source is None else source
        self._in_flight: dict[int, W] = {}  # by number, as the next two
        self._asked: dict[int, W] = {}  # in lanes: attempts of `maybe` writes, which take no place in the window
        self._retries: dict[int, W] = {}
        self._failed: list[W] = []
        self._decided: list[Decided[W]] = []
        self._backoff = Backoff(self._random, settings.pauses)
        self._resume_at = 0.0  # in order: when the pause after a failed round is over; 0.0: there is none
        self._probing = False
        self._aimed = False
        self._lane: int | None = None
        self._deadline = inf  # no write has an earlier one; some writes that had this one may be decided
        self._next_due = inf  # of the retries

    # ------------------------------------------------------------------ inputs

    def submit(self, write: W, now: float) -> None:
        """Add a write after all earlier ones. One with a `due` in the future is sent at that time."""
        assert self._source is self._own, "this writer takes its writes from the given source"
        self._own.number(write)
        self._watch(write)
        if write.due > now:
            self._retry_at(write, write.due)
        else:
            self._own.put(write)

    def answered(self, write: W, step: Step, now: float, error: AvowError | None = None) -> None:
        """The attempt of this write in flight was answered. Ignored if none is in flight."""
        number = write.number
        if self._in_flight.pop(number, None) is None and self._asked.pop(number, None) is None:
            return
        if step is Step.DONE:
            if self._probing:  # otherwise no pause has grown
                self._probing = False
                self._backoff.reset()
            if not write.finished:
                self._decide(write, Verdict.DONE)
        elif not write.finished:
            write.error = error or write.error
            self._not_done(write, step, now)
        if self._failed and not self._in_flight:
            self._start_over(now)

    def tick(self, now: float) -> None:
        """Decide the writes whose deadline has passed."""
        self._expire(now, waits=self._settings.waits_for_answer)

    def close(self) -> None:
        """Decide all remaining writes now: refused, or unknown if an attempt may have happened."""
        self._expire(inf, waits=False)

    def refuse_waiting(self, error: AvowError) -> None:
        """Decide all waiting writes: no target will ever accept them."""
        for write in self._source.expired(inf):
            write.error = error
            self._give_up(write)

    def forget(self, write: W) -> None:
        """The caller no longer waits for this write: it is not retried, and no verdict is reported. It may still be
        done."""
        write.finished = True
        self._retries.pop(write.number, None)
        self._failed = [failed for failed in self._failed if failed is not write]
        self._own.drop(write)

    def redirect(self) -> None:
        """Choose another target for the next attempts, as soon as nothing is in flight."""
        self._aimed = False

    def bind(self, lane: int | None) -> None:
        """In lanes: the lane that new writes go to. None: they wait."""
        self._lane = lane

    # ------------------------------------------------------------------ output

    def drain(self, now: float) -> Ready[W]:
        """What to do now. Each attempt and each verdict is returned once."""
        send: list[W] = []
        if self._next_due <= now:
            self._send_due(send, now)
        if self._resume_at and self._resume_at <= now:
            self._resume_at = 0.0
        if not self._failed and not self._resume_at:
            self._fill(send, now)
        decided, self._decided = self._decided, []
        wake_at = self._deadline if self._deadline < self._next_due else self._next_due
        if not self._in_flight or wake_at == inf:  # else the source has only later deadlines, and nothing pauses
            first = self._source.first_deadline()
            wake_at = first if first < wake_at else wake_at
            wake_at = min(wake_at, self._resume_at) if self._resume_at else wake_at
        return Ready(send, decided, wake_at)

    @property
    def idle(self) -> bool:
        """Nothing waits, is in flight, or must be sent again."""
        return not (self._source or self._in_flight or self._asked or self._retries or self._failed)

    @property
    def failing(self) -> bool:
        """In order: a write has failed, and others are still in flight behind it."""
        return bool(self._failed)

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def unclear_count(self) -> int:
        """In lanes: writes that may be in the lane they are bound to."""
        return len(self._asked) + len(self._retries)

    # ------------------------------------------------------------------ attempts

    def _fill(self, send: list[W], now: float) -> None:
        window = 1 if self._probing else self._window
        while len(self._in_flight) < window:
            if self._in_lanes and self._lane is None:
                return
            if not self._aimed:
                if self._in_flight:
                    return
                self._aim(failed=False)
                self._aimed = True
            write = self._source.take() if self._source else None
            if write is None:
                return
            if self._in_lanes:
                assert not write.maybe or write.bound == self._lane, "a write that may be in a lane must stay with it"
                write.bound = self._lane
            self._attempt(write, self._in_flight, now)
            send.append(write)

    def _send_due(self, send: list[W], now: float) -> None:
        for write in [write for write in self._retries.values() if write.due <= now]:
            del self._retries[write.number]
            self._attempt(write, self._asked if self._in_lanes else self._in_flight, now)
            send.append(write)
        self._next_due = min((write.due for write in self._retries.values()), default=inf)

    def _attempt(self, write: W, among: dict[int, W], now: float) -> None:
        write.tries += 1
        if not write.sent_at:
            write.sent_at = now
        among[write.number] = write
        if write.deadline < self._deadline:
            self._deadline = write.deadline

    # ------------------------------------------------------------------ answers

    def _not_done(self, write: W, step: Step, now: float) -> None:
        if step is Step.ENDED:
            self._ended(write)
            return
        became_maybe = step is Step.UNCERTAIN and not write.maybe
        if became_maybe:
            write.maybe = True
        if step is Step.REFUSED or write.deadline <= now:
            self._give_up(write)
            return
        if self._settings.patience_s and write.deadline == inf:
            write.deadline = now + self._settings.patience_s
        self._watch(write)
        if self._in_lanes and not write.maybe:
            self._free(write)
        elif self._ordered:
            self._failed.append(write)
        elif self._in_lanes and became_maybe:
            write.tries = 0
            self._retry_at(write, now)
        else:
            self._retry_at(write, now + self._settings.pauses.after(write.tries - 1, self._random.random()))

    def _ended(self, write: W) -> None:
        write.maybe = False
        if self._in_lanes:
            self._free(write)
        else:
            self._decide(write, Verdict.REFUSED)

    def _free(self, write: W) -> None:
        """The write is in no lane and may be sent to any."""
        write.bound = None
        self._source.put_back([write])

    def _retry_at(self, write: W, due: float) -> None:
        write.due = due
        self._retries[write.number] = write
        self._next_due = min(self._next_due, due)

    def _start_over(self, now: float) -> None:
        failed, self._failed = self._failed, []
        self._source.put_back(failed)
        self._probing = self._aimed = True
        named = self._aim(failed=True)
        self._resume_at = now + self._backoff.next_s(named=named)

    # ------------------------------------------------------------------ verdicts

    def _decide(self, write: W, verdict: Verdict) -> None:
        write.finished = True
        self._decided.append(Decided(write, verdict))

    def _give_up(self, write: W) -> None:
        self._decide(write, Verdict.UNKNOWN if write.maybe else Verdict.REFUSED)

    def _watch(self, write: W) -> None:
        if write.deadline < self._deadline:
            self._deadline = write.deadline

    def _expire(self, now: float, *, waits: bool) -> None:
        for write in self._source.expired(now):
            self._give_up(write)
        if self._deadline > now:
            return
        for write in self._sent():
            if write.deadline <= now and not write.finished and not waits:
                write.maybe = True
                self._give_up(write)
        for write in (*self._failed, *self._retries.values()):
            if write.deadline <= now:
                self._give_up(write)
        self._failed = [write for write in self._failed if not write.finished]
        self._retries = {number: write for number, write in self._retries.items() if not write.finished}
        self._next_due = min((write.due for write in self._retries.values()), default=inf)
        self._deadline = self._first_deadline(waits=waits)

    def _sent(self) -> Iterator[W]:
        return chain(self._in_flight.values(), self._asked.values())

    def _first_deadline(self, *, waits: bool) -> float:
        """The earliest deadline of undecided writes. With `waits`, attempts in flight count only once answered."""
        sent = () if waits else self._sent()
        held = chain(sent, self._failed, self._retries.values())
        first = min((write.deadline for write in held if not write.finished), default=inf)
        return min(first, self._source.first_deadline())
