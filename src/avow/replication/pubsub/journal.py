"""The journal of a queue's lanes: what was persisted, and what a sync makes durable.

When a message may leave is decided by the `EffectBuffer`. Here is what a record makes true: a sync makes a copy durable
up to the end it had when the record was drained, not up to the end it has when the sync is reported. The ends of
all lanes touched by a record are its mark.
"""

from __future__ import annotations

from typing import TypeAlias

from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Persist
from avow.replication.pubsub.state import LaneState

Mark: TypeAlias = list[tuple[LaneState, int, bool]]  # (lane, its end, whether it was fenced)


class Journal:
    __slots__ = ("_effects", "_touched", "full")

    def __init__(self, effects: EffectBuffer[Mark]) -> None:
        self._effects = effects
        self._touched: dict[int, LaneState] = {}  # lanes with something persisted since the last drain
        self.full = False  # the disk is full: no entries; fences, answers and heartbeats go on

    def disk_full(self, *, full: bool) -> None:
        self.full = full

    def save(self, lane: LaneState, effect: Persist) -> None:
        self._effects.persist(effect)
        self._touched[lane.number] = lane

    def take_mark(self) -> Mark:
        """A lane is in the mark if and only if the record persists something of it."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, {}
        return [(lane, lane.end, lane.fenced) for lane in touched.values()]
