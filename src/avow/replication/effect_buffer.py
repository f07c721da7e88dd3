"""The effect buffer enforces rule R0: a message that depends on a write is sent only after that write is synced.

Between two drains a core adds effects in any order. The buffer decides when each message leaves:

    send            with the next drain: it does not depend on anything that is not yet durable
    persist         written with the next drain, in this order; one sync covers the record (and others that share it)
    send_synced     once everything persisted before it is synced; at once if it is already
    after_sync      a function that is called at the same time

A drained record that persists something is *outstanding* until its `Synced` comes back. Records become durable in the
order in which they were drained, so `persisted` takes the proof of the oldest. The caller that performs effects has
three duties: send what is drained, write what is drained, and pass on the receipt of each write. It never sees a
message that must not leave yet, and needs no sequence numbers.

A synced send whose own drain persists nothing waits for the youngest outstanding record, which may contain what it
depends on. Each record has a mark that says what its sync makes durable: the state of the log when it was drained, not
when the sync is reported. A cut after which a mark would claim too much corrects it (`revise`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from avow.replication.durable import Synced
from avow.replication.effects import Effects, Persist
from avow.wire.messages import Message

M = TypeVar("M")


class Outstanding(Generic[M]):
    """A drained record that is not synced yet."""

    __slots__ = ("after", "mark", "sends")

    def __init__(self, mark: M, sends: list[tuple[int, Message]], after: list[Callable[[], None]]) -> None:
        self.mark, self.sends, self.after = mark, sends, after


class EffectBuffer(Generic[M]):
    __slots__ = ("_after", "_outstanding", "_persist", "_sends", "drains", "waiting")

    def __init__(self) -> None:
        self._sends: list[tuple[int, Message]] = []
        self._persist: list[Persist] = []
        self._after: list[Callable[[], None]] = []
        self._outstanding: deque[Outstanding[M]] = deque()
        self.waiting: list[tuple[int, Message]] = []  # sends since the last drain that depend on a sync
        self.drains = 0  # number of drains so far

    # ------------------------------------------------------------------ effects of the core

    def send(self, peer: int, message: Message) -> None:
        self._sends.append((peer, message))

    def send_all(self, peers: Iterable[int], message: Message) -> None:
        sends = self._sends
        for peer in peers:
            sends.append((peer, message))

    def send_synced(self, peer: int, message: Message) -> None:
        self.waiting.append((peer, message))

    def persist(self, operation: Persist) -> None:
        self._persist.append(operation)

    def after_sync(self, call: Callable[[], None]) -> None:
        """Call this once everything persisted so far is durable. For rare events: it costs a closure."""
        self._after.append(call)

    # ------------------------------------------------------------------ drained and synced

    def drain(self, mark: M) -> Effects | None:
        """The effects since the last call, or None. `mark`: what their sync will make durable."""
        while self._after and not self._persist and not self._outstanding:
            self._call_now()
        if self.waiting or self._after:
            self._place_waiting(mark)
        elif self._persist:
            self._outstanding.append(Outstanding(mark, [], []))
        elif not self._sends:
            return None
        self.drains += 1
        effects = Effects(self._sends, self._persist)
        self._sends, self._persist = [], []
        return effects if effects.sends or effects.persist else None

    def _call_now(self) -> None:
        """Everything is synced already. What a call persists joins the record that is being drained."""
        after, self._after = self._after, []
        for call in after:
            call()

    def _place_waiting(self, mark: M) -> None:
        """Attach waiting sends and calls to the record they depend on; without one, send at once."""
        waiting, self.waiting = self.waiting, []
        after, self._after = self._after, []
        if self._persist:
            self._outstanding.append(Outstanding(mark, waiting, after))
        elif self._outstanding:
            youngest = self._outstanding[-1]
            youngest.sends += waiting
            youngest.after += after
        else:
            self._sends += waiting

    def persisted(self, proof: Synced) -> M:  # noqa: ARG002 its existence is the proof
        """The oldest outstanding record is synced: its sends leave with the next drain. Returns its mark."""
        record = self._outstanding.popleft()
        self._sends += record.sends
        for call in record.after:
            call()
        return record.mark

    def revise(self, change: Callable[[M], M]) -> None:
        """Correct the marks of outstanding records."""
        for record in self._outstanding:
            record.mark = change(record.mark)

    @property
    def outstanding(self) -> int:
        """Number of drained records that are not synced yet."""
        return len(self._outstanding)

    @property
    def all_synced(self) -> bool:
        """Whether nothing is outstanding and nothing waits to be drained."""
        return not self._persist and not self._outstanding
