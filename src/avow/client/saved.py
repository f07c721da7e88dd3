"""A producer's records in a pending store, for the next run of its program.

A store keeps values by the numbers of one sender and releases them from the front. Here the sender is the producer, not
its channel: what is stored outlives channels, and is released when it is known to be in the queue.

A record of a pub-sub queue is bound to a lane when it is given to a channel, and to another when it is known not to be
in that one. Which lane must be known after a restart, so a binding that changes is stored, as the record once more,
with all behind it, before it is used. The copy in front of it means nothing from then on: of records with the same
write id the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from avow.channel.stores import FileStore, PendingStore
from avow.client.batching import now_ms
from avow.client.window import UNBOUND, Sent, read_message
from avow.wire.batch import Batch

if TYPE_CHECKING:
    from avow.client.window import Window

Store: TypeAlias = PendingStore | Path | str


class Saved:
    """Made from a path it owns its store, and closes it."""

    def __init__(self, store: Store) -> None:
        self._owned = isinstance(store, str | Path)
        self._store: PendingStore = FileStore(store) if isinstance(store, str | Path) else store
        self._last = self._released_to = 0

    def load(self) -> list[Sent]:
        """What the run before has left, in order, as something that may have happened."""
        values = self._store.load()
        found = [read_message(value) for value in values]
        if not found:
            return []
        self._store.append(1, values)  # they keep their places, and have numbers of this run
        self._last = len(values)
        latest: dict[bytes, Sent] = {}
        for number, sent in enumerate(found, 1):
            latest.pop(sent.write_id, None)
            latest[sent.write_id] = sent
            sent.stored = number
            sent.maybe = sent.lane != UNBOUND
            age_ms = max(now_ms() - Batch(sent.record).created_ms, 0)
            sent.sent_at = monotonic() - age_ms / 1000 if sent.maybe else 0.0
        return list(latest.values())

    def save(self, records: Sequence[Sent]) -> None:
        """At the end of all. Raises what the store raises, and then none is kept."""
        if not records:
            return
        self._store.append(self._last + 1, [sent.value for sent in records])
        for number, sent in enumerate(records, self._last + 1):
            sent.stored = number
        self._last += len(records)

    def release(self, window: Window) -> None:
        """All that stands before the first of the window."""
        first = next(iter(window), None)
        upto = self._last if first is None else first.stored - 1
        if upto > self._released_to:
            self._released_to = upto
            self._store.release(upto)

    def close(self) -> None:
        if self._owned:
            self._store.close()
