"""One direction of a channel as plain lists: what was sent, what arrived, what was acknowledged.

This is the specification a second time, in the slow and obvious way, written without looking at the core. It predicts
everything that an application can see: the id of the next commit, when the sender is suspended and when it resumes,
what is pending, and the fate of each pending message if the channel ended now. It does not predict when something
arrives; it checks that what arrives is the only thing that may.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from avow import limits
from avow.channel.protocol.events import VALUE_OVERHEAD_BYTES, Fate, Pending
from avow_lab.checkers.two_phase import Violation


class Share(Struct, frozen=True, kw_only=True):
    """The settings of one end."""

    pending_count: int = 4
    pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES
    cap_count: int = limits.CHANNEL_CAP_COUNT_MIN
    cap_bytes: int = limits.CHANNEL_CAP_SIZE_BYTES_MIN
    last_commit: int = 0


class Direction:
    """`name` is the sending end's. Numbers of messages begin at 1; every list is in the order of sending."""

    def __init__(self, name: str, share: Share) -> None:
        self.name, self.share = name, share
        self.cap_count, self.cap_bytes = limits.CHANNEL_CAP_COUNT_MIN, limits.CHANNEL_CAP_SIZE_BYTES_MIN
        # sent
        self.values: list[bytes] = []
        self.sizes = [0]  # of everything up to each message
        self.commits_before: list[int] = []  # the newest commit when each message was sent
        self.covered_by: list[int] = []  # the first commit that covers each message, of those that one covers
        self.uptos: dict[int, int] = {}
        self.last_commit = share.last_commit
        self.issued = 0  # the newest commit; ids may be skipped before the next
        self.suspended = False
        # arrived
        self.received = 0
        self.delivered: list[int] = []
        self.acked = 0
        self.acked_ids: set[int] = set()
        # what the sender knows
        self.known_acked = self.released = self.heard_to = 0
        self.waiting: set[int] = set()  # commits whose waiter has not completed
        self.final = False
        # what left the sender
        self.given_to = 0
        self.never: int | None = None  # messages from this number on were handed back as unsent

    # ------------------------------------------------------------------ the sending application

    @property
    def count(self) -> int:
        return len(self.values) - self.released

    @property
    def size_bytes(self) -> int:
        return self.sizes[-1] - self.sizes[self.released]

    @property
    def limit_count(self) -> int:
        return min(self.share.pending_count, self.cap_count)

    @property
    def limit_bytes(self) -> int:
        one_more = limits.CHANNEL_VALUE_SIZE_BYTES_MAX + VALUE_OVERHEAD_BYTES
        return min(self.share.pending_bytes, self.cap_bytes - one_more)

    @property
    def at_limit(self) -> bool:
        return self.count >= self.limit_count or self.size_bytes >= self.limit_bytes

    def send(self, value: bytes) -> int:
        self.values.append(value)
        self.sizes.append(self.sizes[-1] + len(value) + VALUE_OVERHEAD_BYTES)
        self.commits_before.append(self.issued)
        if self.at_limit:
            self._issue()
            self.suspended = True
        return len(self.values)

    def commit(self) -> int:
        self._issue()
        self.waiting.add(self.last_commit)
        return self.last_commit

    def _issue(self) -> None:
        self.last_commit += 1
        self.issued = self.last_commit
        self.uptos[self.last_commit] = len(self.values)
        self.covered_by += [self.last_commit] * (len(self.values) - len(self.covered_by))

    def room_for(self, pending: Sequence[Pending]) -> bool:
        count = self.count + len(pending) - 1
        size = self.size_bytes + sum(len(one.value) + VALUE_OVERHEAD_BYTES for one in pending[:-1])
        return not pending or (count < self.limit_count and size < self.limit_bytes)

    def resend(self, pending: Sequence[Pending]) -> None:
        """Resent messages lie between the same commits as before."""
        for at, one in enumerate(pending):
            if one.commit:
                self.last_commit = max(self.last_commit, one.commit - 1)
            self.send(bytes(one.value))
            last_of_commit = at + 1 == len(pending) or pending[at + 1].commit != one.commit
            if one.commit and last_of_commit and len(self.covered_by) < len(self.values):
                self._issue()

    # ------------------------------------------------------------------ the receiving application

    @property
    def last_delivered(self) -> int:
        return self.delivered[-1] if self.delivered else 0

    @property
    def uncovered(self) -> tuple[int, int]:
        """Messages and bytes that arrived beyond the last commit this end acknowledged."""
        covered = self.uptos.get(self.acked, 0)
        return self.received - covered, self.sizes[self.received] - self.sizes[covered]

    def deliver(self, first: int, values: Sequence[memoryview]) -> None:
        if first != self.received + 1:
            raise Violation("order", f"message {first} of the {self.name} came after {self.received}")
        last = self.received + len(values)
        if self.values[self.received : last] != [bytes(value) for value in values]:
            raise Violation("order", f"messages {first} to {last} of the {self.name} are not what was sent")
        if self.commits_before[last - 1] > self.last_delivered:
            raise Violation("commit", f"message {last} of the {self.name} came before a commit issued before it")
        if self.never is not None and last >= self.never:
            raise Violation("fate", f"message {last} of the {self.name} was handed back as unsent, and came")
        self.received = last

    def deliver_commit(self, commit_id: int, upto: int) -> None:
        if self.uptos.get(commit_id) != upto or upto != self.received:
            raise Violation(
                "commit",
                f"commit {commit_id} of the {self.name} covers {self.uptos.get(commit_id)}, reported {upto}, "
                f"and came after {self.received}",
            )
        if commit_id <= self.last_delivered:
            raise Violation("commit", f"commit {commit_id} of the {self.name} came after {self.last_delivered}")
        self.delivered.append(commit_id)

    def ack(self, commit_id: int) -> None:
        if commit_id > self.acked:
            self.acked = commit_id
            self.acked_ids.add(commit_id)

    # ------------------------------------------------------------------ acknowledgements

    def caps_heard(self, share: Share) -> None:
        self.cap_count, self.cap_bytes = share.cap_count, share.cap_bytes

    def learn(self, commit_id: int) -> None:
        if commit_id not in self.acked_ids or commit_id <= self.known_acked:
            raise Violation(
                "ack", f"commit {commit_id} of the {self.name} completed without exactly this acknowledgement"
            )
        self.known_acked, self.released = commit_id, self.uptos[commit_id]
        self.heard_to = max(self.heard_to, self.released)
        self.waiting = {waiting for waiting in self.waiting if waiting > commit_id}
        low = self.count <= self.limit_count // 2 and self.size_bytes <= self.limit_bytes // 2
        self.suspended = self.suspended and not low

    def fate(self, number: int) -> Fate:
        if number <= self.heard_to:
            return "delivered"
        return "unsent" if self.final or number > self.given_to else "unknown"

    def pending(self) -> list[Pending]:
        uncommitted = [0] * (len(self.values) - len(self.covered_by))
        covered_by = self.covered_by + uncommitted
        return [
            Pending(number, self.values[number - 1], self.fate(number), covered_by[number - 1])
            for number in range(self.released + 1, len(self.values) + 1)
        ]
