"""Notifications of a pub-sub core to its queue, in six short lists that are taken after each input.

Ranges are (lane, after, to), meaning the entries after+1 .. to.

    begun       copies that restart after the removed entries, (lane, position, state there): take this list first
    committed   newly readable here
    accepted    own lane committed up to `to`: (lane, to, peers)
    refused     own entries that can never be committed
    lost        own lanes this run must not append to any more: make the next incarnation durable, call `new_run`
    settled     (lane, end) to propose as LANE_END
"""

from __future__ import annotations


class Notifications:
    __slots__ = ("_accepted", "_begun", "_committed", "_lost", "_refused", "_settled")

    def __init__(self) -> None:
        self._begun: list[tuple[int, int, bytes]] = []
        self._committed: list[tuple[int, int, int]] = []
        self._accepted: list[tuple[int, int, tuple[int, ...]]] = []
        self._refused: list[tuple[int, int, int]] = []
        self._lost: list[int] = []
        self._settled: list[tuple[int, int]] = []

    @property
    def any(self) -> bool:
        """Whether a list is not empty. One expression, because it is evaluated after every input."""
        return bool(self._committed or self._accepted or self._refused or self._lost or self._settled or self._begun)

    # ------------------------------------------------------------------ added by the roles

    def begun(self, lane: int, position: int, state: bytes) -> None:
        self._begun.append((lane, position, state))

    def committed(self, lane: int, *, after: int, to: int) -> None:
        self._committed.append((lane, after, to))

    def accepted(self, lane: int, to: int, peers: tuple[int, ...]) -> None:
        self._accepted.append((lane, to, peers))

    def refused(self, lane: int, *, after: int, to: int) -> None:
        self._refused.append((lane, after, to))

    def lost(self, lane: int) -> None:
        self._lost.append(lane)

    def settled(self, lane: int, end: int) -> None:
        self._settled.append((lane, end))

    def drop(self, lane: int) -> None:
        """Remove the notifications of a dropped lane."""
        self._committed = [item for item in self._committed if item[0] != lane]
        self._accepted = [item for item in self._accepted if item[0] != lane]
        self._refused = [item for item in self._refused if item[0] != lane]
        self._settled = [item for item in self._settled if item[0] != lane]

    # ------------------------------------------------------------------ taken by the queue

    def take_begun(self) -> list[tuple[int, int, bytes]]:
        taken, self._begun = self._begun, []
        return taken

    def take_committed(self) -> list[tuple[int, int, int]]:
        taken, self._committed = self._committed, []
        return taken

    def take_accepted(self) -> list[tuple[int, int, tuple[int, ...]]]:
        taken, self._accepted = self._accepted, []
        return taken

    def take_refused(self) -> list[tuple[int, int, int]]:
        taken, self._refused = self._refused, []
        return taken

    def take_lost(self) -> list[int]:
        taken, self._lost = self._lost, []
        return taken

    def take_settled(self) -> list[tuple[int, int]]:
        taken, self._settled = self._settled, []
        return taken
