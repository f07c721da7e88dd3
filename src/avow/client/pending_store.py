"""Keeps a producer's unacknowledged records in a pending store, for the next run of its program.

A pending store numbers the values of one sender and releases them from the front. Here the sender is the producer, not
its channel: records survive channels, and are released when they are known to be in the queue.

A record of a pub-sub queue is bound to a lane when it is given to a channel, and to another lane once it is known not
to be in the first. The binding must survive a restart, so before a changed binding is used, the record and all records
after it are stored again. Of records with the same write id the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from avow.channel.stores import FileStore, PendingStore
from avow.client.message_columns import now_ms
from avow.client.window import UNBOUND, ProducerRecord, read_message
from avow.wire.batch import Batch

if TYPE_CHECKING:
    from avow.client.window import Window

Store: TypeAlias = PendingStore | Path | str


class PendingRecordStore:
    """Opens and closes its own FileStore if `store` is a path."""

    def __init__(self, store: Store) -> None:
        self._owned = isinstance(store, str | Path)
        self._store: PendingStore = FileStore(store) if isinstance(store, str | Path) else store
        self._last = self._released_to = 0

    def load(self) -> list[ProducerRecord]:
        """The records that the previous run left, in order. Those bound to a lane are `maybe`."""
        values = self._store.load()
        found = [read_message(value) for value in values]
        if not found:
            return []
        self._store.append(1, values)  # they keep their order and get numbers of this run
        self._last = len(values)
        latest: dict[bytes, ProducerRecord] = {}
        for number, sent in enumerate(found, 1):
            latest.pop(sent.write_id, None)
            latest[sent.write_id] = sent
            sent.stored = number
            sent.maybe = sent.lane != UNBOUND
            age_ms = max(now_ms() - Batch(sent.record).created_ms, 0)
            sent.sent_at = monotonic() - age_ms / 1000 if sent.maybe else 0.0
        return list(latest.values())

    def save(self, records: Sequence[ProducerRecord]) -> None:
        """Append records. If the store raises, none of them is stored."""
        if not records:
            return
        self._store.append(self._last + 1, [sent.value for sent in records])
        for number, sent in enumerate(records, self._last + 1):
            sent.stored = number
        self._last += len(records)

    def release(self, window: Window) -> None:
        """Release everything before the first record of the window."""
        first = next(iter(window), None)
        upto = self._last if first is None else first.stored - 1
        if upto > self._released_to:
            self._released_to = upto
            self._store.release(upto)

    def close(self) -> None:
        if self._owned:
            self._store.close()
