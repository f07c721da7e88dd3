"""Lets simulated clients talk to simulated peers: requests and answers travel, get lost, come late.

An attempt goes to one peer and is given up after a while; the client then tries again, perhaps elsewhere. Answers to
attempts that were given up are ignored, as if the connection had been closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from avow.peer.answers import Answer
from avow.testing.world import Machine, Replica, World

ATTEMPT_S: Final = 0.4


class DrivenClient(Protocol):
    number: int
    attempt: int

    @property
    def busy(self) -> bool:
        """An operation is under way."""
        ...

    @property
    def finished(self) -> bool: ...

    def begin(self, now_ms: int) -> object | None:
        """Start the next operation; None when there is nothing left to do."""
        ...

    def hear(self, answer: Answer) -> bool:
        """True when the operation is over, False when it must be tried again."""
        ...

    def hears_more(self, answer: Answer) -> bool:
        """This answer is not the last one to the same attempt."""
        ...

    def give_up(self) -> None:
        """No answer came to the attempt under way."""
        ...


R = TypeVar("R", bound=Replica)
C = TypeVar("C", bound=DrivenClient)


class Driver(ABC, Generic[R, C]):
    def __init__(self, world: World[R], clients: list[C], *, addresses: Callable[[], list[int]]) -> None:
        self._world, self.clients, self._addresses = world, clients, addresses
        self._requests: dict[int, tuple[C, int]] = {}
        self._next_request = 0
        world.on_answer = self._answered
        for client in clients:
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))

    @property
    def finished(self) -> bool:
        return all(client.finished for client in self.clients)

    @abstractmethod
    def _parcel(self, client: C) -> Callable[[R, int, Machine[R]], None]:
        """What the attempt does when it arrives: (replica, request, machine)."""

    def _target(self, client: C) -> Machine[R] | None:  # noqa: ARG002
        """Where the next attempt goes; None: nowhere now."""
        addresses = self._addresses()
        return self._world.machines[addresses[int(self._world.rng.random() * len(addresses))]]

    def _step(self, client: C) -> None:
        if client.begin(int(self._world.now * 1000)) is not None:
            self._attempt(client)

    def _attempt(self, client: C) -> None:
        world = self._world
        client.attempt += 1
        target = self._target(client)
        if target is None:
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))
            return
        self._next_request += 1
        request = self._next_request
        self._requests[request] = (client, client.attempt)
        if world.rng.random() >= world.loss:
            world.call(world.delay_s(), partial(self._arrives, target, request, self._parcel(client)))
        world.call(ATTEMPT_S, partial(self._given_up, client, client.attempt, request))

    def _arrives(self, target: Machine[R], request: int, parcel: Callable[[R, int, Machine[R]], None]) -> None:
        world, replica = self._world, target.replica
        if replica is not None and world.now >= target.paused_until_s:
            parcel(replica, request, target)
            world.perform(target)

    def _answered(self, request: int, answer: Answer) -> None:
        world = self._world
        if request in self._requests and world.rng.random() >= world.loss:
            world.call(world.delay_s(), partial(self._heard, request, answer))

    def _heard(self, request: int, answer: Answer) -> None:
        known = self._requests.get(request)
        if known is None or known[0].attempt != known[1]:
            return
        client, world = known[0], self._world
        if world.trace is not None:
            world.note(f"client {client.number} hears {answer}")
        if client.hears_more(answer):
            return
        del self._requests[request]
        if client.hear(answer):
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))
        else:
            client.attempt += 1  # the attempt is over; the next one after a moment
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))

    def _given_up(self, client: C, attempt: int, request: int) -> None:
        if client.attempt == attempt and client.busy:
            self._requests.pop(request, None)
            client.give_up()
            self._attempt(client)

    def _retry(self, client: C, attempt: int) -> None:
        if client.attempt == attempt and client.busy:
            self._attempt(client)
