"""The last N keys and what came of each, in the order they came.

"Exactly once" towards a client that retries rests on memory: a write id that was seen must be answered, not applied.
Memory has an end, so this one forgets the oldest key when a new one would exceed its size. The size is counted in
keys and never in time: every peer applies the same entries and must forget the same keys at the same entry.

The same memory serves write ids and decided transactions. A plain dict keeps the insertion order, but finding its
first key again and again walks over what was deleted before; the keys are therefore also queued in a deque.

A key that is not found was never seen, or was forgotten. Which of the two it is decides whether a retry may be taken
for a new write, and only time can tell: `Coverage` notes now and then how many keys had come, so that a peer knows
since when nothing that came was forgotten. That is knowledge of one peer, no part of the replicated state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from avow.errors import Malformed

V = TypeVar("V")

SAMPLES_MAX: Final = 64


class Recent(Generic[V]):
    """A bounded first-in first-out memory. `get` is the dict's own method: it is on the path of every write."""

    __slots__ = ("_order", "_values", "get", "remembered", "size")

    def __init__(self, size: int) -> None:
        assert size >= 1, "a memory of nothing would apply every retry twice"
        self.size = size
        self._values: dict[bytes, V] = {}
        self._order: deque[bytes] = deque()
        self.get = self._values.get
        self.remembered = 0  # keys that came, counted from wherever this memory began

    def __len__(self) -> int:
        return len(self._order)

    def remember(self, key: bytes, value: V) -> None:
        """The first value of a key stays: a caller asks `get` before."""
        values = self._values
        assert key not in values, "a known key is answered, not remembered again"
        values[key] = value
        order = self._order
        order.append(key)
        self.remembered += 1
        if len(order) > self.size:
            del values[order.popleft()]

    def all_new(self, keys: Sequence[bytes]) -> bool:
        """Whether no key is known, empty, or there twice."""
        apart = set(keys)
        return len(apart) == len(keys) and b"" not in apart and self._values.keys().isdisjoint(apart)

    def remember_all(self, keys: Sequence[bytes], new: Iterable[V]) -> None:
        """The same as `remember` for one after the other. They must be `all_new`."""
        values, order = self._values, self._order
        values.update(zip(keys, new, strict=True))
        order.extend(keys)
        self.remembered += len(keys)
        for _ in range(len(order) - self.size):
            del values[order.popleft()]

    @property
    def whole(self) -> bool:
        """Nothing was forgotten yet, here or in the memory this one was copied or restored from."""
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
        """The inverse of `columns`. Columns that no memory of this size could have given are Malformed."""
        other: Recent[V] = cls(size)
        other._order.extend(keys)
        known = list(values)
        if len(known) != len(other._order) or len(known) > size:
            raise Malformed("remembered keys", expected=f"at most {size}, a value each", found=len(other._order))
        other._values.update(zip(other._order, known, strict=True))
        if len(other._values) != len(known):
            raise Malformed("remembered keys", expected="each of them once", found="one of them twice")
        return other


class Coverage:
    """Since when nothing that came was forgotten, as far as this peer has watched. Times are the peer's own clock."""

    __slots__ = ("_every_s", "_samples", "next_s")

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self.restart()

    def restart(self) -> None:
        """Another memory takes the place of the watched one."""
        self.next_s = float("-inf")
        self._samples: list[tuple[float, int]] = []  # (when, how many keys had come by then)

    def watch(self, memory: Recent[Any], now: float) -> None:
        """Note how far it has come. To be called when `next_s` has passed, not before."""
        self.next_s = now + self._every_s
        samples, oldest = self._samples, memory.remembered - memory.size
        while len(samples) > 1 and samples[0][1] < oldest:
            del samples[0]
        samples.append((now, memory.remembered))
        if len(samples) > SAMPLES_MAX:  # a slow lane: the further back, the coarser
            del samples[1::2]

    def since(self, memory: Recent[Any]) -> float:
        """Every key that came after this time is still known; minus infinity: every key ever."""
        if memory.whole:
            return float("-inf")
        oldest = memory.remembered - memory.size
        return next((when for when, came in self._samples if came >= oldest), float("inf"))
