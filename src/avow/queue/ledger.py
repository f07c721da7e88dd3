"""The ledger: the rules by which committed entries change a two-phase lane, without the positions of its messages.

Every peer applies the same entries in the same order and must compute the same answers, also for entries that cannot be
decoded: a truncated command, a kind of a later version, a known write id. None of these may stop a lane or be applied
in part. So each entry goes through three steps. If its write id is known, the first outcome is the answer and nothing
changes. If its command cannot be decoded, or would change nothing (`early_outcome`), nothing changes. Otherwise the
change is made, and it cannot fail.

The same rules predict the effect of an entry that a coordinator has appended and no quorum has stored yet. A ledger
knows versions but not their positions, so a copy (`fork`) is cheap enough to run ahead of the committed one. `state`
adds the positions, `projection` runs ahead.

A merged entry has small batches of several clients: `writes` lists (write id, offset, count) of each. They cover the
batch from its first message to its last. If one of the ids is known already, only its messages stay hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from avow import limits
from avow.queue.commands import Command, CursorCommand, StageCommand, TransactionCommand, TrimCommand, decode_or_code
from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.subscribers import Subscribers
from avow.queue.transactions import Parts, Transactions
from avow.queue.visible_index import VersionCount
from avow.queue.write_ids import Recent
from avow.wire.messages import Entry, Kind

Writes: TypeAlias = Sequence[tuple[bytes, int, int]]

_DATA: Final = Kind.DATA
_COUNT_MAX: Final = limits.BATCH_COUNT_MAX


class Bounds(Struct, frozen=True, array_like=True, gc=False):
    """Sizes of the lane's windows. They decide outcomes, so all peers use the same ones and snapshots contain them."""

    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    decided_transactions: int = limits.DECIDED_TRANSACTIONS_COUNT
    open_transactions: int = limits.OPEN_TRANSACTIONS_COUNT
    staged_batches: int = limits.STAGED_BATCHES_COUNT
    subscribers: int = limits.SUBSCRIBERS_COUNT


class Ledger:
    """Apply committed entries in the order of their positions; `position` is the last one applied."""

    def __init__(self, versions: VersionCount, *, bounds: Bounds) -> None:
        self.position = 0
        self.refused = 0  # entries whose outcome has a code
        self.bounds = bounds
        self.versions = versions
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
                return known
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
                return self.transactions.stage_outcome(command.txn)
            case TransactionCommand() if kind == Kind.PUBLISH:
                return self.transactions.publish_outcome(command.txn, command.parts)
            case TransactionCommand():
                expired = command.reason == "deadline"
                return self.transactions.discard_outcome(command.txn, expired=expired)
            case CursorCommand():
                return self.subscribers.refusal(command, end=self.end)
            case _:
                return None

    def _perform(self, entry: Entry, command: Command) -> Outcome:
        match command:
            case StageCommand(txn, deadline_ms, part):
                self.transactions.stage(
                    txn, deadline_ms=deadline_ms, position=entry.position, count=entry.count, part=part
                )
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

    def _publish(self, txn: bytes, parts: Parts) -> Outcome:
        versions, first = self.versions, self.end + 1
        transaction = self.transactions.publish(txn, after_version=self.end, parts=parts)
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
        else:
            self._show_unknown(entry, writes)
        return Outcome("", first, self.end)

    def _show_unknown(self, entry: Entry, writes: Writes) -> None:
        """Make everything visible except the messages of writes that are known already."""
        shown_from = 0
        for write_id, offset, count in writes:
            if write_id and self.write_ids.get(write_id) is not None:
                self._show(entry.position, shown_from, offset)
                shown_from = offset + count
                continue
            if write_id:
                version = self.end + offset - shown_from + 1
                self.write_ids.remember(write_id, Outcome("", version, version + count - 1))
        self._show(entry.position, shown_from, entry.count)

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
