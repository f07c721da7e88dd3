"""A bounded window of the last N keys and their values, in insertion order: for write ids and decided transactions.

Exactly-once behaviour for retries depends on this window: a known write id is answered and not applied again. When a
new key would exceed the size, the oldest key is forgotten. The size is a number of keys and not a time, because every
peer applies the same entries and must forget the same keys at the same entry.

A plain dict keeps the insertion order, but finding its first key repeatedly walks over deleted slots; therefore the
keys are also in a deque.

A key that is not found was never seen, or was forgotten. A retry may be treated as a new write only in the first case.
`Coverage` samples how many keys have been added, so that a peer knows the time since which no key was forgotten. That
is knowledge of one peer and not part of the replicated state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, Generic, TypeVar

from avow.errors import Malformed

V = TypeVar("V")

SAMPLES_MAX: Final = 64


class Recent(Generic[V]):
    """A bounded first-in first-out map. `get` is the dict's own method, because every write calls it."""

    __slots__ = ("_order", "_values", "get", "remembered", "size")

    def __init__(self, size: int) -> None:
        assert size >= 1, "with size 0 every retry would be applied twice"
        self.size = size
        self._values: dict[bytes, V] = {}
        self._order: deque[bytes] = deque()
        self.get = self._values.get
        self.remembered = 0  # keys added since this object was created

    def __len__(self) -> int:
        return len(self._order)

    def remember(self, key: bytes, value: V) -> None:
        """Add a key that is not known; the caller checks `get` first."""
        values = self._values
        assert key not in values, "a known key must not be added again"
        values[key] = value
        order = self._order
        order.append(key)
        self.remembered += 1
        if len(order) > self.size:
            del values[order.popleft()]

    def all_new(self, keys: Sequence[bytes]) -> bool:
        """Whether no key is known, empty, or repeated."""
        apart = set(keys)
        return len(apart) == len(keys) and b"" not in apart and self._values.keys().isdisjoint(apart)

    def remember_all(self, keys: Sequence[bytes], new: Iterable[V]) -> None:
        """Like `remember` for each key in order. They must be `all_new`."""
        values, order = self._values, self._order
        values.update(zip(keys, new, strict=True))
        order.extend(keys)
        self.remembered += len(keys)
        for _ in range(len(order) - self.size):
            del values[order.popleft()]

    @property
    def whole(self) -> bool:
        """No key was forgotten yet, here or in the window that this one was copied or restored from."""
        return len(self._order) < self.size

    def copy(self) -> Recent[V]:
        """The keys and values are shared, not copied: they never change."""
        other: Recent[V] = Recent(self.size)
        other._values.update(self._values)
        other._order.extend(self._order)
        return other

    def columns(self) -> tuple[list[bytes], list[V]]:
        """Keys, oldest first, and their values."""
        return list(self._order), [self._values[key] for key in self._order]

    @classmethod
    def from_columns(cls, size: int, keys: Iterable[bytes], values: Iterable[V]) -> Recent[V]:
        """The inverse of `columns`. Raises Malformed for columns that no window of this size can have."""
        other: Recent[V] = cls(size)
        other._order.extend(keys)
        known = list(values)
        if len(known) != len(other._order) or len(known) > size:
            raise Malformed("remembered keys", expected=f"at most {size}, each with a value", found=len(other._order))
        other._values.update(zip(other._order, known, strict=True))
        if len(other._values) != len(known):
            raise Malformed("remembered keys", expected="distinct keys", found="a repeated key")
        return other


class Coverage:
    """The time since which no key was forgotten, as far as this peer has sampled, by the peer's own clock."""

    __slots__ = ("_every_s", "_samples", "next_s")

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self.restart()

    def restart(self) -> None:
        """The sampled window was replaced by another one."""
        self.next_s = float("-inf")
        self._samples: list[tuple[float, int]] = []  # (time, number of keys added by then)

    def due_s(self, memory: Recent[Any]) -> float:
        """When to take the next sample. The last one still holds while no key is added."""
        samples = self._samples
        return self.next_s if not samples or samples[-1][1] != memory.remembered else inf

    def watch(self, memory: Recent[Any], now: float) -> None:
        """Take a sample. Call it when `due_s` has passed, not before."""
        self.next_s = now + self._every_s
        samples, oldest = self._samples, memory.remembered - memory.size
        while len(samples) > 1 and samples[0][1] < oldest:
            del samples[0]
        samples.append((now, memory.remembered))
        if len(samples) > SAMPLES_MAX:  # a slow lane: thin out the samples
            del samples[1::2]

    def since(self, memory: Recent[Any]) -> float:
        """Every key added after this time is still known; minus infinity: all keys are."""
        if memory.whole:
            return float("-inf")
        oldest = memory.remembered - memory.size
        return next((when for when, came in self._samples if came >= oldest), float("inf"))
