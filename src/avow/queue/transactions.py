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

A transaction of a queue with several lanes is *bound*: its name chooses a home lane, which alone decides and alone
expires. The other lanes with batches of it are its followers (decision 0027):

    home lane    open ---decide(followers)---> published, followers listed ---close---> published
                   `-----discard, deadline---> discarded (with parts, at the deadline: unknown)
    follower     open ---prepare---> prepared ---follow---> published
                   `--------------------`------follow------> discarded (or unknown, as in the home lane)

A follower never ends a bound transaction by itself. What it has prepared it can publish: it drops no part of it, and
takes no batch without a part after it. The home lane lists its followers until all of them have published.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeAlias

from avow.limits import PREPARES_COUNT
from avow.queue.commands import DecisionCommand
from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.records import Decision
from avow.queue.write_ids import Recent

Parts: TypeAlias = tuple[tuple[int, int], ...]  # (part, how many messages it has)
Followers: TypeAlias = tuple[tuple[int, int], ...]  # (lane, position of its prepare)


class OpenTransaction:
    """Positions, message counts and parts of its batches, in the order they were staged.

    Of a bound one (`home` is not 0): where it was opened and last changed, whether it has parts, and what was prepared,
    by position."""

    __slots__ = (
        *("counts", "deadline_ms", "messages", "parts", "positions"),
        *("changed_at", "home", "opened_at", "parted", "prepared"),
    )

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.home = self.opened_at = self.changed_at = 0
        self.parted = False
        self.prepared: dict[int, Parts] = {}
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
        other = self._empty()
        other.positions, other.counts, other.parts = self.positions[:], self.counts[:], self.parts[:]
        other.messages = self.messages
        return other

    def _empty(self) -> OpenTransaction:
        """The same without batches."""
        other = OpenTransaction(self.deadline_ms)
        other.home, other.opened_at, other.changed_at = self.home, self.opened_at, self.changed_at
        other.parted, other.prepared = self.parted, dict(self.prepared)
        return other

    @property
    def began_at(self) -> int:
        """A position that no earlier transaction of this name has."""
        return self.opened_at or (self.positions[0] if self.positions else 0)

    def of_parts(self) -> bool:
        return 0 not in self.parts and (bool(self.parts) or self.parted)

    def has_parts(self, parts: Parts) -> bool:
        """Whether a prepare holds one of these parts."""
        held = {part for prepared in self.prepared.values() for part, _ in prepared}
        return any(part in held for part, _ in parts)

    def prepared_at(self, parts: Parts) -> int:
        """The position of a prepare of the same; 0: none since the last batch."""
        last = self.positions[-1] if self.positions else 0
        return next((at for at, held in self.prepared.items() if held == parts and at > last), 0)

    def batches_of(self, prepared_at: int) -> OpenTransaction:
        """The batches that a prepare holds."""
        parts, held = dict(self.prepared[prepared_at]), self._empty()
        for position, count, part in zip(self.positions, self.counts, self.parts, strict=True):
            if position < prepared_at and (not parts or part in parts):
                held.add(position=position, count=count, part=part)
        return held

    def holds(self, parts: Parts) -> bool:
        """Whether each of these parts is staged with exactly this many messages, and none is named twice."""
        staged = self.count_parts()
        return len(dict(parts)) == len(parts) and all(staged.get(part, 0) == count for part, count in parts)

    def count_parts(self) -> dict[int, int]:
        """The messages of each part."""
        staged: dict[int, int] = {}
        for part, count in zip(self.parts, self.counts, strict=True):
            staged[part] = staged.get(part, 0) + count
        return staged

    def only(self, chosen: Callable[[int], bool]) -> OpenTransaction:
        """A copy with only the batches of the chosen parts, in the same order."""
        left = self._empty()
        for position, count, part in zip(self.positions, self.counts, self.parts, strict=True):
            if chosen(part):
                left.add(position=position, count=count, part=part)
        return left


class Transactions:
    """`opened` keeps the order in which transactions were opened; `decided` that of their decisions. `following`: the
    followers of those published here, as long as one of them may not have followed."""

    __slots__ = ("batches_max", "decided", "following", "open_max", "opened")

    def __init__(self, *, open_max: int, batches_max: int, decided_max: int) -> None:
        self.open_max = open_max
        self.batches_max = batches_max
        self.opened: dict[bytes, OpenTransaction] = {}
        self.decided: Recent[Decision] = Recent(decided_max)
        self.following: dict[bytes, Followers] = {}

    # Outcomes of commands that would change nothing; None: the command would change something -------

    def stage_outcome(self, txn: bytes, *, part: int = 0) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            return _against(decision)
        if txn in self.following:  # published, and so long ago that the decision was forgotten
            return Outcome("ALREADY_DECIDED")
        transaction = self.opened.get(txn)
        if transaction is None:
            return Outcome("TOO_MANY") if len(self.opened) >= self.open_max else None
        if transaction.prepared and not part:
            return Outcome("ALREADY_DECIDED")  # or about to be
        return Outcome("TOO_MANY") if len(transaction.positions) >= self.batches_max else None

    def publish_outcome(self, txn: bytes, parts: Parts = ()) -> Outcome | None:
        if (decision := self.decided.get(txn)) is not None:
            published = decision.fate == "published"
            return Outcome("", decision.first_version, decision.last_version) if published else _against(decision)
        if (transaction := self.opened.get(txn)) is None:
            return Outcome("UNKNOWN_TRANSACTION")
        return Outcome("INCOMPLETE") if parts and not transaction.holds(parts) else None

    def step_outcome(self, command: DecisionCommand) -> Outcome | None:
        """Of a PUBLISH in steps."""
        txn, transaction = command.txn, self.opened.get(command.txn)
        if command.step == "close":
            return None if txn in self.following else DONE
        decision = self.decided.get(txn)
        if command.step == "prepare" and decision is not None:
            return _against(decision)
        if decision is not None or transaction is None:
            return self.publish_outcome(txn)
        if command.step == "follow":
            return None if command.at in transaction.prepared else Outcome("UNKNOWN_TRANSACTION")
        if command.parts and not transaction.holds(command.parts):
            return Outcome("INCOMPLETE")
        if command.step == "prepare":
            known = transaction.prepared_at(command.parts)
            too_many = len(transaction.prepared) >= PREPARES_COUNT
            return Outcome("", 0, known) if known else Outcome("TOO_MANY") if too_many else None
        if command.at != transaction.opened_at:
            return Outcome("UNKNOWN_TRANSACTION")
        return Outcome("TOO_MANY") if len(self.following) >= self.open_max else None

    def follow_discard_outcome(self, command: DecisionCommand) -> Outcome | None:
        transaction = self.opened.get(command.txn)
        return DONE if transaction is None or transaction.changed_at != command.at else None

    def discard_outcome(self, txn: bytes, *, expired: bool = False, parts: Parts = ()) -> Outcome | None:
        if parts and (transaction := self.opened.get(txn)) is not None and transaction.has_parts(parts):
            return Outcome("ALREADY_DECIDED")  # or about to be
        if (decision := self.decided.get(txn)) is None:
            if txn in self.following:
                return Outcome("ALREADY_DECIDED")
            return DONE if expired and txn not in self.opened else None
        return _against(decision) if decision.fate == "published" else DONE

    # Changes; call each only if its `..._outcome` returned None -------------------------------------

    def stage(self, txn: bytes, *, deadline_ms: int, position: int, count: int, part: int = 0, home: int = 0) -> None:
        """A batch without messages opens the transaction and needs no entry of the log."""
        transaction = self.opened.get(txn)
        if transaction is None:
            transaction = self.opened[txn] = OpenTransaction(deadline_ms)
            transaction.opened_at = position if home else 0
        if home:
            transaction.home, transaction.changed_at = home, position
            transaction.parted = transaction.parted or part > 0
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

    def prepare(self, txn: bytes, *, position: int, parts: Parts) -> None:
        transaction = self.opened[txn]
        transaction.prepared[position] = parts
        transaction.changed_at = position

    def follow(self, txn: bytes, *, prepared_at: int, after_version: int) -> OpenTransaction:
        """Close it as published, with what was prepared; the caller makes the returned batches visible."""
        held = self.opened.pop(txn).batches_of(prepared_at)
        self.decided.remember(txn, Decision("published", after_version + 1, after_version + held.messages))
        return held

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
        if left.positions or transaction.home:  # a bound one ends with the decision of its home lane
            self.opened[txn] = left
        else:
            del self.opened[txn]

    # Questions --------------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> list[bytes]:
        """Open transactions whose deadline has passed, in the order they were opened."""
        return [txn for txn, transaction in self.opened.items() if transaction.deadline_ms <= now_ms]

    def followers(self, lane: int) -> dict[bytes, OpenTransaction]:
        """The open transactions that another lane than this one decides."""
        return {txn: found for txn, found in self.opened.items() if found.home not in (0, lane)}

    def lowest_position(self) -> int | None:
        """The earliest staged batch that may still be published. Positions ascend within a transaction."""
        return min((t.positions[0] for t in self.opened.values() if t.positions), default=None)

    def copy(self) -> Transactions:
        other = Transactions(open_max=self.open_max, batches_max=self.batches_max, decided_max=self.decided.size)
        other.opened = {txn: transaction.copy() for txn, transaction in self.opened.items()}
        other.decided = self.decided.copy()
        other.following = dict(self.following)
        return other


def _against(decision: Decision) -> Outcome:
    return Outcome("ALREADY_DECIDED", decision.first_version, decision.last_version)
