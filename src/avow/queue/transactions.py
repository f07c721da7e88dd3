"""Staged writes: batches that are durable and invisible until one decision covers them all.

A writer that fails half-way must leave nothing behind, and a writer that fails right after its decision must be able to
ask what it was. So a transaction's batches are entries like any other, this class only remembers where they lie, and
the decision (publish or discard) is one entry in the same log. It is remembered in a bounded window after the
batches' places are dropped.

    unknown --stage--> open --publish--> published (first and last version)
       |                 `----discard--> discarded
       `----discard-----------------------^        so that a stage that comes late cannot open it again

A decision once taken stays, and the same decision again is answered like the first time. The other one, and a stage
after either, is ALREADY_DECIDED. A publish of an unknown transaction is refused and not remembered. Deadlines are
numbers here: a coordinator asks which have passed and logs a discard, so no peer's clock takes part in the state.
"""

from __future__ import annotations

from array import array
from typing import Literal, TypeAlias

from msgspec import Struct

from avow.queue.outcomes import DONE, Outcome
from avow.queue.write_ids import Recent

Fate: TypeAlias = Literal["published", "discarded", "expired"]


class Decision(Struct, frozen=True, array_like=True, gc=False):
    """The versions are 0 unless published; a published transaction without messages has last = first - 1."""

    fate: Fate
    first_version: int = 0
    last_version: int = 0


class OpenTransaction:
    """Where its batches lie: positions and counts, in the order they were staged."""

    __slots__ = ("counts", "deadline_ms", "messages", "positions")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.positions = array("q")
        self.counts = array("q")
        self.messages = 0

    def add(self, *, position: int, count: int) -> None:
        self.positions.append(position)
        self.counts.append(count)
        self.messages += count

    def copy(self) -> OpenTransaction:
        other = OpenTransaction(self.deadline_ms)
        other.positions, other.counts, other.messages = self.positions[:], self.counts[:], self.messages
        return other


class Transactions:
    """`opened` keeps the order in which transactions were opened; `decided` that of their decisions."""

    __slots__ = ("batches_max", "decided", "open_max", "opened")

    def __init__(self, *, open_max: int, batches_max: int, decided_max: int) -> None:
        self.open_max = open_max
        self.batches_max = batches_max
        self.opened: dict[bytes, OpenTransaction] = {}
        self.decided: Recent[Decision] = Recent(decided_max)

    # What is already settled, None if the command would change something ----------------------------

    def settled_stage(self, txn: bytes) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            return _against(decision)
        transaction = self.opened.get(txn)
        if transaction is None:
            return Outcome("TOO_MANY") if len(self.opened) >= self.open_max else None
        return Outcome("TOO_MANY") if len(transaction.positions) >= self.batches_max else None

    def settled_publish(self, txn: bytes) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            published = decision.fate == "published"
            return Outcome("", decision.first_version, decision.last_version) if published else _against(decision)
        return None if txn in self.opened else Outcome("UNKNOWN_TRANSACTION")

    def settled_discard(self, txn: bytes) -> Outcome | None:
        if (decision := self.decided.get(txn)) is None:
            return None
        return _against(decision) if decision.fate == "published" else DONE

    # Changes; each after its `settled_` gave None ---------------------------------------------------

    def stage(self, txn: bytes, *, deadline_ms: int, position: int, count: int) -> None:
        """A batch without messages opens the transaction and holds nothing of the log."""
        transaction = self.opened.get(txn)
        if transaction is None:
            transaction = self.opened[txn] = OpenTransaction(deadline_ms)
        transaction.deadline_ms = max(transaction.deadline_ms, deadline_ms)
        if count:
            transaction.add(position=position, count=count)

    def publish(self, txn: bytes, *, after_version: int) -> OpenTransaction:
        """Close it as published at the versions after `after_version`; the caller shows its batches."""
        transaction = self.opened.pop(txn)
        self.decided.remember(txn, Decision("published", after_version + 1, after_version + transaction.messages))
        return transaction

    def discard(self, txn: bytes, *, expired: bool) -> None:
        self.opened.pop(txn, None)
        self.decided.remember(txn, Decision("expired" if expired else "discarded"))

    # Questions --------------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> list[bytes]:
        """Open transactions whose deadline has passed, in the order they were opened."""
        return [txn for txn, transaction in self.opened.items() if transaction.deadline_ms <= now_ms]

    def lowest_position(self) -> int | None:
        """The earliest staged batch that may still be published. Positions ascend within a transaction."""
        return min((t.positions[0] for t in self.opened.values() if t.positions), default=None)

    def copy(self) -> Transactions:
        other = Transactions(open_max=self.open_max, batches_max=self.batches_max, decided_max=self.decided.size)
        other.opened = {txn: transaction.copy() for txn, transaction in self.opened.items()}
        other.decided = self.decided.copy()
        return other


def _against(decision: Decision) -> Outcome:
    return Outcome("ALREADY_DECIDED", decision.first_version, decision.last_version)
