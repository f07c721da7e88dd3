"""A test bench of peers: the network is a list, and disks sync and clocks move only on command.

The simulator searches for violations at random, and its traces are long. To explain one sequence of events, its author
decides what happens next: this message arrives, that one does not, this disk syncs, that peer crashes. So nothing on
the bench happens by itself, with one exception that keeps transcripts short: heartbeats. They are sent when a clock
moves, arrive at the end of the same command, and are shown only on request. Their effects are always shown.

    deliver, drop, cut, isolate, heal, in-flight   the network
    sync, crash, restart, damage                   the disks and processes
    advance, tick                                  the clocks: one for each peer, so that a peer can be left behind
    stabilize                                      deliver and sync until nothing is left to do

The effects of a peer are carried out in the order of `replication.effects`: messages that depend on a sync wait for it.
The two strategies differ in the peer and in the clients' commands; see the subclasses of Bench.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from avow.replication.durable import Synced
from avow.replication.effects import Effects, Persist
from avow.storage.memory import MemoryStore
from avow.wire.messages import Heartbeat, LaneHeartbeat, Message
from avow_lab.transcripts.text import TranscriptError, Words, message_text

BEAT_MS: Final = 50
BEAT_S: Final = BEAT_MS / 1000
ROUNDS_MAX: Final = 500  # of `stabilize`; more means that the peers exchange messages without end


class Replica(Protocol):
    """What the bench needs of a peer's core."""

    def receive(self, source: int, message: Message, now: float) -> None: ...
    def tick(self, now: float) -> None: ...
    def drain(self) -> Effects | None: ...


R = TypeVar("R", bound=Replica)


class Machine(Generic[R]):
    """One peer's computer. The disk outlives the process; `unsynced` has the operations of each waiting write."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.store = MemoryStore()
        self.clock_s = 0.0
        self.replica: R | None = None  # None: the process is down
        self.unsynced: list[int] = []

    @property
    def process(self) -> R:
        if self.replica is None:
            raise TranscriptError(f"peer {self.number} is down")
        return self.replica


class Bench(ABC, Generic[R]):
    def __init__(self) -> None:
        self.machines: dict[int, Machine[R]] = {}
        self.lines: list[str] = []
        self.wall_ms = 0
        self._in_flight: list[tuple[int, int, Message]] = []
        self._beats: deque[tuple[int, int, Message]] = deque()
        self._cuts: set[tuple[int, int]] = set()
        self._quiet = self._beats_shown = False
        self.commands: dict[str, Callable[[Words], None]] = {
            "deliver": self._deliver_command,
            "drop": self._drop_command,
            "in-flight": self._in_flight_command,
            "cut": self._cut_command,
            "isolate": self._isolate_command,
            "heal": self._heal_command,
            "sync": self._sync_command,
            "crash": self._crash_command,
            "restart": self._restart_command,
            "damage": self._damage_command,
            "advance": self._advance_command,
            "tick": self._tick_command,
            "stabilize": self._stabilize_command,
            "heartbeats": self._heartbeats_command,
        }

    def perform(self, words: Words) -> list[str]:
        """Carry out one command. Returns the lines that show it. `quiet` hides messages and stores, but not their
        effects."""
        self._quiet = words.flag("quiet")
        command = self.commands.get(words.name)
        if command is None:
            raise TranscriptError(f"`{words.line}`: there is no command {words.name}")
        command(words)
        words.finish()
        self._deliver_beats()
        lines, self.lines = self.lines, []
        return lines

    # ------------------------------------------------------------------ implemented by the strategies

    @abstractmethod
    def _boot(self, machine: Machine[R]) -> R:
        """A new process on this machine, from what its disk holds."""

    @abstractmethod
    def _persisted(self, machine: Machine[R], proof: Synced) -> None:
        """Hand the process the proof of a sync."""

    @abstractmethod
    def _observe(self, machine: Machine[R]) -> None:
        """Show what changed on this peer, and the answers to its clients."""

    @abstractmethod
    def _started(self, machine: Machine[R]) -> None:
        """Show the state of a new process."""

    @abstractmethod
    def _died(self, machine: Machine[R]) -> None:
        """Show that clients of a crashed process lost their connections."""

    @abstractmethod
    def _stores(self, machine: Machine[R], operations: list[Persist]) -> None:
        """Show what a sync made durable."""

    # ------------------------------------------------------------------ effects

    def say(self, line: str) -> None:
        self.lines.append(line)

    def detail(self, line: str) -> None:
        if not self._quiet:
            self.lines.append(line)

    def machine(self, number: int) -> Machine[R]:
        if number not in self.machines:
            raise TranscriptError(f"there is no peer {number}")
        return self.machines[number]

    def up(self) -> list[Machine[R]]:
        return [machine for machine in self.machines.values() if machine.replica is not None]

    def carry_out(self, machine: Machine[R]) -> None:
        """After every input: show what changed, then carry out the effects."""
        replica = machine.process
        self._observe(machine)
        while (effects := replica.drain()) is not None:
            self._send(machine, effects.sends)
            if effects.persist:
                machine.unsynced.append(len(effects.persist))
                machine.store.write(effects.persist, partial(self._landed, machine, effects))

    def _landed(self, machine: Machine[R], effects: Effects, proof: Synced) -> None:
        self._stores(machine, effects.persist)
        self._persisted(machine, proof)

    def _send(self, machine: Machine[R], sends: Iterable[tuple[int, Message]]) -> None:
        for target, message in sends:
            sent = (machine.number, target, message)
            if isinstance(message, Heartbeat | LaneHeartbeat):
                self._beats.append(sent)
            elif self._reaches(machine.number, target):
                self._in_flight.append(sent)
            else:
                self._lost(sent)

    def _reaches(self, source: int, target: int) -> bool:
        return (source, target) not in self._cuts and self.machine(target).replica is not None

    def _lost(self, sent: tuple[int, int, Message]) -> None:
        self.detail(f"{sent[0]} -x {sent[1]}  {message_text(sent[2])}")

    def _arrive(self, sent: tuple[int, int, Message], *, shown: bool = True) -> None:
        source, target, message = sent
        if shown:
            self.detail(f"{source} -> {target}  {message_text(message)}")
        machine = self.machine(target)
        machine.process.receive(source, message, machine.clock_s)
        self.carry_out(machine)

    def _deliver_beats(self, awake: Iterable[int] | None = None) -> None:
        """Heartbeats arrive at once, except on cut links and at peers whose clock does not move."""
        reached = set(self.machines if awake is None else awake)
        while self._beats:
            sent = self._beats.popleft()
            if sent[1] in reached and self._reaches(sent[0], sent[1]):
                self._arrive(sent, shown=self._beats_shown)

    # ------------------------------------------------------------------ the network

    def _chosen(self, words: Words) -> list[tuple[int, int, Message]]:
        """Messages in flight that match from=, to= and kind=; with `one`, the first of them."""
        sources, targets, kind = words.integers("from"), words.integers("to"), words.option("kind")
        found = [
            sent
            for sent in self._in_flight
            if (not sources or sent[0] in sources)
            and (not targets or sent[1] in targets)
            and (not kind or type(sent[2]).__name__ == kind)
        ]
        return found[:1] if words.flag("one") else found

    def _take(self, chosen_messages: list[tuple[int, int, Message]]) -> None:
        chosen = {id(sent) for sent in chosen_messages}
        self._in_flight = [sent for sent in self._in_flight if id(sent) not in chosen]

    def _deliver_command(self, words: Words) -> None:
        """Messages in flight now, in the order of sending. Their effects are in flight afterwards."""
        words.flag("all")
        chosen_messages = self._chosen(words)
        self._take(chosen_messages)
        for sent in chosen_messages:
            self._arrive(sent)
        if not chosen_messages:
            self.say("nothing is in flight")

    def _drop_command(self, words: Words) -> None:
        words.flag("all")
        chosen_messages = self._chosen(words)
        self._take(chosen_messages)
        for sent in chosen_messages:
            self._lost(sent)
        if not chosen_messages:
            self.say("nothing is in flight")

    def _in_flight_command(self, _words: Words) -> None:
        for source, target, message in self._in_flight:
            self.say(f"{source} .. {target}  {message_text(message)}")
        if not self._in_flight:
            self.say("nothing is in flight")

    def _cut_command(self, words: Words) -> None:
        """In both directions, or with `one-way` from the first to the second only. Messages in flight there are
        lost."""
        one_way = words.flag("one-way")
        a, b = words.number("a peer"), words.number("another peer")
        self._cut({(a, b)} if one_way else {(a, b), (b, a)})

    def _isolate_command(self, words: Words) -> None:
        a = words.number("a peer")
        self._cut({pair for b in self.machines if b != a for pair in ((a, b), (b, a))})

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        self._cuts |= pairs
        lost = [sent for sent in self._in_flight if sent[:2] in pairs]
        self._take(lost)
        for sent in lost:
            self._lost(sent)

    def _heal_command(self, words: Words) -> None:
        """Every link, or those of one peer."""
        peer = words.maybe_number()
        self._cuts = {pair for pair in self._cuts if peer and peer not in pair}

    # ------------------------------------------------------------------ disks and processes

    def _sync_command(self, words: Words) -> None:
        words.flag("all")
        number = words.maybe_number()
        machines = [self.machine(number)] if number else self.up()
        synced = [self._sync(machine) for machine in machines]  # not lazily: all must sync
        if not any(synced):
            self.say("nothing to sync")

    def _sync(self, machine: Machine[R]) -> bool:
        if not machine.unsynced:
            return False
        machine.unsynced = []
        machine.store.sync()
        self.carry_out(machine)
        return True

    def _crash_command(self, words: Words) -> None:
        """Unsynced operations are lost, or `kept`, or torn=K: the first K of them reached the disk."""
        machine = self.machine(words.number("a peer"))
        if machine.replica is None:
            raise TranscriptError(f"peer {machine.number} is down already")
        waiting = sum(machine.unsynced)
        survivors = waiting if words.flag("kept") else words.integer("torn", 0)
        words.flag("lost")
        if survivors > waiting:
            raise TranscriptError(f"`{words.line}`: only {waiting} operations wait for a sync")
        self._died(machine)
        machine.replica = None
        keep, torn = self._survive(machine.unsynced, survivors)
        machine.store = machine.store.crash(keep=keep, torn=torn)
        machine.unsynced = []
        fate = f"; of {waiting} unsynced operations {survivors} survive" if waiting else ""
        self.say(f"{machine.number} is gone{fate}")
        self._forget_links(machine, incoming=True)

    @staticmethod
    def _survive(unsynced: list[int], survivors: int) -> tuple[int, int]:
        """(whole writes, operations of the next one) that reached the disk."""
        keep = 0
        while keep < len(unsynced) and unsynced[keep] <= survivors:
            survivors -= unsynced[keep]
            keep += 1
        return keep, survivors

    def _forget_links(self, machine: Machine[R], *, incoming: bool) -> None:
        """A connection ends with either process: messages in flight to it are lost, those it had sent are not."""
        end = 1 if incoming else 0
        lost = [sent for sent in self._in_flight if sent[end] == machine.number]
        self._take(lost)
        for sent in lost:
            self._lost(sent)

    def _restart_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        if machine.replica is not None:
            raise TranscriptError(f"peer {machine.number} is up")
        self._forget_links(machine, incoming=False)
        self._start(machine)

    def _start(self, machine: Machine[R]) -> None:
        machine.replica = self._boot(machine)
        self._started(machine)
        self.carry_out(machine)

    def _damage_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        lane, position = words.integer("lane", 1), words.required("position")
        machine.store.damage(lane, position)
        self.say(f"{machine.number} can no longer read the entry at {position}; it finds out when it starts")

    # ------------------------------------------------------------------ time

    def _advance_command(self, words: Words) -> None:
        """In steps of one heartbeat. With peers=, only their clocks move."""
        milliseconds = words.number("milliseconds")
        if milliseconds % BEAT_MS:
            raise TranscriptError(f"`{words.line}`: time moves in steps of {BEAT_MS} ms")
        awake = words.integers("peers", tuple(self.machines))
        for _ in range(milliseconds // BEAT_MS):
            self.wall_ms += BEAT_MS
            for number in awake:
                self.machine(number).clock_s += BEAT_S
            for number in awake:
                self._tick(self.machine(number))
            self._deliver_beats(awake)

    def _tick_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        machine.clock_s += BEAT_S
        self._tick(machine)

    def _tick(self, machine: Machine[R]) -> None:
        if machine.replica is not None:
            machine.replica.tick(machine.clock_s)
            self.carry_out(machine)

    def _heartbeats_command(self, words: Words) -> None:
        self._beats_shown = words.word("shown or hidden") == "shown"

    # ------------------------------------------------------------------ everything at once

    def _stabilize_command(self, words: Words) -> None:
        """With peers=, only messages between them and only their disks."""
        self.stabilize(words.integers("peers", tuple(self.machines)))

    def stabilize(self, among: tuple[int, ...]) -> None:
        for _ in range(ROUNDS_MAX):
            chosen_messages = [sent for sent in self._in_flight if sent[0] in among and sent[1] in among]
            self._take(chosen_messages)
            for sent in chosen_messages:
                self._arrive(sent)
            synced = [self._sync(machine) for machine in self.up() if machine.number in among]
            if not chosen_messages and not any(synced):
                return
        raise TranscriptError(f"the peers still talk after {ROUNDS_MAX} rounds")
