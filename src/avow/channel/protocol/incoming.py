"""The receiving side of one end: its position, the commits it may acknowledge, and how much is not yet covered.

Numbers are checked on arrival. Message numbers are consecutive, a commit carries the number of the last message before
it, and commit ids increase. So a message that is lost, repeated or out of order is detected at once.

The cap limits what was received but is not covered by an acknowledged commit, in messages and in bytes. A sender stays
below it by its own limit; if it does not, the channel ends before this end's memory fills up.
"""

from __future__ import annotations

from bisect import bisect_right

from avow.channel.protocol.events import VALUE_OVERHEAD_BYTES, DeliveredRun


class Incoming:
    def __init__(self, *, cap_count: int, cap_bytes: int) -> None:
        self.cap_count, self.cap_bytes = cap_count, cap_bytes
        self.received_to = self.commits_received_to = 0
        self.acked = 0  # the highest commit the application has acknowledged
        self.acked_given = 0  # the highest commit whose ack was sent on the current socket
        self._size_bytes = 0  # of everything received
        self._covered_to = self._covered_bytes = 0  # by an acknowledged commit
        self._delivered: list[DeliveredRun] = []  # not acknowledged

    @property
    def covered_to(self) -> int:
        """The last message that an acknowledged commit covers."""
        return self._covered_to

    @property
    def uncovered_bytes(self) -> int:
        """The size of the messages that no acknowledged commit covers."""
        return self._size_bytes - self._covered_bytes

    @property
    def owing(self) -> bool:
        return bool(self._delivered)

    def data(self, first: int, count: int, size_bytes: int) -> str:
        """Take data. Returns why it is not allowed now, and then takes nothing; empty when it was taken."""
        if first != self.received_to + 1:
            return f"message {first} arrived after message {self.received_to}"
        self.received_to += count
        self._size_bytes += size_bytes + VALUE_OVERHEAD_BYTES * count
        return ""

    def takes(self, count: int, size_bytes: int) -> bool:
        """Whether this much more stays within the cap."""
        uncovered_bytes = self.uncovered_bytes + size_bytes + VALUE_OVERHEAD_BYTES * count
        return self.received_to - self._covered_to + count <= self.cap_count and uncovered_bytes <= self.cap_bytes

    def commit(self, commit_id: int, upto: int) -> str:
        """Take a commit. Returns why it is not allowed now, and then takes nothing; empty when it was taken."""
        if upto != self.received_to:
            return f"commit {commit_id} covers messages up to {upto} but arrived after message {self.received_to}"
        if commit_id <= self.commits_received_to:
            return f"commit {commit_id} arrived after commit {self.commits_received_to}"
        self.commits_received_to = commit_id
        last = self._delivered[-1] if self._delivered else None
        if last is not None and last.upto == upto:
            last.last = commit_id
        else:
            self._delivered.append(DeliveredRun(commit_id, commit_id, upto, self._size_bytes))
        return ""

    def ack(self, commit_id: int) -> bool:
        """Acknowledge a commit for the application. False if no such commit was delivered. Repeated or older ids
        change nothing."""
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


def _first(run: DeliveredRun) -> int:
    return run.first
