"""The faults of a simulated cluster: injected at random times, undone after a while, and all healed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from avow_lab.simulator.world import Machine, Replica, World

R = TypeVar("R", bound=Replica)


class FaultSchedule(Generic[R]):
    """`heal` undoes all faults and ends the schedule."""

    def __init__(
        self,
        world: World[R],
        *,
        damage: Callable[[Machine[R]], bool],
        change_members: Callable[[], None],
        change_queues: Callable[[], None],
        leader: Callable[[], Machine[R] | None],
    ) -> None:
        self._world = world
        self._leader = leader
        self._damage, self._change_members, self._change_queues = damage, change_members, change_queues
        self._over = False
        self._hold_s = 2.0 * world.plan.claim_s + 0.05  # long enough for the others to take over
        self._actions: dict[str, Callable[[Machine[R]], None]] = {
            "crash": self._crash,
            "crash mid effects": self._crash_halfway,
            "blink": self._blink,
            "isolate": self._isolate,
            "split": self._split,
            "one-way": self._one_way,
            "slow disk": self._slow_disk,
            "clock jump": self._clock_jump,
            "damage": self._damage_on_crash,
            "disk full": self._fill_disk,
            "crash all": self._crash_all,
            "members": self._members,
            "queues": self._queues,
            "pause": self._pause,
        }
        self._plan_next()

    def _plan_next(self) -> None:
        world = self._world
        every = world.plan.fault_every_s
        if every < 1e6:
            world.call(every * 2.0 * world.rng.random(), self._inject)

    def _inject(self) -> None:
        if self._over:
            return
        world = self._world
        machines = [machine for machine in world.machines.values() if not machine.gone]
        machine = machines[int(world.rng.random() * len(machines))]
        if world.rng.random() < 0.4:  # a coordinator's faults have the most effect
            machine = self._leader() or machine
        kinds = world.plan.faults
        kind = kinds[int(world.rng.random() * len(kinds))]
        world.note(f"** {kind} (peer {machine.number})")
        self._actions[kind](machine)
        self._plan_next()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.call(seconds * (0.2 + 1.8 * self._world.rng.random()), action)

    # ------------------------------------------------------------------ processes

    def _crash(self, machine: Machine[R]) -> None:
        if machine.replica is not None:
            self._world.crash(machine)
            self._later(self._hold_s / 2, lambda: self._restart(machine))

    def _crash_halfway(self, machine: Machine[R]) -> None:
        machine.crash_after_sends = int(self._world.rng.random() * 4)
        self._later(0.4, lambda: self._restart(machine))

    def _blink(self, machine: Machine[R]) -> None:
        """Down and up again before the others notice: they do not know that it lost its memory."""
        if machine.replica is not None:
            self._world.crash(machine)
            self._later(self._world.plan.delay_s, lambda: self._restart(machine))

    def _crash_all(self, _machine: Machine[R]) -> None:
        for machine in self._world.machines.values():
            if machine.replica is not None and self._world.rng.random() < 0.8:
                self._crash(machine)

    def _restart(self, machine: Machine[R]) -> None:
        if machine.replica is None and not machine.gone:
            self._world.start(machine)

    def _pause(self, machine: Machine[R]) -> None:
        """As SIGSTOP: afterwards the process goes on as if no time had passed."""
        world = self._world
        machine.paused_until_s = world.now + self._hold_s * (0.2 + 1.8 * world.rng.random())
        world.count("pauses")

    # ------------------------------------------------------------------ network

    def _block(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        world = self._world
        keys = {source << 8 | target for source, target in pairs}
        world.blocked |= keys
        world.count("partitions")

        def restore() -> None:
            world.blocked -= keys

        self._later(seconds, restore)

    def _isolate(self, machine: Machine[R]) -> None:
        others = [number for number in self._world.machines if number != machine.number]
        pairs = [(machine.number, other) for other in others] + [(other, machine.number) for other in others]
        self._block(pairs, self._hold_s)

    def _split(self, _machine: Machine[R]) -> None:
        rng = self._world.rng
        side = {number: rng.random() < 0.5 for number in self._world.machines}
        self._block([(a, b) for a in side for b in side if side[a] != side[b]], self._hold_s)

    def _one_way(self, machine: Machine[R]) -> None:
        others = [number for number in self._world.machines if number != machine.number]
        incoming = self._world.rng.random() < 0.5
        some = [other for other in others if self._world.rng.random() < 0.7]
        self._block([(o, machine.number) if incoming else (machine.number, o) for o in some], self._hold_s)

    # ------------------------------------------------------------------ disks and clocks

    def _slow_disk(self, machine: Machine[R]) -> None:
        machine.sync_factor = 20.0

        def recover() -> None:
            machine.sync_factor = 1.0

        self._later(0.5, recover)

    def _fill_disk(self, machine: Machine[R]) -> None:
        self._world.fill(machine, full=True)
        self._world.count("full disks")
        self._later(0.4, lambda: self._world.fill(machine, full=False))

    def _clock_jump(self, machine: Machine[R]) -> None:
        machine.clock_offset_s += self._world.rng.random() * 2.0

    def _damage_on_crash(self, machine: Machine[R]) -> None:
        if machine.replica is None:
            return
        self._world.crash(machine)
        if self._damage(machine):
            self._world.count("damaged logs")
            self._world.note(f"peer {machine.number}: an entry on its disk is damaged")
        self._later(self._hold_s / 4, lambda: self._restart(machine))

    def _members(self, _machine: Machine[R]) -> None:
        self._change_members()

    def _queues(self, _machine: Machine[R]) -> None:
        self._change_queues()

    # ------------------------------------------------------------------ the end

    def heal(self) -> None:
        self._over = True
        world = self._world
        world.note("** all faults are healed")
        world.loss = world.duplicate = 0.0
        world.blocked.clear()
        for machine in world.machines.values():
            machine.crash_after_sends = -1
            machine.sync_factor = 1.0
            machine.paused_until_s = 0.0
            self._restart(machine)
            world.fill(machine, full=False)
