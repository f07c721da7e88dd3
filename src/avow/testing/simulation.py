"""One seed of either strategy: set up a cluster, let the weather at it, heal everything, and pass a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from avow.errors import AvowError
from avow.replication.effects import SaveSnapshot
from avow.testing.faults import Weather
from avow.testing.ledger import Violation
from avow.testing.plan import Plan
from avow.testing.world import Machine, Replica, World

R = TypeVar("R", bound=Replica)

BROKEN: Final = (AssertionError, LookupError, ValueError, TypeError, AttributeError, AvowError)  # a core that fell over


class Verdict(Struct):
    """What one seed showed. `violation` empty: every promise held."""

    seed: int
    strategy: str
    peers: int
    events: int
    acknowledged: int
    hash: str
    counts: dict[str, int]
    violation: str = ""
    trace: list[str] = []


class Checker(Protocol):
    """What both ledgers offer here."""

    acknowledged: int

    def restarted(self, peer: int) -> None: ...


class Clients(Protocol):
    @property
    def finished(self) -> bool: ...


class Simulation(ABC, Generic[R]):
    """`world_class` is replaced by mutations. A subclass adds the ledger, the replicas and the clients."""

    strategy: ClassVar[str]
    world_class: type[World[R]] = World
    driver: Clients

    def __init__(self, plan: Plan, *, ledger: Checker, founding: SaveSnapshot, tracing: bool) -> None:
        """`founding` is what the first voters find on their disks."""
        self.plan = plan
        self._checker = ledger
        self.world = self.world_class(plan, boot=self._boot, tracing=tracing)
        self.world.on_restart = ledger.restarted
        for number in range(1, plan.peers + plan.spare_peers + 1):
            machine = self.world.add_machine(number)
            if number <= plan.peers:
                machine.store.write([founding], lambda _proof: None)
                machine.store.sync()
        for machine in self.world.machines.values():
            self.world.start(machine)
        self.driver = self._clients()
        self.weather = Weather(
            self.world, damage=self._damage, change_members=self._change_members, leader=self._leading_machine
        )

    def run(self) -> Verdict:
        world, plan = self.world, self.plan
        violation = ""
        try:
            world.run(plan.duration_s)
            self.weather.heal()
            world.run(world.now + plan.heal_s, stop=self._settled)
            if not self._settled():
                raise Violation("no progress", self._why_not())
            self._compare_states()
        except Violation as broken:
            violation = str(broken)
        except BROKEN as broken:
            violation = f"{type(broken).__name__}: {broken}"
        return Verdict(
            seed=plan.seed,
            strategy=self.strategy,
            peers=plan.peers,
            events=world.events,
            acknowledged=self._checker.acknowledged,
            hash=world.trace_hash([self._fingerprint(machine) for machine in world.machines.values()], violation),
            counts=world.counts,
            violation=violation,
            trace=world.trace or [],
        )

    @staticmethod
    @abstractmethod
    def draw(seed: int) -> Plan:
        """The plan of a seed."""

    @abstractmethod
    def _boot(self, world: World[R], machine: Machine[R]) -> R:
        """A process starts on this machine, from what its disk holds."""

    @abstractmethod
    def _clients(self) -> Clients:
        """Start the clients."""

    @abstractmethod
    def _damage(self, machine: Machine[R]) -> bool:
        """Make a synced entry of this machine unreadable, if a minority is damaged then; False: it would be more."""

    @abstractmethod
    def _change_members(self) -> None:
        """Ask for the next membership, whatever it is."""

    @abstractmethod
    def _leading_machine(self) -> Machine[R] | None:
        """Whom faults should prefer."""

    @abstractmethod
    def _settled(self) -> bool:
        """All clients came to an end and all peers agree."""

    @abstractmethod
    def _why_not(self) -> str:
        """For people: what has not settled."""

    @abstractmethod
    def _compare_states(self) -> None:
        """Raise Violation if peers that hold the same log drew different conclusions."""

    @staticmethod
    @abstractmethod
    def _fingerprint(machine: Machine[R]) -> tuple[object, ...]:
        """What the trace's hash and error messages say of a peer."""
