"""The operator of a simulated cluster: creates, changes and deletes queues, lets peers join and leave.

Every command is an entry of the metadata lane and is repeated with its write id until there is an answer, as the
command line does. One command is in progress at a time. A deleted queue is created again, so that the clients that use
its name can finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from msgspec import Struct

from avow.errors import is_transient
from avow.node.answers import Answer, Done, Lost, Refusal
from avow.node.node import Node
from avow.queue.commands import Command, PeerCommand, QueueCommand, RetentionRules, encode
from avow.wire.messages import Kind
from avow_lab.checkers.metadata import MetadataLedger
from avow_lab.checkers.two_phase import Violation
from avow_lab.simulator.driver import Submit
from avow_lab.simulator.plan import Slot
from avow_lab.simulator.world import Machine

JOINER_IDENTITY: Final = 1000  # the first identity of peers that join; founders' are their numbers


def identity_of(number: int) -> bytes:
    return UUID(int=number).bytes


class Task(Struct):
    kind: int
    command: Command
    write_id: bytes


class Operator:
    """Driven like a client. `started` is called with the number and the identity of a peer that was admitted."""

    number = 0

    def __init__(self, *, rng: Random, metadata: MetadataLedger, started: Callable[[int, bytes], None]) -> None:
        self._rng, self._metadata, self._started = rng, metadata, started
        self._tasks: deque[Task] = deque()
        self._counter = 0
        self._joiners = 0
        self.attempt = 0
        self.operation: Task | None = None

    # ------------------------------------------------------------------ commands

    def change_queue(self, slot: Slot) -> None:
        """Delete the queue and create it again, or change its retention rules."""
        if any(isinstance(task.command, QueueCommand) and task.command.name == slot.name for task in self._waiting()):
            return
        if self._rng.random() < 0.75:
            self._add(Kind.QUEUE, QueueCommand("delete", slot.name))
            self._add(Kind.QUEUE, slot.create(self._metadata.voters))
        else:
            rules = RetentionRules(size_bytes=200) if self._rng.random() < 0.5 else RetentionRules(passed=True)
            self._add(Kind.QUEUE, QueueCommand("change", slot.name, retention=rules))

    def let_join(self) -> None:
        identity = identity_of(JOINER_IDENTITY + self._joiners)
        self._joiners += 1
        self._add(Kind.PEER, PeerCommand("join", 0, identity, f"h:{self._joiners}", ""))

    def let_leave(self, number: int) -> None:
        self._add(Kind.PEER, PeerCommand("leave", number))

    @property
    def changes_peers(self) -> bool:
        return any(isinstance(task.command, PeerCommand) for task in self._waiting())

    def _waiting(self) -> list[Task]:
        return [*([self.operation] if self.operation is not None else []), *self._tasks]

    def _add(self, kind: int, command: Command) -> None:
        self._counter += 1
        self._tasks.append(Task(kind, command, b"operator%08d" % self._counter))

    # ------------------------------------------------------------------ as a client

    @property
    def busy(self) -> bool:
        return self.operation is not None

    @property
    def finished(self) -> bool:
        """Always false: further tasks may come. `idle` says whether there are any now."""
        return False

    @property
    def idle(self) -> bool:
        return self.operation is None and not self._tasks

    def begin(self, now_ms: int) -> bool:  # noqa: ARG002
        if self._tasks:
            self.operation = self._tasks.popleft()
        self.attempt += 1
        return self.operation is not None

    def outdated(self) -> bool:
        return False

    def target(self, machines: dict[int, Machine[Node]], addresses: list[int]) -> Machine[Node] | None:
        return machines[addresses[int(self._rng.random() * len(addresses))]]

    def parcel(self, target: Machine[Node], now_ms: int) -> Submit[Node]:  # noqa: ARG002
        assert self.operation is not None
        return partial(self._submit, self.operation)

    @staticmethod
    def _submit(task: Task, node: Node, request: int, now: float) -> Answer | None:
        node.command(request, task.kind, encode(task.command), write_id=task.write_id, now=now)
        return None

    def hears_more(self, answer: Answer) -> bool:  # noqa: ARG002
        return False

    def give_up(self) -> None:
        """The write id is the same in every attempt."""

    def hear(self, answer: Answer) -> bool:
        task = self.operation
        assert task is not None
        if isinstance(answer, Lost) or (isinstance(answer, Refusal) and is_transient(answer.code)):
            return False
        self.operation = None
        if isinstance(answer, Refusal):
            self._metadata.refuse(task.write_id, answer.code)
            return True
        if not isinstance(answer, Done):
            raise Violation("refused", f"{task.command} was answered {answer}")
        self._metadata.acknowledge(task.write_id, answer.first_version, answer.last_version)
        command = task.command
        if isinstance(command, PeerCommand) and command.action == "join":
            self._started(answer.first_version, command.identity)
        return True
