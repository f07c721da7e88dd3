"""Lets simulated clients talk to simulated peers: requests and answers travel, get lost, come late.

An attempt goes to one peer and is given up after a while; the client then tries another one. Answers to attempts that
were given up are ignored, as if the connection had been closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from avow.peer.answers import Answer
from avow.testing.clients import Client, Operation
from avow.testing.world import Machine, Replica, World

R = TypeVar("R", bound=Replica)

ATTEMPT_S: Final = 0.4


class Driver(Generic[R]):
    def __init__(
        self,
        world: World[R],
        clients: list[Client],
        *,
        submit: Callable[[R, int, Operation, float], None],
        addresses: Callable[[], list[int]],
    ) -> None:
        self._world, self.clients = world, clients
        self._submit, self._addresses = submit, addresses
        self._requests: dict[int, tuple[Client, int]] = {}
        self._next_request = 0
        world.on_answer = self._answered
        for client in clients:
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))

    @property
    def finished(self) -> bool:
        return all(client.finished for client in self.clients)

    def _step(self, client: Client) -> None:
        world = self._world
        if client.begin(int(world.now * 1000)) is not None:
            self._attempt(client)

    def _attempt(self, client: Client) -> None:
        world = self._world
        addresses = self._addresses()
        target = world.machines[addresses[int(world.rng.random() * len(addresses))]]
        self._next_request += 1
        request = self._next_request
        client.attempt += 1
        self._requests[request] = (client, client.attempt)
        if world.rng.random() >= world.loss:
            assert client.operation is not None
            world.call(world._delay(), partial(self._arrives, target, request, client.operation))
        world.call(ATTEMPT_S, partial(self._given_up, client, client.attempt, request))

    def _arrives(self, target: Machine[R], request: int, operation: Operation) -> None:
        world, replica = self._world, target.replica
        if replica is None or world.now < target.paused_until_s:
            return
        self._submit(replica, request, operation, target.clock(world.now))
        world.perform(target)

    def _answered(self, request: int, answer: Answer) -> None:
        world = self._world
        if request in self._requests and world.rng.random() >= world.loss:
            world.call(world._delay(), partial(self._heard, request, answer))

    def _heard(self, request: int, answer: Answer) -> None:
        known = self._requests.pop(request, None)
        if known is None or known[0].attempt != known[1]:
            return
        client = known[0]
        world = self._world
        if world.trace is not None:
            world.note(f"client {client.number} hears {answer}")
        if client.hear(answer):
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))
        else:
            client.attempt += 1  # the attempt is over; the next one after a moment
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))

    def _given_up(self, client: Client, attempt: int, request: int) -> None:
        if client.attempt == attempt and client.operation is not None:
            self._requests.pop(request, None)
            self._attempt(client)

    def _retry(self, client: Client, attempt: int) -> None:
        if client.attempt == attempt and client.operation is not None:
            self._attempt(client)
