"""Many parts, one drain, one sync: how a node's lanes and queues share a disk and the links.

Each part drains effects with a ticket of its own. They are joined into one record with one ticket, and `_marks`
remembers for each of those which parts' tickets it stands for. Parts that were not touched since the last drain are not
looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from msgspec import Struct

from avow.peer.answers import Answer
from avow.replication.effects import Effects, Persist, SaveRun
from avow.wire.messages import Message


class NodeEffects(Struct, gc=False):
    """As `replication.effects.Effects`, with the route of each message."""

    ticket: int
    sends_now: list[tuple[int, int, Message]]
    persist: list[Persist]
    sends_synced: list[tuple[int, int, Message]]


class Part(Protocol):
    """A lane or a pub-sub queue, as the node drives it."""

    answers: list[tuple[int, Answer]]

    def receive(self, source: int, message: Message, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def persisted(self, ticket: int) -> None: ...
    def drain(self) -> Effects | None: ...
    def disk_full(self, *, full: bool) -> None: ...
    def cancel(self, request: int) -> None: ...


class Parts(ABC):
    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}  # route -> part
        self._touched: dict[int, Part] = {}
        self._marks: deque[tuple[int, list[tuple[int, Part, int]], int]] = deque()  # ticket, parts' tickets, run
        self._ticket = 0
        self._saves: list[Persist] = []  # of the node itself, before those of its parts
        self._full = False

    def persisted(self, ticket: int) -> None:
        marks = self._marks
        while marks and marks[0][0] <= ticket:
            _, inner, run = marks.popleft()
            for route, part, of_part in inner:
                part.persisted(of_part)
                self._touched[route] = part
            if run:
                self._run_is_durable(run)
        self._follow_metadata()

    def disk_full(self, *, full: bool) -> None:
        if full != self._full:
            self._full = full
            for part in self._parts.values():
                part.disk_full(full=full)

    def drain(self) -> NodeEffects | None:
        touched, self._touched = self._touched, {}
        effects = NodeEffects(0, [], self._saves, [])
        run = next((op.incarnation for op in self._saves if isinstance(op, SaveRun)), 0)
        self._saves = []
        inner: list[tuple[int, Part, int]] = []
        for route, part in touched.items():
            drained = part.drain()
            if part.answers:
                self._collect(part)
            if drained is None:
                continue
            effects.sends_now += [(peer, route, message) for peer, message in drained.sends_now]
            if drained.ticket:
                effects.persist += drained.persist
                effects.sends_synced += [(peer, route, message) for peer, message in drained.sends_synced]
                inner.append((route, part, drained.ticket))
        if inner or effects.persist:
            self._ticket += 1
            effects.ticket = self._ticket
            self._marks.append((self._ticket, inner, run))
        return effects if effects.ticket or effects.sends_now else None

    def _remove(self, route: int) -> None:
        """A part is gone; its tickets mean nothing any more."""
        part = self._parts.pop(route)
        self._touched.pop(route, None)
        for _, inner, _ in self._marks:
            inner[:] = [item for item in inner if item[1] is not part]

    @abstractmethod
    def _collect(self, part: Part) -> None:
        """Take the answers of a part."""

    @abstractmethod
    def _run_is_durable(self, run: int) -> None:
        """The number of the next run was synced."""

    @abstractmethod
    def _follow_metadata(self) -> None:
        """The metadata lane may have said something."""
