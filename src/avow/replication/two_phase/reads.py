"""Linearizable reads: which cursor must a reader have reached, and is that still mine to say?

A coordinator may have been replaced without knowing it. So a read notes the cursor, then one round of Confirm to all
and Confirmed from a quorum shows that no higher ballot was promised by that quorum before the read began. Reads that
arrive while a round is under way share the next one.
"""

from __future__ import annotations


class ReadRounds:
    __slots__ = ("_flying", "_waiting", "confirmed_by", "round")

    def __init__(self) -> None:
        self.round = 0
        self.confirmed_by: set[int] = set()
        self._flying: list[tuple[int, int]] = []  # (request, cursor) of the round under way
        self._waiting: list[tuple[int, int]] = []

    def add(self, request: int, cursor: int) -> None:
        self._waiting.append((request, cursor))

    def next_round(self) -> bool:
        """Start a round for what waits; False when one is under way or nothing waits."""
        if self._flying or not self._waiting:
            return False
        self._flying, self._waiting = self._waiting, []
        self.round += 1
        self.confirmed_by.clear()
        return True

    @property
    def under_way(self) -> bool:
        return bool(self._flying)

    def finish(self) -> list[tuple[int, int]]:
        """The round has its quorum: these reads may be served at these cursors."""
        done, self._flying = self._flying, []
        return done

    def abandon(self) -> list[int]:
        """No longer the coordinator: these requests got no answer."""
        lost = [request for request, _ in self._flying + self._waiting]
        self._flying, self._waiting = [], []
        return lost
