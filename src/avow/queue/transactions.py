"""Transactions: staged batches that are durable and invisible until one decision covers all of them.

A writer that fails half-way must leave nothing visible, and a writer that fails right after its decision must be able
to ask for the outcome. So a transaction's batches are ordinary entries, this class remembers their positions, and the
decision (publish or discard) is one entry in the same log. The decision is remembered in a bounded window after the
batches' positions are dropped.

    unknown --stage--> open --publish--> published (first and last version)
       |                 `----discard--> discarded
       `----discard-----------------------^        so that a late stage cannot open it again

A decision is final, and repeating it returns the first outcome. The opposite decision, and a stage after either, is
ALREADY_DECIDED. A publish of an unknown transaction is refused and not remembered. Deadlines are numbers here: a
coordinator checks which have passed and appends a discard, so no clock is part of the state.

Several writers may stage in one transaction, and some of them may be abandoned attempts: each stages under a number of
its own, its *part*. A publish then names the parts that count and the number of messages of each. If a count differs,
the answer is INCOMPLETE and nothing changes; parts that are not named are dropped by the same decision. So a part is
never published incompletely. A transaction with parts that expires, or whose parts are all discarded, is unknown again,
so a crashed job can be repeated under the same name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeAlias

from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.records import Decision
from avow.queue.write_ids import Recent

Parts: TypeAlias = tuple[tuple[int, int], ...]  # (part, how many messages it has)


class OpenTransaction:
    """Positions, message counts and parts of its batches, in the order they were staged."""

    __slots__ = ("counts", "deadline_ms", "messages", "parts", "positions")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.positions = array("q")
        self.counts = array("q")
        self.parts = array("q")
        self.messages = 0

    def add(self, *, position: int, count: int, part: int) -> None:
        self.positions.append(position)
        self.counts.append(count)
        self.parts.append(part)
        self.messages += count

    def copy(self) -> OpenTransaction:
        other = OpenTransaction(self.deadline_ms)
        other.positions, other.counts, other.parts = self.positions[:], self.counts[:], self.parts[:]
        other.messages = self.messages
        return other

    def of_parts(self) -> bool:
        return 0 not in self.parts and bool(self.parts)

    def holds(self, parts: Parts) -> bool:
        """Whether each of these parts is staged with exactly this many messages, and none is named twice."""
        staged: dict[int, int] = {}
        for part, count in zip(self.parts, self.counts, strict=True):
            staged[part] = staged.get(part, 0) + count
        return len(dict(parts)) == len(parts) and all(staged.get(part, 0) == count for part, count in parts)

    def only(self, chosen: Callable[[int], bool]) -> OpenTransaction:
        """A copy with only the batches of the chosen parts, in the same order."""
        left = OpenTransaction(self.deadline_ms)
        for position, count, part in zip(self.positions, self.counts, self.parts, strict=True):
            if chosen(part):
                left.add(position=position, count=count, part=part)
        return left


class Transactions:
    """`opened` keeps the order in which transactions were opened; `decided` that of their decisions."""

    __slots__ = ("batches_max", "decided", "open_max", "opened")

    def __init__(self, *, open_max: int, batches_max: int, decided_max: int) -> None:
        self.open_max = open_max
        self.batches_max = batches_max
        self.opened: dict[bytes, OpenTransaction] = {}
        self.decided: Recent[Decision] = Recent(decided_max)

    # Outcomes of commands that would change nothing; None: the command would change something -------

    def stage_outcome(self, txn: bytes) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            return _against(decision)
        transaction = self.opened.get(txn)
        if transaction is None:
            return Outcome("TOO_MANY") if len(self.opened) >= self.open_max else None
        return Outcome("TOO_MANY") if len(transaction.positions) >= self.batches_max else None

    def publish_outcome(self, txn: bytes, parts: Parts = ()) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            published = decision.fate == "published"
            return Outcome("", decision.first_version, decision.last_version) if published else _against(decision)
        if (transaction := self.opened.get(txn)) is None:
            return Outcome("UNKNOWN_TRANSACTION")
        return Outcome("INCOMPLETE") if parts and not transaction.holds(parts) else None

    def discard_outcome(self, txn: bytes, *, expired: bool = False) -> Outcome | None:
        if (decision := self.decided.get(txn)) is None:
            return DONE if expired and txn not in self.opened else None
        return _against(decision) if decision.fate == "published" else DONE

    # Changes; call each only if its `..._outcome` returned None -------------------------------------

    def stage(self, txn: bytes, *, deadline_ms: int, position: int, count: int, part: int = 0) -> None:
        """A batch without messages opens the transaction and needs no entry of the log."""
        transaction = self.opened.get(txn)
        if transaction is None:
            transaction = self.opened[txn] = OpenTransaction(deadline_ms)
        transaction.deadline_ms = max(transaction.deadline_ms, deadline_ms)
        if count:
            transaction.add(position=position, count=count, part=part)

    def publish(self, txn: bytes, *, after_version: int, parts: Parts = ()) -> OpenTransaction:
        """Close it as published after `after_version`; the caller makes the returned batches visible."""
        transaction = self.opened.pop(txn)
        if parts:
            transaction = transaction.only(dict(parts).__contains__)
        self.decided.remember(txn, Decision("published", after_version + 1, after_version + transaction.messages))
        return transaction

    def discard(self, txn: bytes, *, expired: bool) -> None:
        transaction = self.opened.pop(txn, None)
        if expired and transaction is not None and transaction.of_parts():
            return
        self.decided.remember(txn, Decision("expired" if expired else "discarded"))

    def discard_parts(self, txn: bytes, parts: Parts) -> None:
        """Drop these parts without a decision: the name can be used again, and other parts stay."""
        transaction, dropped = self.opened.get(txn), dict(parts)
        if transaction is None:
            return
        left = transaction.only(lambda part: part not in dropped)
        if left.positions:
            self.opened[txn] = left
        else:
            del self.opened[txn]

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
