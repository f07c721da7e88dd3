"""What came over a channel and the application has not got yet, with the commits that lie in between.

A commit comes to the application after everything it covers was handed over, never before: that is what makes its
acknowledgement mean something. Values that nobody takes are bounded by what the channel takes beyond its last
acknowledged commit. Commits at one place are not bounded by anything but this: the first and the newest are kept, and
between them they say all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avow.channel.protocol import CommitDelivered


class Inbox:
    def __init__(self) -> None:
        self._values: deque[memoryview] = deque()
        self._handed_to = 0  # the last message the application has got
        self._commits: deque[CommitDelivered] = deque()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def commits_count(self) -> int:
        return len(self._commits)

    def put(self, values: Iterable[memoryview]) -> None:
        self._values.extend(values)

    def take(self) -> bytes:
        self._handed_to += 1
        return bytes(self._values.popleft())

    def take_all(self) -> list[memoryview]:
        values = list(self._values)
        self._values.clear()
        self._handed_to += len(values)
        return values

    def passed_by(self, count: int) -> None:
        """So many were handed over without lying here."""
        self._handed_to += count

    def put_commit(self, commit: CommitDelivered) -> None:
        commits = self._commits
        if len(commits) > 1 and commits[-1].upto == commits[-2].upto == commit.upto:
            commits.pop()
        commits.append(commit)

    def take_commit(self) -> int:
        """The next commit of which the application has got everything; 0: there is none."""
        if self._commits and self._commits[0].upto <= self._handed_to:
            return self._commits.popleft().id
        return 0
