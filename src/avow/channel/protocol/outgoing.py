"""The sending side of one end: messages until an acknowledged commit covers them, and the commits themselves.

    numbers  1 ────── released_to ────── received_to ────── given_to ────── sent_to
             dropped: a commit up to     the other end      written to      all that the
             here was acknowledged       reported them      this socket     application sent

The pending messages are all after released_to. They are what the application would have to send again if the channel
failed now, and the sender's limit applies to their number and size.

There is no queue of frames. The numbers determine what a socket must still carry: values after given_to, with each
commit right after the last message it covers. Resuming on a new socket therefore means setting given_to back to what
the other end has; nothing can be lost, sent twice or reordered.

Commits without a message between them share a `SentRun`: they cover the same messages, and after the first only the
newest must be sent. So there is at most one run more than pending messages.
"""

from __future__ import annotations

from bisect import bisect_right

from avow.channel.protocol.events import VALUE_OVERHEAD_BYTES, Fate, Pending, SentRun
from avow.channel.protocol.frames import Buffer, commit_bytes, data_parts


class Outgoing:
    def __init__(self, *, last_commit: int = 0) -> None:
        self.released_to = self.sent_to = self.size_bytes = 0
        self._base = self.last_commit = self.acked = last_commit  # ids may start anywhere; on the wire 0 means this one
        self.received_to = 0  # the highest position the other end has reported
        self.given_to, self.commits_given_to = 0, last_commit
        self.ever_given_to, self.commits_ever_given_to = 0, last_commit  # to any socket
        self.final = False  # the other end has sent End: what it had not received by then it will never receive
        self._values: list[Buffer] = []  # from released_to + 1
        self._runs: list[SentRun] = []

    @property
    def count(self) -> int:
        return self.sent_to - self.released_to

    @property
    def covered_to(self) -> int:
        """The last message that an issued commit covers."""
        return self._runs[-1].upto if self._runs else self.released_to

    def send(self, value: Buffer) -> int:
        self._values.append(value)
        self.size_bytes += len(value) + VALUE_OVERHEAD_BYTES
        self.sent_to += 1
        return self.sent_to

    def commit(self) -> int:
        self.last_commit += 1
        runs = self._runs
        if runs and runs[-1].upto == self.sent_to:
            runs[-1].last = self.last_commit
        else:
            runs.append(SentRun(self.last_commit, self.last_commit, self.sent_to))
        return self.last_commit

    def skip_commits(self, last_commit: int) -> None:
        """Commit ids continue after this one."""
        self.last_commit = max(self.last_commit, last_commit)

    # ------------------------------------------------------------------ a socket

    def possible(self, received_to: int, commits_received_to: int, acked: int) -> str:
        """Why the other end cannot be at these positions; empty if it can."""
        commits_received_to, acked = commits_received_to or self._base, acked or self._base
        if not self.released_to <= received_to <= self.ever_given_to:
            return f"it reports messages up to {received_to}; possible are {self.released_to} to {self.ever_given_to}"
        if not self.acked <= acked <= commits_received_to <= self.commits_ever_given_to:
            return (
                f"it reports commits up to {commits_received_to} and acknowledged commit {acked}; possible are "
                f"{self.acked} to {self.commits_ever_given_to}"
            )
        at = bisect_right(self._runs, commits_received_to, key=_first)
        if at and self._runs[at - 1].upto > received_to:
            upto = self._runs[at - 1].upto
            return f"it reports commit {commits_received_to} but not message {upto}, which that commit covers"
        if at < len(self._runs) and self._runs[at].upto < received_to:
            return f"it reports message {received_to} but not commit {self._runs[at].first}, which was sent before it"
        return ""

    def resume(self, received_to: int, commits_received_to: int) -> None:
        self.given_to = received_to
        self.commits_given_to = commits_received_to or self._base
        self.received_to = max(self.received_to, received_to)

    @property
    def waiting(self) -> bool:
        """Whether something must still be written to the current socket."""
        return self.given_to < self.sent_to or self.commits_given_to < self.last_commit

    def next_frames(self, size_bytes: int) -> list[Buffer]:
        """The next frames for the current socket, up to `size_bytes` together, but at least one message if any waits.

        A message that does not fit gets a packet of its own, so frames before it cannot push a packet over the maximum.
        """
        parts: list[Buffer] = []
        left = size_bytes
        while left > 0 and self.waiting:
            at = bisect_right(self._runs, self.commits_given_to, key=_last)
            stop = self._runs[at].upto if at < len(self._runs) else self.sent_to
            given = self._give_data(parts, stop, left) if self.given_to < stop else self._give_commit(parts, at)
            if not given:
                break
            left -= given
        return parts

    def _give_data(self, parts: list[Buffer], stop: int, size_bytes: int) -> int:
        first = self.given_to + 1
        chosen: list[Buffer] = []
        size = 0
        for value in self._values[self.given_to - self.released_to : stop - self.released_to]:
            size += len(value) + 4
            if size > size_bytes and (chosen or parts):
                break
            chosen.append(value)
            if size > size_bytes:
                break
        if not chosen:
            return 0
        parts += data_parts(first, chosen)
        self.given_to += len(chosen)
        self.ever_given_to = max(self.ever_given_to, self.given_to)
        return size

    def _give_commit(self, parts: list[Buffer], at: int) -> int:
        """A run's first commit is always sent, so the messages between first commits are the same on every channel."""
        run = self._runs[at]
        commit_id = run.first if self.commits_given_to < run.first else run.last
        parts.append(commit_bytes(commit_id, run.upto))
        self.commits_given_to = commit_id
        self.commits_ever_given_to = max(self.commits_ever_given_to, commit_id)
        return len(parts[-1])

    # ------------------------------------------------------------------ acknowledgement

    def ack(self, commit_id: int) -> bool:
        """Apply an acknowledgement. False: the other end cannot have this commit. Repeated or older ids change nothing.

        A commit that its Hello did not report, and that was not written to this socket since, cannot have arrived,
        whatever older sockets carried.
        """
        if commit_id > self.commits_given_to:
            return False
        if commit_id <= self.acked:
            return True
        self.acked = commit_id
        at = bisect_right(self._runs, commit_id, key=_first)
        if at:
            run = self._runs[at - 1]
            self._release(run.upto)
            keep = commit_id < run.last  # the rest of the run covers no more messages but must still be acknowledged
            run.first = commit_id + 1 if keep else run.first
            del self._runs[: at - 1 if keep else at]
        return True

    def _release(self, upto: int) -> None:
        count = upto - self.released_to
        self.size_bytes -= sum(map(len, self._values[:count])) + VALUE_OVERHEAD_BYTES * count
        del self._values[:count]
        self.released_to = upto
        self.received_to = max(self.received_to, upto)

    def pending(self) -> list[Pending]:
        """The pending messages in order, each with what is known about its delivery."""
        found = []
        for number, value in enumerate(self._values, self.released_to + 1):
            at = bisect_right(self._runs, number - 1, key=_upto)
            commit = self._runs[at].first if at < len(self._runs) else 0
            found.append(Pending(number, value, self._fate(number), commit))
        return found

    def _fate(self, number: int) -> Fate:
        if number <= self.received_to:
            return "delivered"
        return "unsent" if self.final or number > self.ever_given_to else "unknown"


def _first(run: SentRun) -> int:
    return run.first


def _last(run: SentRun) -> int:
    return run.last


def _upto(run: SentRun) -> int:
    return run.upto
