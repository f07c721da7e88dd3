"""The ledger: the rules by which committed entries change a two-phase lane, without the positions of its messages.

Every peer applies the same entries in the same order and must compute the same answers, also for entries that cannot be
decoded: a truncated command, a kind of a later version, a known write id. None of these may stop a lane or be applied
in part. So each entry goes through three steps. If its write id is known, nothing changes: the answer is the first
outcome, or CONTENT_DIFFERS if the id was used for something else (`entry_outcome.repeated`). If its command cannot be
decoded, or would change nothing (`early_outcome`), nothing changes. Otherwise the change is made, and it cannot fail.

The same rules predict the effect of an entry that a coordinator has appended and no quorum has stored yet. A ledger
knows versions but not their positions, so a copy (`fork`) is cheap enough to run ahead of the committed one, as
`Projection` does. `state` adds the positions.

A merged entry has small batches of several clients: `writes` lists (write id, offset, count) of each. They cover the
batch from its first message to its last. If one of the ids is known already, only its messages stay hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from avow import limits
from avow.queue.commands import (
    BoundStageCommand,
    Command,
    CursorCommand,
    DecisionCommand,
    StageCommand,
    TransactionCommand,
    TrimCommand,
    decode_or_code,
)
from avow.queue.entry_outcome import DONE, EarlyRefusal, Known, Outcome, repeated
from avow.queue.records import Bounds
from avow.queue.subscribers import Subscribers
from avow.queue.transactions import OpenTransaction, Parts, Transactions
from avow.queue.write_ids import Recent
from avow.wire.messages import Entry, Kind

Writes: TypeAlias = Sequence[tuple[bytes, int, int]]

NO_CONDITION: Final = -1  # `expected` of a write that does not compare

_DATA: Final = Kind.DATA
_COUNT_MAX: Final = limits.BATCH_COUNT_MAX
_WITHOUT_COMMAND: Final = frozenset({Kind.NOOP, Kind.DATA})


class Versions(Protocol):
    """The visible versions, `trimmed_to` + 1 to `end`: a `VersionCount`, or a `VisibleIndex`, which finds them."""

    end: int
    trimmed_to: int

    def append(self, position: int, offset: int, count: int) -> None:
        """`count` messages become the versions after `end`."""

    def trim(self, upto: int) -> None:
        """Remove versions up to and including `upto`."""


class VersionCount:
    """Counts versions without positions: enough to predict which versions an entry will get."""

    __slots__ = ("end", "trimmed_to")

    def __init__(self, *, end: int, trimmed_to: int) -> None:
        self.end, self.trimmed_to = end, trimmed_to

    def append(self, position: int, offset: int, count: int) -> None:  # noqa: ARG002
        self.end += count

    def trim(self, upto: int) -> None:
        self.trimmed_to = upto


class Ledger:
    """Apply committed entries in the order of their positions; `position` is the last one applied."""

    def __init__(self, versions: Versions, *, bounds: Bounds) -> None:
        self.position = 0
        self.refused = 0  # entries whose outcome has a code
        self.bounds = bounds
        self.versions: Versions = versions
        self.write_ids: Recent[Outcome] = Recent(bounds.write_ids)
        self.subscribers = Subscribers(bounds.subscribers)
        self.transactions = Transactions(
            open_max=bounds.open_transactions,
            batches_max=bounds.staged_batches,
            decided_max=bounds.decided_transactions,
        )

    @property
    def end(self) -> int:
        """The last visible version; 0 before the first."""
        return self.versions.end

    @property
    def trimmed_to(self) -> int:
        """Versions up to this one can no longer be read."""
        return self.versions.trimmed_to

    def apply(self, entry: Entry, writes: Writes = ()) -> Outcome:
        """Apply an entry; returns its outcome. With `writes`: `outcome_of` returns the outcome of each write."""
        position = entry.position
        assert position == self.position + 1, f"entry {position} cannot follow {self.position}"
        self.position = position
        if writes:
            return self._apply_merged(entry, writes)
        write_id = entry.write_id
        if write_id:
            known = self.write_ids.get(write_id)
            if known is not None:
                return repeated(entry.kind, known)
        if entry.kind == _DATA and 0 < (count := entry.count) <= _COUNT_MAX:  # the hot path
            versions = self.versions
            first = versions.end + 1
            versions.append(position, 0, count)
            outcome = Outcome("", first, versions.end)
        else:
            outcome = self._apply_other(entry)
            if outcome.code:
                self.refused += 1
        if write_id:
            self.write_ids.remember(write_id, outcome)
        return outcome

    def outcome_of(self, write_id: bytes) -> Outcome | None:
        """The outcome of a write, if it is remembered."""
        return self.write_ids.get(write_id)

    def early_outcome(self, kind: int, control: bytes) -> Outcome | None:
        """The outcome of a command that would change nothing; None: it would change something."""
        command = decode_or_code(kind, control)
        return Outcome(command) if isinstance(command, str) else self._early_outcome(kind, command)

    def fork(self) -> Ledger:
        """A copy that can run ahead. Outcomes and names are shared; the positions of messages are left out."""
        other = Ledger(VersionCount(end=self.end, trimmed_to=self.trimmed_to), bounds=self.bounds)
        other.position, other.refused = self.position, self.refused
        other.write_ids = self.write_ids.copy()
        other.subscribers = self.subscribers.copy()
        other.transactions = self.transactions.copy()
        return other

    def _apply_other(self, entry: Entry) -> Outcome:
        kind = entry.kind
        if kind == Kind.NOOP:
            return DONE
        if not 0 <= entry.count <= _COUNT_MAX:
            return Outcome("COUNT_OVERFLOW")
        if kind == _DATA:
            return Outcome("", self.end + 1, self.end)  # a batch without messages
        command = decode_or_code(kind, entry.control)
        if isinstance(command, str):
            return Outcome(command)
        outcome = self._early_outcome(kind, command)
        return self._perform(entry, command) if outcome is None else outcome

    def _early_outcome(self, kind: int, command: Command) -> Outcome | None:
        match command:
            case StageCommand():
                return self.transactions.stage_outcome(command.txn, part=command.part)
            case DecisionCommand() if kind == Kind.PUBLISH:
                return self.transactions.step_outcome(command)
            case DecisionCommand():
                return self.transactions.follow_discard_outcome(command)
            case TransactionCommand() if kind == Kind.PUBLISH:
                return self.transactions.publish_outcome(command.txn, command.parts)
            case TransactionCommand():
                expired = command.reason == "deadline"
                return self.transactions.discard_outcome(command.txn, expired=expired, parts=command.parts)
            case CursorCommand():
                return self.subscribers.refusal(command, end=self.end)
            case _:
                return None

    def _perform(self, entry: Entry, command: Command) -> Outcome:
        match command:
            case StageCommand(txn, deadline_ms, part):
                home = command.home if isinstance(command, BoundStageCommand) else 0
                self.transactions.stage(
                    txn, deadline_ms=deadline_ms, position=entry.position, count=entry.count, part=part, home=home
                )
            case DecisionCommand() if entry.kind == Kind.PUBLISH:
                return self._take_step(command, entry.position)
            case DecisionCommand(txn, reason):
                self.transactions.discard(txn, expired=reason == "deadline")
            case TransactionCommand(txn, _, parts) if entry.kind == Kind.PUBLISH:
                return self._publish(txn, parts)
            case TransactionCommand(txn, _, parts) if parts:
                self.transactions.discard_parts(txn, parts)
            case TransactionCommand(txn, reason):
                self.transactions.discard(txn, expired=reason == "deadline")
            case CursorCommand():
                return self.subscribers.perform(command)
            case TrimCommand(upto_version):
                return self._trim(upto_version)
        return DONE  # also for MEMBERS, on which the replication core acts by itself

    def _take_step(self, command: DecisionCommand, position: int) -> Outcome:
        transactions, txn = self.transactions, command.txn
        match command.step:
            case "prepare":
                transactions.prepare(txn, position=position, parts=command.parts)
                return Outcome("", 0, position)
            case "follow":
                held = transactions.follow(txn, prepared_at=command.at, after_version=self.end)
                return self._show_batches(held)
            case "close":
                del transactions.following[txn]
                return DONE
        if command.lanes:
            transactions.following[txn] = command.lanes
        return self._publish(txn, command.parts)

    def _publish(self, txn: bytes, parts: Parts) -> Outcome:
        return self._show_batches(self.transactions.publish(txn, after_version=self.end, parts=parts))

    def _show_batches(self, transaction: OpenTransaction) -> Outcome:
        versions, first = self.versions, self.end + 1
        for position, count in zip(transaction.positions, transaction.counts, strict=True):
            versions.append(position, 0, count)
        return Outcome("", first, versions.end)

    def trim_limit(self, upto: int) -> int:
        """How far a trim to `upto` may go: never beyond the end or a hold, and never back."""
        held = self.subscribers.held_at()
        allowed = min(upto, self.end if held is None else min(self.end, held))
        return max(self.trimmed_to, allowed)

    def _trim(self, upto: int) -> Outcome:
        before, target = self.trimmed_to, self.trim_limit(upto)
        self.versions.trim(target)
        return Outcome("", before + 1, target)

    def _apply_merged(self, entry: Entry, writes: Writes) -> Outcome:
        if entry.kind != _DATA or not _covers(entry.count, writes):
            self.refused += 1
            return Outcome("MALFORMED")
        first = self.end + 1
        ids = [write[0] for write in writes]
        if self.write_ids.all_new(ids):  # the hot path
            self._show(entry.position, 0, entry.count)
            self.write_ids.remember_all(
                ids, [Outcome("", first + offset, first + offset + count - 1) for _, offset, count in writes]
            )
        elif (differs := self._show_unknown(entry, writes)) is not None:
            return differs
        return Outcome("", first, self.end)

    def _show_unknown(self, entry: Entry, writes: Writes) -> Outcome | None:
        """Make everything visible except the messages of writes that are known already.

        Returns CONTENT_DIFFERS if one of those ids was used for something else: who merged the writes elsewhere gets
        one answer for all of them.
        """
        shown_from, differs = 0, None
        for write_id, offset, count in writes:
            known = self.write_ids.get(write_id) if write_id else None
            if known is not None:
                differs = differs or (None if (answer := repeated(_DATA, known)) is known else answer)
                self._show(entry.position, shown_from, offset)
                shown_from = offset + count
                continue
            if write_id:
                version = self.end + offset - shown_from + 1
                self.write_ids.remember(write_id, Outcome("", version, version + count - 1))
        self._show(entry.position, shown_from, entry.count)
        return differs

    def _show(self, position: int, start: int, stop: int) -> None:
        """Messages `start` to `stop` of a batch become visible as one row."""
        if stop > start:
            self.versions.append(position, start, stop - start)


def _covers(count: int, writes: Writes) -> bool:
    """Whether the writes cover the batch without gaps, from its first message to its last."""
    following = 0
    for _, offset, length in writes:
        if offset != following or length < 0:
            return False
        following += length
    return following == count <= _COUNT_MAX


# ---------------------------------------------------------------- running ahead


def no_writes(entry: Entry) -> Writes:  # noqa: ARG001
    """For lanes whose entries are never merged."""
    return ()


class Projection:
    """The lane as it will be when everything its coordinator has appended is committed. Call `appended` for each such
    entry, in order; what was applied is read from the committed state.

    A coordinator answers some writes without appending anything: the write id is known, or the lane does not end at the
    expected version. It may have hundreds of entries in flight, and "where the lane ends" must count them, or two
    writes that expect the same end would both be accepted. The committed state must not contain them yet.

    A separate implementation of the rules for entries in flight would have to repeat every limit and every refusal, and
    each difference would show as a wrong NOT_EQUAL. So a fork of the ledger applies the entries in flight with the same
    rules. The cost is a second application of each entry on the coordinator, and a copy of the windows at a take-over.
    A take-over calls `rebuild`, because the entries after the committed ones may differ from before.

    NOT_EQUAL is answered from the entries in flight, because appending would violate the condition. Anything else is
    refused only if the committed state already says so: entries in flight may be lost, and then a refusal that depends
    on them would have been wrong. In doubt an entry is appended and the answer is its outcome.

    A refusal depends on the log of this peer. A coordinator that may have been deposed confirms its ballot first.
    """

    def __init__(self, state: Ledger) -> None:
        self._state = state
        self._ahead: Ledger = state.fork()
        self._in_flight: dict[bytes, int] = {}
        self._order: deque[tuple[int, list[bytes]]] = deque()  # (position, write ids first appended there)

    @property
    def end(self) -> int:
        return self._ahead.end

    @property
    def position(self) -> int:
        """The last appended entry."""
        return self._ahead.position

    def appended(self, entry: Entry, writes: Writes = ()) -> None:
        self._forget_committed()
        self._ahead.apply(entry, writes)
        in_flight, position = self._in_flight, entry.position
        ids = [write[0] for write in writes] if writes else [entry.write_id]
        fresh = [write_id for write_id in ids if write_id and write_id not in in_flight]
        if fresh:
            in_flight.update(dict.fromkeys(fresh, position))
            self._order.append((position, fresh))

    def rebuild(self, entries: Iterable[Entry], writes_of: Callable[[Entry], Writes] = no_writes) -> None:
        """Start again from the committed state with the entries that follow it in the log now."""
        self._ahead = self._state.fork()
        self._in_flight.clear()
        self._order.clear()
        for entry in entries:
            self.appended(entry, writes_of(entry))

    def outcome_of(self, write_id: bytes) -> Outcome | int | None:
        """The outcome of a known write, the position of one in flight, or None: never seen, or forgotten."""
        known = self._state.outcome_of(write_id)
        if known is not None:
            return known
        position = self._in_flight.get(write_id, 0)
        return position if position > self._state.position else None

    def outcome_ahead(self, write_id: bytes) -> Outcome | None:
        """The outcome that a write has or will have, if everything in flight is committed."""
        return self._ahead.outcome_of(write_id)

    def check(
        self, kind: int, *, write_id: bytes = b"", expected: int = NO_CONDITION, control: bytes = b""
    ) -> Known | EarlyRefusal | None:
        """None: append it. Otherwise the answer; the module's docstring says what is refused here."""
        found = self.outcome_of(write_id) if write_id else None
        if isinstance(found, Outcome):
            return Known(outcome=repeated(kind, found))
        if found is not None:
            ahead = self.outcome_ahead(write_id)
            answer = ahead and repeated(kind, ahead)
            return Known(position=found) if answer is ahead else Known(outcome=answer)  # confirmed like any refusal
        if expected not in (NO_CONDITION, self.end):
            return EarlyRefusal("NOT_EQUAL", last_version=self.end)
        return None if kind in _WITHOUT_COMMAND else self._check_command(kind, control)

    def _check_command(self, kind: int, control: bytes) -> Known | EarlyRefusal | None:
        outcome = self._state.early_outcome(kind, control)
        if outcome is None or outcome != self._ahead.early_outcome(kind, control):
            return None
        if outcome.code:
            return EarlyRefusal(outcome.code, outcome.first_version, outcome.last_version)
        return Known(outcome=outcome)

    def _forget_committed(self) -> None:
        """Forget the ids of applied entries: the state knows them now."""
        committed, order = self._state.position, self._order
        while order and order[0][0] <= committed:
            for write_id in order.popleft()[1]:
                self._in_flight.pop(write_id, None)  # None: one entry may name it twice
