"""The effect multiplexer: a node's lanes and queues share one disk and the links, with one drain and one sync.

The effects of all components are joined into one record. For each record that persists something the mux remembers the
components it came from, and passes the proof of its sync to each of them. Components that were not touched since
the last drain are skipped. The mux does not decide when a message leaves (`replication.effect_buffer` does).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from msgspec import Struct

from avow.node.answers import Answer
from avow.replication.durable import Synced
from avow.replication.effects import Effects, Persist, SaveRun
from avow.wire.messages import Message

Collect: TypeAlias = Callable[[list[tuple[int, Answer]]], None]


class NodeEffects(Struct, gc=False):
    """Like `replication.effects.Effects`, with the route of each message."""

    sends: list[tuple[int, int, Message]]
    persist: list[Persist]


class Component(Protocol):
    """A lane or a pub-sub queue, as the node drives it."""

    def receive(self, source: int, message: Message, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def persisted(self, proof: Synced) -> None: ...
    def drain(self) -> Effects | None: ...
    def take_answers(self) -> list[tuple[int, Answer]]: ...
    def disk_full(self, *, full: bool) -> None: ...
    def cancel(self, request: int) -> None: ...


class EffectMux:
    """The components of one node by route. `collect` is called with the answers of a component that has some."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self.components: dict[int, Component] = {}
        self.find = self.components.get  # the component for messages of a route; None: not on this peer
        self.touched: dict[int, Component] = {}  # what the next drain looks at
        self.outstanding: deque[tuple[list[tuple[int, Component]], int]] = deque()  # (components, run number)
        self.saves: list[Persist] = []  # of the node itself; written before those of its components
        self.full = False

    def add(self, route: int, component: Component) -> None:
        component.disk_full(full=self.full)
        self.components[route] = self.touched[route] = component

    def remove(self, route: int) -> None:
        """Remove a component. It gets no proofs for its outstanding records."""
        component = self.components.pop(route)
        self.touched.pop(route, None)
        for inner, _ in self.outstanding:
            inner[:] = [item for item in inner if item[1] is not component]

    def touch(self, route: int) -> None:
        self.touched[route] = self.components[route]

    def tick(self, now: float) -> None:
        for route, component in list(self.components.items()):
            component.tick(now)
            self.touched[route] = component

    def disk_full(self, *, full: bool) -> None:
        if full != self.full:
            self.full = full
            for component in self.components.values():
                component.disk_full(full=full)

    def persisted(self, proof: Synced) -> int:
        """The oldest outstanding effects are synced: pass the proof to each component that contributed to them.

        Returns the run number that is now durable; 0: the record had none.
        """
        inner, run = self.outstanding.popleft()
        for route, component in inner:
            component.persisted(proof)
            self.touched[route] = component
        return run

    def drain(self) -> NodeEffects | None:
        touched, persist = self.touched, self.saves
        if not touched and not persist:
            return None
        self.touched = {}
        run = 0
        if persist:
            self.saves = []
            run = next((operation.incarnation for operation in persist if isinstance(operation, SaveRun)), 0)
        sends: list[tuple[int, int, Message]] = []
        inner: list[tuple[int, Component]] = []
        for route, component in touched.items():
            drained = component.drain()
            answers = component.take_answers()
            if answers:
                self._collect(answers)
            if drained is None:
                continue
            for peer, message in drained.sends:
                sends.append((peer, route, message))
            if drained.persist:
                persist = persist + drained.persist if persist else drained.persist
                inner.append((route, component))
        if persist:
            self.outstanding.append((inner, run))
        return NodeEffects(sends, persist) if persist or sends else None
