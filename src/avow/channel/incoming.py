"""What one end has received: where it stands, which commits it may acknowledge, and how much it has taken on trust.

The numbers are checked as they come. Message numbers follow one another without a gap, a commit says the number of the
last message before it, ids grow: an end that got anything out of order, twice or not at all would see it here at once.

The cap is on what was received and no acknowledged commit covers, in messages and in bytes. A sender keeps below it by
its own limit; one that does not is cut off before it can fill this end's memory.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from avow.channel.outgoing import VALUE_OVERHEAD_BYTES


class Delivered(Struct, gc=False):
    """Commits `first` to `last` that came at the same place: after message `upto`, `size_bytes` into the stream."""

    first: int
    last: int
    upto: int
    size_bytes: int


class Incoming:
    def __init__(self, *, cap_count: int, cap_bytes: int) -> None:
        self.cap_count, self.cap_bytes = cap_count, cap_bytes
        self.received_to = self.commits_received_to = 0
        self.acked = 0  # the highest commit the application has acknowledged
        self.acked_given = 0  # the same, as far as the current socket was told
        self._size_bytes = 0  # of everything received
        self._covered_to = self._covered_bytes = 0  # by an acknowledged commit
        self._delivered: list[Delivered] = []  # not acknowledged

    @property
    def owing(self) -> bool:
        return bool(self._delivered)

    def data(self, first: int, count: int, size_bytes: int) -> str:
        """Why this data cannot come now; empty if it can, and then it has."""
        if first != self.received_to + 1:
            return f"message {first} came after message {self.received_to}"
        self.received_to += count
        self._size_bytes += size_bytes + VALUE_OVERHEAD_BYTES * count
        return ""

    def takes(self, count: int, size_bytes: int) -> bool:
        """Whether so much more stays within the cap."""
        uncovered_bytes = self._size_bytes - self._covered_bytes + size_bytes + VALUE_OVERHEAD_BYTES * count
        return self.received_to - self._covered_to + count <= self.cap_count and uncovered_bytes <= self.cap_bytes

    def commit(self, commit_id: int, upto: int) -> str:
        """Why this commit cannot come now; empty if it can, and then it has."""
        if upto != self.received_to:
            return f"commit {commit_id} covers messages up to {upto} and came after message {self.received_to}"
        if commit_id <= self.commits_received_to:
            return f"commit {commit_id} came after commit {self.commits_received_to}"
        self.commits_received_to = commit_id
        last = self._delivered[-1] if self._delivered else None
        if last is not None and last.upto == upto:
            last.last = commit_id
        else:
            self._delivered.append(Delivered(commit_id, commit_id, upto, self._size_bytes))
        return ""

    def ack(self, commit_id: int) -> bool:
        """The application acknowledges. False: no such commit was delivered. Again, or an older one: nothing new."""
        if commit_id <= self.acked:
            return commit_id > 0
        at = bisect_right(self._delivered, commit_id, key=_first)
        run = self._delivered[at - 1] if at else None
        if run is None or commit_id > run.last:
            return False
        self.acked = commit_id
        self._covered_to, self._covered_bytes = run.upto, run.size_bytes
        keep = commit_id < run.last
        run.first = commit_id + 1 if keep else run.first
        del self._delivered[: at - 1 if keep else at]
        return True


def _first(run: Delivered) -> int:
    return run.first
