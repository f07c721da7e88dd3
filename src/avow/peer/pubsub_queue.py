"""A pub-sub queue as the clients of one peer see it. Writes are in `pubsub_writes`; here are reads and what is kept.

Order is per lane and versions are vectors {lane: version}. There is no common end, so linearizable reads are refused
with a reason; a reader who must see its own writes names them (`read_at_least`). A lane that was removed whole counts
as reached: whatever the reader wants to have seen of it is not to be had any more.

Readers are served from memory or from disk: the index says where versions lie (`ranges`), `reader` fetches entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from avow.errors import InvalidRequest, TooMany
from avow.limits import PUBSUB_LANE_KEPT_S, WAITING_REQUESTS_MAX
from avow.peer.answers import Reached, Refusal
from avow.peer.pubsub_book import LaneBook
from avow.peer.pubsub_retention import lane_trim
from avow.peer.pubsub_writes import PubSubWrites
from avow.queue.catalog import VectorCursor
from avow.queue.commands import RetentionRules, encode
from avow.queue.retention import StoredFile
from avow.queue.visible import VisibleRange
from avow.replication.pieces import within
from avow.wire.messages import Entry, Kind

BEHIND_ENTRIES_MAX: Final = 256  # a copy so close to the longest one counts as caught up


class PubSubQueue(PubSubWrites):
    def _prepare(self) -> None:
        super()._prepare()
        self._at_least: list[tuple[int, dict[int, int]]] = []
        self._ended_at_ms: dict[int, int] = {}  # lane -> when retention first found it ended

    # ------------------------------------------------------------------ reads

    def read_local(self, request: int) -> None:
        """What this peer shows of each lane; may lag."""
        self.answers.append((request, Reached(dict(self.readable))))

    def read_at_least(self, request: int, versions: Mapping[int, int]) -> None:
        """Answered once this peer shows that much of each lane: the reader's own writes, and never less than before."""
        if self._reached(versions):
            self.read_local(request)
        elif len(self._at_least) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Refusal(TooMany.code)))
        elif beyond := [lane for lane, version in versions.items() if self._ends_below(lane, version)]:
            reason = f"lanes {beyond} ended before the versions asked for, which were never committed"
            self.answers.append((request, Refusal(InvalidRequest.code, reason=reason)))
        else:
            self._at_least.append((request, dict(versions)))

    def read_linearizable(self, request: int) -> None:
        reason = "lanes of a pub-sub queue have no common order; read `local`, or `at_least` a cursor"
        self.answers.append((request, Refusal(InvalidRequest.code, reason=reason)))

    def cancel(self, request: int) -> None:
        """Nobody waits for this answer any more; it may come all the same. What was to be written is written."""
        if self._at_least:
            self._at_least = [item for item in self._at_least if item[0] != request]

    def _reached(self, versions: Mapping[int, int]) -> bool:
        readable = self.readable
        return all(readable.get(lane, 0) >= version or self._is_forgotten(lane) for lane, version in versions.items())

    def _ends_below(self, lane: int, version: int) -> bool:
        return self.core.ended_here(lane) and self.readable.get(lane, 0) < version

    def _shown(self) -> None:
        if self._at_least:
            ready = [request for request, versions in self._at_least if self._reached(versions)]
            self._at_least = [item for item in self._at_least if item[0] not in ready]
            for request in ready:
                self.read_local(request)

    def ranges(self, lane: int, after: int, max_count: int) -> Iterator[VisibleRange]:
        """Where the versions after a cursor lie, in their order; nothing beyond the end. Raises Trimmed."""
        book = self._books.get(lane)
        if book is None:
            raise InvalidRequest(f"lane {lane} is not one of {self.queue}'s, or was removed. Read the list of lanes")
        return book.index.ranges(min(after, book.index.end), max_count)

    def reader(self, lane: int) -> Callable[[int, int, int], Sequence[Entry]]:
        """Readable entries by position: (after, max_entries, max_bytes). Raises Trimmed, StorageDamaged."""

        def read(after: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
            return within(tuple(self._mending.entries(lane, after, max_entries)), max_bytes)

        return read

    def peek(self, lane: int, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """By its version id, a message that may not be committed: (entry, offset in it, committed, who stored it)."""
        if lane not in self._books:
            return None
        self._extend(lane, self.core.end_of(lane))
        place = self._books[lane].locate(version)
        entry = self.core.entry(lane, place[0]) if place is not None else None
        if place is None or entry is None:
            return None
        _, committed, stored_by = self.core.lookup(lane, place[0])
        return entry, place[1], committed, stored_by

    # ------------------------------------------------------------------ retention

    def trim_limit(self, lane: int, upto_version: int) -> int:
        """How far a trim that somebody asks for may go: a lane's later messages are not there to be removed."""
        return min(upto_version, self.readable.get(lane, 0))

    def propose_trims(
        self,
        rules: RetentionRules,
        now_ms: int,
        files_of: Callable[[int], Sequence[StoredFile]],
        *,
        subscribers: Collection[VectorCursor] = (),
    ) -> None:
        """What the rules give up, as proposals to the metadata lane. Asked now and then, of one peer only."""
        for number, book in self._books.items():
            ended_ms = self._ended_at_ms.setdefault(number, now_ms) if self.core.ended_here(number) else None
            kept = ended_ms is None or now_ms - ended_ms < 1000 * PUBSUB_LANE_KEPT_S
            command = lane_trim(
                number, book, files_of(number), now_ms=now_ms, rules=rules, subscribers=subscribers, keeps_lane=kept
            )
            if command is not None:
                self._proposals.once(Kind.TRIM, encode(command))
        self._ended_at_ms = {number: at for number, at in self._ended_at_ms.items() if number in self._books}

    # ------------------------------------------------------------------ what others may ask

    @property
    def open_lane(self) -> int:
        """The lane a write would go to now; 0: none. A client binds its write to it before it sends."""
        lane = self.core.own_lane
        return lane if lane is not None and self.core.open_voters() else 0

    @property
    def caught_up(self) -> bool:
        """Of every lane this peer holds nearly all that anybody is known to hold."""
        return all(self.core.caught_up(number, within=BEHIND_ENTRIES_MAX) for number in self._books)

    @property
    def numbers(self) -> list[int]:
        """Of its lanes, as far as this peer was told, in the order in which they were opened."""
        return list(self._books)

    def book(self, lane: int) -> LaneBook | None:
        return self._books.get(lane)

    def known_to(self, lane: int) -> int:
        """The last position whose versions are known: all that this copy holds."""
        self._extend(lane, self.core.end_of(lane))
        return self._books[lane].known_to

    def statistics(self) -> dict[str, object]:
        return {
            "incarnation": self.incarnation,
            "waiting_writes": sum(len(own.waiting) for own in self._own.values()),
            "waiting_reads": len(self._at_least),
            "proposals": [(Kind.NAMES[kind], number) for kind, number in self._proposals.names()],
            **self.core.statistics(),
        }
