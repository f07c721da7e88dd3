"""Back-off: pauses that grow while attempts fail, and start over after a success."""

from __future__ import annotations

from typing import Final, Protocol

from avow.writer.steps import Pauses

BACKOFF_S: Final = 0.02
BACKOFF_S_MAX: Final = 0.5
NAMED_MAX: Final = 2  # how many times in a row a redirect to a named peer is followed without a pause

#: Over a network. Half of each pause is random, so that a thousand clients of a dead peer do not retry in step.
NETWORK: Final = Pauses(BACKOFF_S, BACKOFF_S_MAX, spread=0.5)


class Randomness(Protocol):
    def random(self) -> float:
        """A random number from 0 to 1."""
        ...


class Steady:
    """Always 1.0, for pauses without a random part."""

    def random(self) -> float:
        return 1.0


class Backoff:
    """The pauses before further attempts, in seconds."""

    __slots__ = ("_pauses", "_random", "_tries")

    def __init__(self, rng: Randomness, pauses: Pauses = NETWORK) -> None:
        self._random, self._pauses = rng, pauses
        self._tries = 0

    def next_s(self, *, named: bool = False) -> float:
        """The next pause. `named`: the last answer named the peer to ask. Then there is no pause, at most NAMED_MAX
        times in a row, so that peers that name each other do not cause a busy loop."""
        tries, self._tries = self._tries, self._tries + 1
        if named and self._tries <= NAMED_MAX:
            return 0.0
        return self._pauses.after(tries, self._random.random())

    def reset(self) -> None:
        self._tries = 0
