"""The connection of simulated clients to simulated peers: requests and answers are delayed and lost.

An attempt goes to one peer and is given up after a while; the client then tries again, perhaps at another peer. Answers
to attempts that were given up are ignored, as if the connection had been closed. A client without answers waits longer
and longer: otherwise repetitions would overload a cluster whose links carry one entry at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from avow.node.answers import Answer
from avow_lab.simulator.world import Machine, Replica, World

ATTEMPT_S: Final = 0.4
BACK_OFF_AFTER: Final = 6  # unanswered attempts in a row; after these each waits longer
ATTEMPT_S_MAX: Final = 6.4
R = TypeVar("R", bound=Replica)
R_contra = TypeVar("R_contra", bound=Replica, contravariant=True)


class Submit(Protocol[R_contra]):
    """What an attempt does when it arrives at a peer. Returns an answer if there is one at once."""

    def __call__(self, replica: R_contra, request: int, now: float) -> Answer | None: ...


class DrivenClient(Protocol[R]):
    number: int
    attempt: int

    @property
    def busy(self) -> bool:
        """An operation is in progress."""
        ...

    @property
    def finished(self) -> bool: ...

    def begin(self, now_ms: int) -> bool:
        """Start the next operation; False when there is nothing to do now."""
        ...

    def outdated(self) -> bool:
        """Whether the operation in progress was given up because its queue was deleted."""
        ...

    def target(self, machines: dict[int, Machine[R]], addresses: list[int]) -> Machine[R] | None:
        """The machine that the next attempt goes to; None: no machine at present."""
        ...

    def parcel(self, target: Machine[R], now_ms: int) -> Submit[R]: ...

    def hear(self, answer: Answer) -> bool:
        """True: the operation is over. False: it must be tried again."""
        ...

    def hears_more(self, answer: Answer) -> bool:
        """Whether another answer to the same attempt follows."""
        ...

    def give_up(self) -> None:
        """The current attempt got no answer."""
        ...


class Driver(Generic[R]):
    def __init__(self, world: World[R], clients: list[DrivenClient[R]], *, addresses: Callable[[], list[int]]) -> None:
        self._world, self.clients, self._addresses = world, clients, addresses
        self._requests: dict[int, tuple[DrivenClient[R], int]] = {}
        self._next_request = 0
        self._unanswered: dict[int, int] = {}  # client -> attempts in a row
        world.on_answer = self._answered
        for client in clients:
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))

    @property
    def finished(self) -> bool:
        return all(client.finished for client in self.clients)

    def _step(self, client: DrivenClient[R]) -> None:
        world = self._world
        if client.begin(int(world.now * 1000)):
            self._attempt(client)
        elif not client.finished:
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._step, client))

    def _attempt(self, client: DrivenClient[R]) -> None:
        world = self._world
        client.attempt += 1
        if client.outdated():
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))
            return
        target = client.target(world.machines, self._addresses())
        if target is None:
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))
            return
        self._next_request += 1
        request = self._next_request
        self._requests[request] = (client, client.attempt)
        if world.rng.random() >= world.loss:
            parcel = client.parcel(target, int(world.now * 1000))
            world.call(world.delay_s(), partial(self._arrives, target, request, parcel))
        longer = max(0, self._unanswered.get(client.number, 0) - BACK_OFF_AFTER)
        wait_s = min(ATTEMPT_S_MAX, ATTEMPT_S * 2**longer) if longer else ATTEMPT_S
        world.call(wait_s, partial(self._given_up, client, client.attempt, request, target))

    def _arrives(self, target: Machine[R], request: int, submit: Submit[R]) -> None:
        world, replica = self._world, target.replica
        if replica is not None and world.now >= target.paused_until_s:
            answer = submit(replica, request, target.clock(world.now))
            world.perform(target)
            if answer is not None:
                self._answered(request, answer)

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
            world.note(f"client {client.number} gets {answer}")
        if client.hears_more(answer):
            return
        del self._requests[request]
        self._unanswered.pop(client.number, None)
        if client.hear(answer):
            world.call(world.rng.random() * world.plan.think_s, partial(self._step, client))
        else:
            client.attempt += 1  # the attempt is over; the next one after a moment
            world.call(0.02 + 0.1 * world.rng.random(), partial(self._retry, client, client.attempt))

    def _given_up(self, client: DrivenClient[R], attempt: int, request: int, target: Machine[R]) -> None:
        if client.attempt == attempt and client.busy:
            self._requests.pop(request, None)
            if target.replica is not None:
                target.replica.cancel(request)  # the connection is closed
            self._unanswered[client.number] = self._unanswered.get(client.number, 0) + 1
            client.give_up()
            self._attempt(client)

    def _retry(self, client: DrivenClient[R], attempt: int) -> None:
        if client.attempt == attempt and client.busy:
            self._attempt(client)
