"""Random walks: a seed decides the settings of both ends, the faults of the sockets, and every move.

Moves are weighted, and each seed makes some of them rare and others frequent: a walk with all kinds of moves at the
same rate would never get far enough to show some mistakes. The same seed gives the same walk.

A Machine is two ends of a channel. Hypothesis or a seeded walk moves them one step at a time.

    application  send, commit, ack, misuse, end ──► dialer ══ sockets ══ acceptor ◄── application
    network      dial, write, deliver, cut, notice, notice_old
    acceptor     restart: it has forgotten every channel    expire: the window is over; its End answers from now on
                 turn_away: a process refuses a socket without knowing which channel it is for
    forgery      forge, forge_hello, fence: what no end of this channel would send (see `forged_packets`)
    aims         flow: a good socket carries everything     reopen: a new channel after a failure
                 finish: at the end of every walk everything arrives and is acknowledged, and no commit waits

`stage` has the output of the cores, `moves` their input; `model` and `checks` decide whether it is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct

from avow import limits
from avow.channel.protocol.core import Core
from avow.errors import AvowError, ChannelFailed
from avow_lab.channel_machine import forged_packets
from avow_lab.channel_machine.checks import End, check_finished, check_quiet
from avow_lab.channel_machine.forged_packets import Forging
from avow_lab.channel_machine.model import Share
from avow_lab.channel_machine.moves import ACKS, ENDS, MISUSES, POSITIONS, TURNED_AWAY
from avow_lab.channel_machine.sockets import ACCEPTOR, DIALER, PACKETS_MAX, Socket
from avow_lab.checkers.two_phase import Violation


class Machine(Forging):
    def flow(self) -> None:
        """If the current socket is good, deliver everything that both ends have to send. No commit is acknowledged."""
        socket = self.dialer.socket
        if self.living(DIALER) is None or socket is None or not socket.good or socket.refused:
            return
        self._pump(socket)
        if self._both_up():
            self.counts["quiet"] += 1
            self.counts["both suspended"] += all(end.out.suspended for end in self._both())
            for end in self._both():
                check_quiet(end)

    def _pump(self, socket: Socket) -> None:
        index = self.sockets.index(socket)
        for _ in range(PACKETS_MAX):
            for name in (DIALER, ACCEPTOR):
                self.write(name, packets=2)
                self.deliver(index, name, packets=PACKETS_MAX)
            if socket.empty and not any(end.core.has_output for end in self._both() if end.socket is socket):
                return
        raise Violation("no progress", "the two ends exchange packets without end")

    def _both(self) -> list[End]:
        return [end for end in (self.living(DIALER), self.living(ACCEPTOR)) if end is not None]

    def _both_up(self) -> bool:
        both = self._both()
        return len(both) == 2 and both[0].socket is not None and both[0].socket is both[1].socket

    def reopen(self) -> None:
        """A new channel, on which the messages that the old one handed back are sent again."""
        if self.dialer.over is None:
            return
        self.notice(ACCEPTOR)
        self.expire()
        try:
            self.dialer.core.send(b"too late")
        except ChannelFailed:
            self.open()
            return
        raise Violation("misuse", "a message was sent on a channel that is over")

    def finish(self) -> None:
        """On a good socket, with all acknowledgements: everything arrives, or the channel has failed as a whole."""
        for _ in range(3):
            self.dial()
            if self.dialer.socket is not None:
                self._pump(self.dialer.socket)
            if self._both_up():
                self._finish_up()
                return
            if self.dialer.over is None:
                raise Violation("no progress", f"the dialer is {self.dialer.core.link} on a good socket")
            self.reopen()
        raise Violation("no progress", "three new channels failed")

    def _finish_up(self) -> None:
        self.flow()
        self._ack_all()
        for end in self._both():
            if end.core.suspended:
                raise Violation("no progress", f"everything is acknowledged, and the {end.name} does not resume")
            self.commit(end.name)
        self.flow()
        self._ack_all()
        for end in self._both():
            check_finished(end)

    def _ack_all(self) -> None:
        for end in self._both():
            self.ack(end.name, "newest")
        self.flow()


STEPS: Final = 80
NAMES: Final = (DIALER, ACCEPTOR)
BROKEN: Final = (AssertionError, LookupError, ValueError, TypeError, AttributeError, AvowError)  # a core that crashed

SMALL: Final = tuple(Share(pending_count=count) for count in (1, 2, 4, 7, 12, 20))
SHARES: Final = (
    *SMALL,
    Share(pending_count=5, last_commit=100),
    Share(pending_count=50, pending_bytes=1),
    Share(pending_count=50, pending_bytes=700),
    Share(pending_count=6, pending_bytes=400),
)
WIDE: Final = (  # their limit is the other end's cap, which the first Hello contains
    Share(pending_count=9_000, cap_count=limits.CHANNEL_CAP_COUNT_MIN),
    Share(pending_count=9_000, cap_count=limits.CHANNEL_CAP_COUNT_MIN + 500),
)
WIDE_COUNT: Final = 1_500  # messages of one move there

Move: TypeAlias = Callable[[Machine, Random], None]


class Walked(Struct, frozen=True):
    """The result of one seed. `violation` empty: every promise held."""

    seed: int
    steps: int
    counts: Counter[str]
    violation: str = ""


def _send(machine: Machine, rng: Random) -> None:
    name = rng.choice(NAMES)
    wide = machine.shares[name].pending_count > WIDE_COUNT and rng.random() < 0.5
    machine.send(name, size_bytes=rng.choice((0, 1, 30)), count=WIDE_COUNT if wide else rng.choice((1, 1, 1, 2, 3)))


def _write(machine: Machine, rng: Random) -> None:
    machine.write(rng.choice(NAMES), packets=rng.choice((1, 1, 2, 5)), size_bytes=rng.choice((1, 20, 60, 65_536)))


def _deliver(machine: Machine, rng: Random) -> None:
    machine.deliver(_newest_or_any(machine, rng), rng.choice(NAMES), packets=rng.choice((1, 1, 2, 5)))


def _exchange(machine: Machine, rng: Random) -> None:
    """An end writes, and some of it arrives at once."""
    name = rng.choice(NAMES)
    machine.write(name, packets=3, size_bytes=rng.choice((20, 65_536)))
    machine.deliver(-1, name, packets=rng.choice((1, 3)))


def _work(machine: Machine, rng: Random) -> None:
    """Many commits, all of them in flight."""
    name = rng.choice(NAMES)
    for _ in range(4):
        machine.send(name, count=rng.choice((0, 1, 1, 2)))
        machine.commit(name)
    machine.write(name, packets=9)
    machine.deliver(-1, name, packets=9)


def _connect(machine: Machine, rng: Random) -> None:
    machine.dial()
    machine.write(DIALER)
    machine.deliver(-1, DIALER)
    machine.write(ACCEPTOR)
    if rng.random() < 0.3:
        machine.ack(DIALER, "newest")
    machine.deliver(-1, ACCEPTOR)


def _replace(machine: Machine, rng: Random) -> None:
    """A socket is replaced while packets are in flight on it, and the new one is faster."""
    machine.dial()
    for name in NAMES:
        machine.write(name, packets=2, size_bytes=rng.choice((20, 65_536)))
    _connect(machine, rng)


def _lie(machine: Machine, rng: Random) -> None:
    """A commit was in flight when its socket was lost; the other end does not have it, and acknowledges it."""
    name = rng.choice(NAMES)
    _connect(machine, rng)
    machine.commit(name)
    machine.write(name, packets=9)
    _connect(machine, rng)
    machine.forge(name, "an ack of what it lacks")


def _late(machine: Machine, rng: Random) -> None:
    """A packet arrives on the oldest socket that still has one."""
    for index, name in machine.under_way()[: rng.choice((1, 3))]:
        machine.deliver(index, name)


def _cut(machine: Machine, rng: Random) -> None:
    machine.cut(_newest_or_any(machine, rng), rng.choice(NAMES), keep=rng.choice((0, 0, 1, 2)))


def _turn_away(machine: Machine, rng: Random) -> None:
    machine.dial()
    machine.turn_away(-1, rng.choice(TURNED_AWAY), position=rng.choice(POSITIONS))


def _newest_or_any(machine: Machine, rng: Random) -> int:
    return -1 if rng.random() < 0.6 else rng.randrange(max(1, len(machine.sockets)))


MOVES: Final[tuple[tuple[float, Move], ...]] = (
    (12, _send),
    (6, lambda machine, rng: machine.commit(rng.choice(NAMES))),
    (10, lambda machine, rng: machine.ack(rng.choice(NAMES), rng.choice(ACKS), choice=rng.randrange(8))),
    (8, _write),
    (8, _deliver),
    (8, _exchange),
    (3, _work),
    (3, _connect),
    (2, lambda machine, _rng: machine.dial()),
    (2, _replace),
    (2, _late),
    (2, _cut),
    (2, lambda machine, rng: machine.notice(rng.choice(NAMES))),
    (1, lambda machine, rng: machine.notice_old(rng.choice(NAMES), rng.randrange(8))),
    (4, lambda machine, _rng: machine.flow()),
    (1, lambda machine, rng: machine.misuse(rng.choice(NAMES), rng.choice(MISUSES))),
    (0.6, lambda machine, _rng: machine.fence()),
    (0.1, _lie),
    (0.5, lambda machine, rng: machine.end(rng.choice(NAMES), rng.choice(ENDS))),
    (0.4, lambda machine, _rng: machine.expire()),
    (0.4, lambda machine, _rng: machine.restart()),
    (0.4, _turn_away),
    (0.4, lambda machine, rng: machine.forge(rng.choice(NAMES), rng.choice(tuple(forged_packets.PACKETS)))),
    (
        0.4,
        lambda machine, rng: machine.forge_hello(rng.choice((*forged_packets.STRANGERS, *forged_packets.IMPOSSIBLE))),
    ),
    (6, lambda machine, _rng: machine.reopen()),
)


def draw(rng: Random, core_class: type[Core] = Core) -> Machine:
    shares = WIDE if rng.random() < 0.04 else SHARES
    return Machine(dialer=rng.choice(shares), acceptor=rng.choice(shares), core_class=core_class)


def walk(seed: int, *, steps: int = STEPS, core_class: type[Core] = Core) -> Walked:
    rng = Random(seed)
    machine = draw(rng, core_class)
    weights = [weight * rng.choice((0.1, 1, 1, 3)) for weight, _ in MOVES]
    moves = rng.choices([move for _, move in MOVES], weights, k=steps)
    taken = 0
    try:
        for move in moves:
            taken += 1
            move(machine, rng)
        machine.finish()
    except BROKEN as error:
        words = str(error) if isinstance(error, Violation) else f"crashed: {error!r}"
        return Walked(seed, taken, machine.counts, f"{words} (seed {seed}, step {taken})")
    return Walked(seed, taken, machine.counts)
