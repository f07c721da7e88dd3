"""A whole cluster in one thread: peers, their disks, the network between them, their clocks, their clients.

Time is a number and every delay is drawn from the seed's random stream, so a run is a list of events in the order of a
heap. The node with all its lanes is the real one, and the store is the one in memory. Sockets, files and clocks are
simulated. The network loses, repeats, delays and reorders messages; links are cut in one direction or both; a link ends
with either end's run, as a TCP connection does. A disk loses what was not synced, tears a write in the middle, damages
an entry, fills up, is slow. A clock has an offset, drifts and jumps. A process crashes between any two events, or in
the middle of its effects.

This module is the loop and the machines; `fault_schedule` breaks them, clients use them, and the checkers watch.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from msgspec.structs import replace

from avow.node.answers import Answer
from avow.node.records import NodeEffects
from avow.replication.durable import Synced
from avow.replication.effects import Persist, SaveRun
from avow.storage.memory import MemoryStore
from avow.wire.messages import Enqueue, Install, Message, Stored, describe
from avow_lab.simulator.plan import Plan

DELIVER: Final = 0
SYNC: Final = 1
TICK: Final = 2
CALL: Final = 3  # anything else that was scheduled: requests, answers, faults
TICK_S: Final = 0.025
EVENTS_MAX: Final = 300_000
EVENTS_BETWEEN_CHECKS: Final = 32
TRACE_LINES_MAX: Final = 40_000
STRAY_EVERY: Final = 40  # messages


class Replica(Protocol):
    """What a machine runs: a node, or an object with the same interface."""

    answers: list[tuple[int, Answer]]

    def receive(self, source: int, route: int, message: Message, now: float) -> object: ...
    def met(self, peer: int, *, run: int, version: int) -> None: ...
    def tick(self, now: float, now_ms: int) -> None: ...
    def persisted(self, proof: Synced) -> None: ...
    def disk_full(self, *, full: bool) -> None: ...
    def cancel(self, request: int) -> None: ...
    def drain(self) -> NodeEffects | None: ...


R = TypeVar("R", bound=Replica)


class Machine(Generic[R]):
    """One peer's computer: its disk and clock outlive the process."""

    __slots__ = (
        "clock_offset_s", "clock_rate", "crash_after_sends", "gone", "heard_run", "number", "paused_until_s", "replica",
        "run", "store", "sync_factor", "syncing",
    )  # fmt: skip

    def __init__(self, number: int, store: MemoryStore) -> None:
        self.number = number
        self.store = store
        self.replica: R | None = None  # None: the process is down
        self.run = 0
        self.heard_run: dict[int, int] = {}
        self.clock_offset_s = 0.0
        self.clock_rate = 1.0
        self.sync_factor = 1.0
        self.syncing = 0  # how many writes the current sync covers; 0: none
        self.crash_after_sends = -1  # >= 0: the process crashes after this many further sends
        self.paused_until_s = 0.0
        self.gone = False  # it left the cluster and is not started again

    def clock(self, now: float) -> float:
        return self.clock_offset_s + now * self.clock_rate


class ProcessCrashed(Exception):
    """Raised inside `perform` when a machine crashes in the middle of its effects."""


class World(Generic[R]):
    store_class: type[MemoryStore] = MemoryStore

    def __init__(self, plan: Plan, *, boot: Callable[[World[R], Machine[R]], R], tracing: bool = False) -> None:
        self.plan = plan
        self.rng = Random(plan.seed)
        self._random = self.rng.random
        self._boot = boot
        self.now = 0.0
        self._folded = 0  # events whose times are in the hash already
        self.counts: dict[str, int] = {}
        self.machines: dict[int, Machine[R]] = {}
        self.blocked: set[int] = set()
        self.loss, self.duplicate = plan.loss, plan.duplicate
        self.on_answer: Callable[[int, Answer], None] = _ignore
        self.on_restart: Callable[[int], None] = _ignore
        self.on_met: Callable[[int, int], None] = _ignore
        self.founding_records: list[Persist] = []  # what the founders' disks hold at the start
        self._heap: list[tuple[float, int, int, object, int, int, object, int, int]] = []
        self._sequence = 0
        self._times: list[float] = []
        self._hash = hashlib.blake2b(digest_size=8)
        self.trace: list[str] | None = [] if tracing else None

    # ------------------------------------------------------------------ scheduling

    def call(self, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule an action. Events are processed in the order of their times, then in that of their scheduling."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay_s, self._sequence, CALL, action, 0, 0, None, 0, 0))

    def send(self, source: Machine[R], target: int, route: int, message: Message) -> None:
        chance = self._random()
        if chance < self.loss:
            self.count("messages lost")
            return
        machine = self.machines.get(target)
        if machine is None:  # it was admitted and has not been started
            return
        self._sequence += 1
        heap = self._heap
        delay_s = self.delay_s() if type(message) is not Install else self.plan.snapshot_delays * self.delay_s()
        heappush(
            heap,
            (
                self.now + delay_s,
                self._sequence,
                DELIVER,
                machine,
                source.number,
                route,
                message,
                machine.run,
                source.run,
            ),
        )
        if chance > 1.0 - self.duplicate:
            self._sequence += 1
            self.count("messages repeated")
            heappush(
                heap,
                (
                    self.now + self.delay_s(), self._sequence, DELIVER, machine, source.number, route, message,
                    machine.run, source.run,
                ),
            )  # fmt: skip

    def delay_s(self) -> float:
        """The delay of the next message."""
        plan, chance = self.plan, self._random()
        if chance < plan.straggler:
            return plan.delay_s * 10.0 * self._random()
        return plan.delay_s * (0.1 + 0.9 * chance)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ------------------------------------------------------------------ the loop

    @property
    def events(self) -> int:
        """Processed so far."""
        return self._folded + len(self._times) // 2

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Process events up to this time. `stop` is called from time to time; true ends the run earlier."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if stop is not None and stop():
                return
            self._run_some(until, EVENTS_BETWEEN_CHECKS)
            if self.trace is not None and len(self.trace) > TRACE_LINES_MAX:
                del self.trace[: TRACE_LINES_MAX // 2]
            if self.events > EVENTS_MAX:
                raise AssertionError(
                    f"{self.events} events by {self.now:.3f} s: the peers exchange messages without end"
                )
        self.now = until

    def _run_some(self, until: float, at_most: int) -> None:
        """The hot loop. `run` does what need not be done for every event."""
        heap, times = self._heap, self._times
        deliver = self._deliver
        for _ in range(at_most):
            if not heap or heap[0][0] > until:
                break
            now, sequence, kind, what, source, route, message, run, source_run = heappop(heap)
            self.now = now
            times.append(now)
            times.append(sequence)
            if kind == DELIVER:
                deliver(what, source, route, message, run, source_run)  # type: ignore[arg-type]
            elif kind == CALL:
                what()  # type: ignore[operator]
            elif kind == SYNC:
                self._sync(what, run)  # type: ignore[arg-type]
            else:
                self._tick(what, run)  # type: ignore[arg-type]
        if len(times) > 4096:
            self._fold_times()

    def _fold_times(self) -> None:
        self._hash.update(array("d", self._times).tobytes())
        self._folded += len(self._times) // 2
        self._times.clear()

    def trace_hash(self, *more: object) -> str:
        """The hash of all events' times and order so far, and of `more`. Equal seeds give equal hashes."""
        self._fold_times()
        digest = self._hash.copy()
        digest.update(repr(more).encode())
        return digest.hexdigest()

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {line}")

    def _deliver(
        self, machine: Machine[R], source: int, route: int, message: Message, run: int, source_run: int
    ) -> None:
        replica = machine.replica
        if replica is None or run != machine.run:
            return
        if self.blocked and (source << 8 | machine.number) in self.blocked:
            self.count("messages cut off")
            return
        if source_run != machine.heard_run.get(source):
            if source_run < machine.heard_run.get(source, 0):
                return
            machine.heard_run[source] = source_run
            replica.met(
                source, run=source_run, version=min(self.plan.version(source), self.plan.version(machine.number))
            )
            self.on_met(machine.number, source)
        if self.now < machine.paused_until_s:
            self._sequence += 1
            at = machine.paused_until_s
            heappush(self._heap, (at, self._sequence, DELIVER, machine, source, route, message, run, source_run))
            return
        if self.trace is not None:
            self.note(f"{source} -> {machine.number}  {route}: {describe(message)}")
        replica.receive(source, route, message, machine.clock_offset_s + self.now * machine.clock_rate)
        self.perform(machine)

    def _tick(self, machine: Machine[R], run: int) -> None:
        replica = machine.replica
        if replica is None or run != machine.run:
            return
        if self.now >= machine.paused_until_s:
            now = machine.clock(self.now)
            replica.tick(now, int(now * 1000))
            self.perform(machine)
        self._plan_tick(machine)

    def _plan_tick(self, machine: Machine[R]) -> None:
        self._sequence += 1
        delay = TICK_S * (0.8 + 0.4 * self._random())
        heappush(self._heap, (self.now + delay, self._sequence, TICK, machine, 0, 0, None, machine.run, 0))

    # ------------------------------------------------------------------ a replica's effects

    def perform(self, machine: Machine[R]) -> None:
        """Carry out the replica's effects. The process may crash in the middle of them."""
        replica = machine.replica
        if replica is None:
            return
        try:
            effects = replica.drain()
            if effects is not None:
                self._carry_out(machine, effects)
            if replica.answers:
                answers, replica.answers = replica.answers, []
                for request, answer in answers:
                    self._maybe_crash(machine)
                    self.on_answer(request, answer)
        except ProcessCrashed:
            self.crash(machine)

    def _carry_out(self, machine: Machine[R], effects: NodeEffects) -> None:
        for target, route, message in effects.sends:
            if machine.crash_after_sends >= 0:
                self._maybe_crash(machine)
            self.send(machine, target, route, message)
        if effects.persist:
            machine.store.write(effects.persist, SyncCallback(machine))
            if not machine.syncing:
                self._plan_sync(machine)

    def _maybe_crash(self, machine: Machine[R]) -> None:
        if machine.crash_after_sends >= 0:
            machine.crash_after_sends -= 1
            if machine.crash_after_sends < 0:
                raise ProcessCrashed

    def _plan_sync(self, machine: Machine[R]) -> None:
        machine.syncing = machine.store.pending
        self._sequence += 1
        delay = self.plan.sync_s * machine.sync_factor * (0.5 + self._random())
        heappush(self._heap, (self.now + delay, self._sequence, SYNC, machine, 0, 0, None, machine.run, 0))

    def _sync(self, machine: Machine[R], run: int) -> None:
        if machine.replica is None or run != machine.run:
            return
        try:
            machine.store.sync(machine.syncing)
        except ProcessCrashed:
            self.crash(machine)
            return
        machine.syncing = 0
        if machine.store.pending:
            self._plan_sync(machine)
        self.perform(machine)

    # ------------------------------------------------------------------ machines

    def add_machine(self, number: int) -> Machine[R]:
        machine: Machine[R] = Machine(number, self.store_class())
        plan = self.plan
        machine.clock_offset_s = plan.skew_s * self._random()
        machine.clock_rate = 1.0 + plan.drift * (self._random() - 0.5)
        self.machines[number] = machine
        return machine

    def write_founding_records(self, machine: Machine[R]) -> None:
        machine.store.write(self.founding_records, _ignore)
        machine.store.sync()

    def start(self, machine: Machine[R]) -> None:
        machine.run += 1
        machine.heard_run = {}
        machine.syncing = 0
        machine.crash_after_sends = -1
        machine.paused_until_s = 0.0
        self.on_restart(machine.number)
        machine.replica = None  # while it starts
        machine.replica = self._boot(self, machine)
        machine.replica.disk_full(full=machine.store.full)
        self.note(f"peer {machine.number} starts (run {machine.run})")
        self.perform(machine)
        self._plan_tick(machine)

    def number_run(self, machine: Machine[R], last: int) -> int:
        """The number of a run that starts. It is durable before the run begins, as in a peer's process."""
        machine.store.write([SaveRun(last + 1)], _ignore)
        machine.store.sync()
        return last + 1

    def crash(self, machine: Machine[R]) -> None:
        """A power cut. Of the writes that were not synced a prefix survives, and the last of it may be torn."""
        self.note(f"peer {machine.number} crashes")
        machine.replica = None
        pending = machine.store.pending
        keep = int(self._random() * (pending + 1))
        machine.store = machine.store.crash(keep=keep, torn=int(self._random() * 4))
        machine.syncing = 0
        self.count("crashes")

    def fill(self, machine: Machine[R], *, full: bool) -> None:
        machine.store.full = full
        if machine.replica is not None:
            machine.replica.disk_full(full=full)

    def up(self) -> list[Machine[R]]:
        return [machine for machine in self.machines.values() if machine.replica is not None]


def _ignore(*_what: object) -> None:
    """The default: no observer."""


class SyncCallback(Generic[R]):
    """The store calls it after the sync that covers one Effects record. The proof goes to the run that wrote it."""

    __slots__ = ("_machine", "_replica")

    def __init__(self, machine: Machine[R]) -> None:
        self._machine, self._replica = machine, machine.replica

    def __call__(self, proof: Synced) -> None:
        if self._replica is not None and self._machine.replica is self._replica:
            self._replica.persisted(proof)


class AckBeforeSyncWorld(World[R]):
    """A deliberate mistake: a sync is reported, and messages leave, before anything has reached the disk."""

    def _carry_out(self, machine: Machine[R], effects: NodeEffects) -> None:
        super()._carry_out(machine, NodeEffects(effects.sends, []))
        if effects.persist and machine.replica is not None:
            machine.store.write(effects.persist, _ignore)
            if not machine.syncing:
                self._plan_sync(machine)
            machine.replica.persisted(_any_proof())


class StrayFramesWorld(World[R]):
    """A fault: from time to time a frame that no peer sends arrives beside those that are sent. A node refuses it."""

    def __init__(self, plan: Plan, *, boot: Callable[[World[R], Machine[R]], R], tracing: bool = False) -> None:
        super().__init__(plan, boot=boot, tracing=tracing)
        self._sent = 0

    def send(self, source: Machine[R], target: int, route: int, message: Message) -> None:
        super().send(source, target, route, message)
        self._sent += 1
        if self._sent % STRAY_EVERY == 0:
            self.count("stray frames")
            super().send(source, target, *_stray(route, message))


def _stray(route: int, message: Message) -> tuple[int, Message]:
    """Entries that do not follow each other, at their lane; or a pub-sub message at the metadata lane."""
    if isinstance(message, Enqueue) and message.entries:
        return route, replace(message, entries=(message.entries[0], *message.entries))
    return 0, Stored(1, 1)


def _any_proof() -> Synced:
    """A proof of another store: no sync of this one is behind it."""
    proofs: list[Synced] = []
    store = MemoryStore()
    store.write([SaveRun(1)], proofs.append)
    store.sync()
    return proofs[0]
