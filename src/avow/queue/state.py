"""The state of a two-phase lane: the ledger's rules, and the position of each visible message.

A queue's lane is a log of batches and commands that a quorum agreed on. Its state (the visible messages and their
versions, the known write ids, the open transactions, the cursors, what was removed) is computed from that log alone, by
every peer for itself. No clock and no randomness are involved, so equal logs give states whose snapshots are equal bit
for bit, and a peer may continue from another peer's snapshot.

A snapshot is the whole state: restoring it and applying the entries after it is the same as applying all entries. The
window sizes are part of it, because they decide which retries are still recognised.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import astuple

from avow.errors import Malformed, NotEqual
from avow.queue.ledger import NO_CONDITION, Ledger
from avow.queue.records import (
    BoundLaneSnapshot,
    Bounds,
    BoundTransactionRecord,
    LaneSnapshot,
    OpenTransactionRecord,
    QueueStatistics,
    VisibleRange,
)
from avow.queue.snapshots import column_bytes, column_from, seal, unseal
from avow.queue.transactions import OpenTransaction, Transactions
from avow.queue.visible_index import VisibleIndex
from avow.queue.write_ids import Recent

MAGIC: Final = b"AVQS"
LAYOUT_VERSION: Final = 1


_encoder: Final = Encoder()
_decoder: Final = Decoder(BoundLaneSnapshot)


class QueueState(Ledger):
    """See `Ledger.apply`. The methods here read, except `restore`."""

    def __init__(self, *, bounds: Bounds | None = None) -> None:
        self.visible = VisibleIndex()
        super().__init__(self.visible, bounds=bounds or Bounds())

    def check_expected(self, expected: int) -> None:
        """Raise NotEqual unless the lane ends at `expected` (or there is no condition)."""
        if expected not in (NO_CONDITION, self.end):
            raise NotEqual(expected=expected, current=self.end)

    def locate(self, version: int) -> tuple[int, int]:
        """(position, offset in that batch) of a visible version. Raises Trimmed or InvalidRequest."""
        return self.visible.locate(version)

    def ranges(self, after_version: int, max_count: int) -> Iterator[VisibleRange]:
        """The next messages for a reader at this cursor, in the order of versions. See `VisibleIndex.ranges`."""
        return self.visible.ranges(after_version, max_count)

    def expired(self, now_ms: int) -> list[bytes]:
        """Transactions past their deadline: the coordinator appends a DISCARD for each."""
        return self.transactions.expired(now_ms)

    def log_needed_from(self) -> int:
        """The first position whose entry may still be read: for a visible message or for an open transaction.

        Together with a snapshot at or after `position` nothing before it is needed.
        """
        lowest = (self.visible.lowest_position(), self.transactions.lowest_position())
        return min((position for position in lowest if position is not None), default=self.position + 1)

    def statistics(self) -> QueueStatistics:
        index = self.visible
        return QueueStatistics(
            position=self.position,
            end=self.end,
            trimmed_to=self.trimmed_to,
            visible_batches=len(index.rows),
            index_size_bytes=8 * (len(index.rows) + 3 * len(index.starts)),
            write_ids=len(self.write_ids),
            open_transactions=len(self.transactions.opened),
            staged_messages=sum(t.messages for t in self.transactions.opened.values()),
            decided_transactions=len(self.transactions.decided),
            subscribers=len(self.subscribers.by_name),
            refused_entries=self.refused,
        )

    def snapshot(self) -> bytes:
        index = self.visible
        opened, following = self.transactions.opened, list(self.transactions.following.items())
        body = BoundLaneSnapshot(
            position=self.position,
            refused=self.refused,
            bounds=self.bounds,
            end=index.end,
            trimmed_to=index.trimmed_to,
            dropped=index.dropped,
            index=_columns(index),
            write_ids=self.write_ids.columns(),
            opened=[_packed(txn, transaction) for txn, transaction in opened.items()],
            decided=self.transactions.decided.columns(),
            subscribers=self.subscribers.by_name,
            bound=[_bound(txn, found) for txn, found in opened.items() if found.home],
            following=following,
        )
        plain = LaneSnapshot(*astuple(body)[: len(LaneSnapshot.__struct_fields__)])
        return seal(_encoder.encode(body if body.bound or following else plain), magic=MAGIC, version=LAYOUT_VERSION)

    @classmethod
    def restore(cls, snapshot: bytes) -> QueueState:
        """The state of this snapshot. Raises Malformed (or a subclass) and changes nothing."""
        body = unseal(snapshot, _decoder, magic=MAGIC, version=LAYOUT_VERSION)
        if min(_sizes(body.bounds)) < 1:
            raise Malformed("snapshot bounds", expected="at least 1 each", found=body.bounds)
        state = cls(bounds=body.bounds)
        state.position, state.refused = body.position, body.refused
        state.visible = state.versions = _restored_index(body)
        state.write_ids = Recent.from_columns(body.bounds.write_ids, *body.write_ids)
        state.subscribers.by_name.update(body.subscribers)
        _restore_transactions(state.transactions, body)
        return state


def _sizes(bounds: Bounds) -> tuple[int, ...]:
    return (
        bounds.write_ids,
        bounds.decided_transactions,
        bounds.open_transactions,
        bounds.staged_batches,
        bounds.subscribers,
    )


def _columns(index: VisibleIndex) -> tuple[bytes, bytes, bytes, bytes]:
    starts, positions = column_bytes(index.starts), column_bytes(index.positions)
    return column_bytes(index.rows), starts, positions, column_bytes(index.offsets)


def _packed(txn: bytes, transaction: OpenTransaction) -> OpenTransactionRecord:
    counts, parts = column_bytes(transaction.counts), transaction.parts
    places = column_bytes(transaction.positions)
    return OpenTransactionRecord(
        txn, transaction.deadline_ms, places, counts, column_bytes(parts) if any(parts) else b""
    )


def _bound(txn: bytes, found: OpenTransaction) -> BoundTransactionRecord:
    prepared = list(found.prepared.items())
    return BoundTransactionRecord(txn, found.home, found.opened_at, found.changed_at, found.parted, prepared)


def _restored_index(body: BoundLaneSnapshot) -> VisibleIndex:
    index = VisibleIndex(end=body.end, trimmed_to=body.trimmed_to, dropped=body.dropped)
    index.rows, index.starts, index.positions, index.offsets = map(column_from, body.index)
    _check_index(index)
    index.continue_after_restore()
    return index


def _check_index(index: VisibleIndex) -> None:
    """Check the invariants of the index. The checksum detects changed bits; this detects a wrong writer."""
    lengths = {len(index.starts), len(index.positions), len(index.offsets)}
    if len(lengths) != 1 or bool(index.rows) != bool(index.starts):
        raise Malformed("snapshot index", expected="runs of equal length", found=sorted(lengths))
    if not 0 <= index.trimmed_to <= index.end or bool(index.rows) != (index.trimmed_to < index.end):
        raise Malformed("snapshot index", expected="rows for the versions after the trim", found=len(index.rows))
    if index.rows and not (index.starts[0] == index.dropped and _ascends(index.rows, index.end)):
        raise Malformed("snapshot index", expected="ascending rows from the first one kept", found=index.rows[0])


def _ascends(rows: array[int], end: int) -> bool:
    following = rows[1:]
    following.append(end + 1)
    return rows[0] >= 1 and all(map(int.__lt__, rows, following))


def _restore_transactions(transactions: Transactions, body: BoundLaneSnapshot) -> None:
    transactions.decided = Recent.from_columns(body.bounds.decided_transactions, *body.decided)
    for packed in body.opened:
        transaction = transactions.opened[packed.txn] = OpenTransaction(packed.deadline_ms)
        positions, counts = column_from(packed.positions), column_from(packed.counts)
        parts = column_from(packed.parts or bytes(8 * len(positions)))
        if not len(positions) == len(counts) == len(parts):
            found = (len(counts), len(parts))
            raise Malformed("snapshot transaction", expected=f"{len(positions)} counts and parts", found=found)
        for position, count, part in zip(positions, counts, parts, strict=True):
            transaction.add(position=position, count=count, part=part)
    for bound in body.bound:
        opened = transactions.opened.get(bound.txn)
        if opened is None:
            raise Malformed("snapshot transaction", expected="an open one", found=bound.txn)
        opened.home, opened.opened_at, opened.changed_at = bound.home, bound.opened_at, bound.changed_at
        opened.parted, opened.prepared = bound.parted, dict(bound.prepared)
    transactions.following.update(body.following)
