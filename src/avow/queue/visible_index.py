"""The visible index: maps a version to the position of its message in the log.

Readers count messages (versions, without gaps); the log counts entries (positions), and an entry is a batch. The two
orders differ: a batch that was staged early and published late has a low position and high versions, and entries
without messages have positions but no versions. The index therefore has one row for each visible batch, in the order
of versions. There may be millions of rows, so a row is 8 bytes and not an object:

    row              the first version of the batch; the next row (or the end) gives its count
    run              rows at consecutive positions: first row, position of that row, offset in that batch

Between two rows of a run the position grows by one, so it is not stored. A new run (24 bytes more) begins where the
positions jump. The offset is 0 except after a hole: when part of a merged batch must stay hidden, the messages after
the hole are a row of their own at the same position, which begins `offset` messages into the batch. Rows are numbered
from the lane's beginning; `dropped` of them are gone, so that a trim need not renumber the runs.

Invariants: rows ascend strictly; the first run begins at the first row kept; both are empty together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from avow.errors import InvalidRequest, Trimmed
from avow.queue.records import VisibleRange


class VisibleIndex:
    """The positions of the versions `trimmed_to` + 1 to `end`. A row is kept as long as one of its versions is."""

    __slots__ = ("dropped", "end", "next_position", "offsets", "positions", "rows", "starts", "trimmed_to")

    def __init__(self, *, end: int = 0, trimmed_to: int = 0, dropped: int = 0) -> None:
        self.end, self.trimmed_to, self.dropped = end, trimmed_to, dropped
        self.rows = array("q")
        self.starts = array("q")  # for each run: the number of its first row,
        self.positions = array("q")  # the position of that row,
        self.offsets = array("q")  # and the offset of that row in its batch
        self.next_position = -1  # the position that would continue the last run

    def append(self, position: int, offset: int, count: int) -> None:
        """`count` messages (at least one) become the versions after `end`."""
        if position != self.next_position or offset:
            self.starts.append(self.dropped + len(self.rows))
            self.positions.append(position)
            self.offsets.append(offset)
        self.rows.append(self.end + 1)
        self.end += count
        self.next_position = position + 1

    def locate(self, version: int) -> tuple[int, int]:
        """(position, offset in that batch). Raises Trimmed, or InvalidRequest for a version that is not visible."""
        if not 1 <= version <= self.end:
            raise InvalidRequest(f"version {version} is not visible; the lane ends at {self.end}")
        self._check_kept(version)
        row = bisect_right(self.rows, version) - 1
        position, offset = self._place(row)
        return position, offset + version - self.rows[row]

    def ranges(self, after_version: int, max_count: int) -> Iterator[VisibleRange]:
        """At most `max_count` messages after a cursor, in the order of versions. Raises Trimmed at once.

        Exhaust the iterator before the next entry is applied: a trim moves the rows it walks over.
        """
        if not 0 <= after_version <= self.end:
            raise InvalidRequest(
                f"cursor {after_version} is outside 0..{self.end}, the versions of this lane; read after one of those"
            )
        self._check_kept(after_version + 1)
        return self._walk(after_version + 1, min(self.end, after_version + max_count))

    def trim(self, upto: int) -> None:
        """Remove versions up to and including `upto`. A row that is kept in part stays whole."""
        assert self.trimmed_to <= upto <= self.end, "a trim moves forward and not beyond the end"
        self.trimmed_to = upto
        gone = len(self.rows) if upto == self.end else bisect_right(self.rows, upto + 1) - 1
        if gone <= 0:
            return
        del self.rows[:gone]
        self.dropped += gone
        self._drop_runs()

    def lowest_position(self) -> int | None:
        """The earliest position that has a kept version."""
        return min(self.positions) if self.positions else None

    def last_version_within(self, position: int) -> int:
        """The largest v such that every kept version up to v is at or before this position."""
        for run, start in enumerate(self.starts):
            first = self.positions[run]
            rows = self._rows_of(run)
            if first + rows - 1 > position:
                row = start - self.dropped + max(0, position - first + 1)
                return max(self.trimmed_to, self.rows[row] - 1)
        return self.end

    def continue_after_restore(self) -> None:
        """Compute the derived fields. Call once, after the columns were filled from a snapshot."""
        if self.starts:
            self.next_position = self.positions[-1] + self._rows_of(len(self.starts) - 1)

    def _rows_of(self, run: int) -> int:
        following = run + 1
        until = self.starts[following] if following < len(self.starts) else self.dropped + len(self.rows)
        return until - self.starts[run]

    def _drop_runs(self) -> None:
        if not self.rows:
            del self.starts[:], self.positions[:], self.offsets[:]
            self.next_position = -1
            return
        first = bisect_right(self.starts, self.dropped) - 1
        del self.starts[:first], self.positions[:first], self.offsets[:first]
        if (skipped := self.dropped - self.starts[0]) > 0:
            self.starts[0] = self.dropped
            self.positions[0] += skipped
            self.offsets[0] = 0

    def _place(self, row: int) -> tuple[int, int]:
        number = row + self.dropped
        run = bisect_right(self.starts, number) - 1
        steps = number - self.starts[run]
        return self.positions[run] + steps, 0 if steps else self.offsets[run]

    def _walk(self, version: int, last: int) -> Iterator[VisibleRange]:
        row = bisect_right(self.rows, version) - 1
        while version <= last:
            position, offset = self._place(row)
            following = self.rows[row + 1] if row + 1 < len(self.rows) else self.end + 1
            until = min(following, last + 1)
            yield VisibleRange(position, offset + version - self.rows[row], version, until - version)
            version, row = until, row + 1

    def _check_kept(self, version: int) -> None:
        if version <= self.trimmed_to:
            raise Trimmed(
                f"versions up to {self.trimmed_to} were removed from the lane; read from version "
                f"{self.trimmed_to + 1}, or from the archive"
            )
