"""The last N keys and what came of each, in the order they came.

"Exactly once" towards a client that retries rests on memory: a write id that was seen must be answered, not applied.
Memory has an end, so this one forgets the oldest key when a new one would exceed its size. The size is counted in
keys and never in time: every peer applies the same entries and must forget the same keys at the same entry.

The same memory serves write ids and decided transactions. A plain dict keeps the insertion order, but finding its
first key again and again walks over what was deleted before; the keys are therefore also queued in a deque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from avow.errors import Malformed

V = TypeVar("V")


class Recent(Generic[V]):
    """A bounded first-in first-out memory. `get` is the dict's own method: it is on the path of every write."""

    __slots__ = ("_order", "_values", "get", "size")

    def __init__(self, size: int) -> None:
        assert size >= 1, "a memory of nothing would apply every retry twice"
        self.size = size
        self._values: dict[bytes, V] = {}
        self._order: deque[bytes] = deque()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._order)

    def remember(self, key: bytes, value: V) -> None:
        """The first value of a key stays: a caller asks `get` before."""
        values = self._values
        assert key not in values, "a known key is answered, not remembered again"
        values[key] = value
        order = self._order
        order.append(key)
        if len(order) > self.size:
            del values[order.popleft()]

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
