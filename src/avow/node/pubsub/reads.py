"""Reads of a pub-sub queue at one peer.

Order is per lane and versions are vectors {lane: version}. There is no common end, so the node refuses
linearizable reads; a reader that must see its own writes names their versions (`at_least`). A removed lane counts as
reached, because its messages can no longer be read.

Entries are read from memory or disk: the index has the positions of versions (`ranges`), `reader` fetches entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from avow.errors import InvalidRequest, TooMany
from avow.limits import WAITING_REQUESTS_MAX
from avow.node.answers import Answer, Reached, Refusal
from avow.node.pubsub.history_repair import HistoryRepair
from avow.node.pubsub.lanes import QueueLanes
from avow.queue.records import VisibleRange
from avow.replication.pieces import within
from avow.replication.pubsub.core import PubSubCore
from avow.wire.messages import Entry


class Reads:
    def __init__(
        self, core: PubSubCore, lanes: QueueLanes, history: HistoryRepair, answer: Callable[[int, Answer], None]
    ) -> None:
        self._core, self._lanes, self._history, self._answer = core, lanes, history, answer
        self._at_least: list[tuple[int, dict[int, int]]] = []

    @property
    def waiting(self) -> int:
        return len(self._at_least)

    def local(self, request: int) -> None:
        """Answers with the last readable version of each lane here; may lag."""
        self._answer(request, Reached(dict(self._lanes.readable)))

    def at_least(self, request: int, versions: Mapping[int, int]) -> None:
        """Answers once these versions are readable here: a reader sees its own writes, and never less than before."""
        if self._reached(versions):
            self.local(request)
        elif len(self._at_least) >= WAITING_REQUESTS_MAX:
            self._answer(request, Refusal(TooMany.code))
        elif beyond := [lane for lane, version in versions.items() if self._ends_below(lane, version)]:
            reason = f"lanes {beyond} ended before the requested versions, which were never committed. Read lower ones"
            self._answer(request, Refusal(InvalidRequest.code, reason=reason))
        else:
            self._at_least.append((request, dict(versions)))

    def cancel(self, request: int) -> None:
        if self._at_least:
            self._at_least = [item for item in self._at_least if item[0] != request]

    def shown(self) -> None:
        """More versions are readable here, or a lane was removed: answer the requests that waited for it."""
        if self._at_least:
            ready = [request for request, versions in self._at_least if self._reached(versions)]
            self._at_least = [item for item in self._at_least if item[0] not in ready]
            for request in ready:
                self.local(request)

    def _reached(self, versions: Mapping[int, int]) -> bool:
        lanes, readable = self._lanes, self._lanes.readable
        return all(readable.get(lane, 0) >= version or lanes.is_forgotten(lane) for lane, version in versions.items())

    def _ends_below(self, lane: int, version: int) -> bool:
        return self._core.ended_here(lane) and self._lanes.readable.get(lane, 0) < version

    # ------------------------------------------------------------------ entries

    def ranges(self, lane: int, after: int, max_count: int) -> Iterator[VisibleRange]:
        """The positions of the versions after a cursor, in order, up to the end. Raises Trimmed."""
        visible = self._lanes.by_number[lane].visible
        return visible.ranges(min(after, visible.end), max_count)

    def reader(self, lane: int) -> Callable[[int, int, int], Sequence[Entry]]:
        """Readable entries by position: (after, max_entries, max_bytes). Raises Trimmed, StorageDamaged."""

        def read(after: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
            return within(tuple(self._history.entries(lane, after, max_entries)), max_bytes)

        return read

    def peek(self, lane: int, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """A message by its version id, committed or not: (entry, offset in it, committed, peers that stored it)."""
        if lane not in self._lanes.by_number:
            return None
        self._lanes.extend(lane, self._core.end_of(lane))
        place = self._lanes.by_number[lane].locate(version)
        entry = self._core.retention.entry(lane, place[0]) if place is not None else None
        if place is None or entry is None:
            return None
        _, committed, stored_by = self._core.lookup(lane, place[0])
        return entry, place[1], committed, stored_by
