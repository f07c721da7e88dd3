"""Random walks: a seed decides how the ends are set up, what the weather is like, and every move.

Moves are weighted, and each seed makes some of them rare and others frequent: a walk in which everything happens all
the time would never get far enough for some mistakes to show. The same seed is the same walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from avow import limits
from avow.channel.protocol import Core
from avow.errors import AvowError
from avow.testing.channel import forging
from avow.testing.channel.machine import Machine
from avow.testing.channel.model import Share
from avow.testing.channel.moves import ACKS, ENDS, MISUSES
from avow.testing.channel.sockets import ACCEPTOR, DIALER
from avow.testing.ledger import Violation

STEPS: Final = 80
NAMES: Final = (DIALER, ACCEPTOR)
BROKEN: Final = (AssertionError, LookupError, ValueError, TypeError, AttributeError, AvowError)  # a core that fell over

SMALL: Final = tuple(Share(pending_count=count) for count in (1, 2, 4, 7, 12, 20))
SHARES: Final = (
    *SMALL,
    Share(pending_count=5, last_commit=100),
    Share(pending_count=50, pending_bytes=1),
    Share(pending_count=50, pending_bytes=700),
    Share(pending_count=6, pending_bytes=400),
)
WIDE: Final = (  # whose limit is the other end's cap, which it hears of in the first Hello
    Share(pending_count=9_000, cap_count=limits.CHANNEL_CAP_COUNT_MIN),
    Share(pending_count=9_000, cap_count=limits.CHANNEL_CAP_COUNT_MIN + 500),
)
WIDE_COUNT: Final = 1_500  # messages of one move there

Move = Callable[[Machine, Random], None]


class Walked(Struct, frozen=True):
    """What one seed showed. `violation` empty: every promise held."""

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
    """Commit after commit, all of them under way."""
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
    """A socket is replaced while something is under way on it, and the new one is quicker."""
    machine.dial()
    for name in NAMES:
        machine.write(name, packets=2, size_bytes=rng.choice((20, 65_536)))
    _connect(machine, rng)


def _lie(machine: Machine, rng: Random) -> None:
    """A commit was under way when its socket was lost; the other end lacks it, and acknowledges it all the same."""
    name = rng.choice(NAMES)
    _connect(machine, rng)
    machine.commit(name)
    machine.write(name, packets=9)
    _connect(machine, rng)
    machine.forge(name, "an ack of what it lacks")


def _late(machine: Machine, rng: Random) -> None:
    """Something comes on the oldest socket that still carries anything."""
    for index, name in machine.under_way()[: rng.choice((1, 3))]:
        machine.deliver(index, name)


def _cut(machine: Machine, rng: Random) -> None:
    machine.cut(_newest_or_any(machine, rng), rng.choice(NAMES), keep=rng.choice((0, 0, 1, 2)))


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
    (0.4, lambda machine, rng: machine.forge(rng.choice(NAMES), rng.choice(tuple(forging.PACKETS)))),
    (0.4, lambda machine, rng: machine.forge_hello(rng.choice((*forging.STRANGERS, *forging.IMPOSSIBLE)))),
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
        machine.settle()
    except BROKEN as error:
        words = str(error) if isinstance(error, Violation) else f"fell over: {error!r}"
        return Walked(seed, taken, machine.counts, f"{words} (seed {seed}, step {taken})")
    return Walked(seed, taken, machine.counts)
