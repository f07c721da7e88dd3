"""Watching over the peers that `avow up` started: who died, when it is started again, and when that is given up.

A peer that ends is brought back after a few seconds, which are shown, so that one can see what a cluster does without
it. A peer that ends again and again right after its start is left alone: whatever is wrong, its log says it better.
A peer that was removed from the cluster is left alone too. Time is an argument; nothing here prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec import Struct

RESTART_AFTER_S: Final = 5.0
SHORT_LIFE_S: Final = 10.0
SHORT_LIVES_MAX: Final = 3


class Event(Struct, frozen=True):
    """What happened to a peer, for a line or an object: died, restarted, abandoned, removed."""

    peer: int
    event: str
    text: str


class Process(Protocol):
    @property
    def alive(self) -> bool: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def last_words(self) -> str: ...


@dataclass(slots=True)
class _Life:
    started_at: float
    died_at: float | None = None
    short_lives: int = 0
    left_alone: bool = False


@dataclass(slots=True)
class Watch:
    processes: dict[int, Process]
    lives: dict[int, _Life] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        self.lives = {number: _Life(started_at=now) for number in self.processes}

    def tick(self, now: float, *, gone: frozenset[int] = frozenset()) -> list[Event]:
        """`gone`: numbers of peers that the cluster has let go."""
        events = [self._look(number, life, now, gone=number in gone) for number, life in self.lives.items()]
        return [event for event in events if event is not None]

    def returns_in_s(self, number: int, now: float) -> float | None:
        """Seconds until a dead peer is started again; None when it runs or is left alone."""
        life = self.lives[number]
        if life.died_at is None or life.left_alone:
            return None
        return max(0.0, life.died_at + RESTART_AFTER_S - now)

    def left_alone(self, number: int) -> bool:
        return self.lives[number].left_alone

    def _look(self, number: int, life: _Life, now: float, *, gone: bool) -> Event | None:
        process = self.processes[number]
        if process.alive or life.left_alone:
            return None
        if life.died_at is None:
            return self._died(number, life, now, gone=gone)
        if now < life.died_at + RESTART_AFTER_S:
            return None
        process.start()
        life.started_at, life.died_at = now, None
        return Event(number, "restarted", f"peer {number} is started again (pid {process.pid})")

    def _died(self, number: int, life: _Life, now: float, *, gone: bool) -> Event:
        process = self.processes[number]
        life.died_at = now
        life.short_lives = life.short_lives + 1 if now - life.started_at < SHORT_LIFE_S else 0
        how = _how(process.exit_code)
        if gone:
            life.left_alone = True
            return Event(number, "removed", f"peer {number} {how} after it was removed from the cluster; it stays down")
        if life.short_lives >= SHORT_LIVES_MAX:
            life.left_alone = True
            text = f"peer {number} {how} {SHORT_LIVES_MAX} times in a row and stays down; {process.last_words()}"
            return Event(number, "abandoned", text)
        return Event(number, "died", f"peer {number} {how}; it is started again in {RESTART_AFTER_S:g} s")


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"
