"""Retention of a pub-sub queue's lanes on one peer: what stays in memory and on disk, and which trims to propose.

Memory is bounded: each lane's `LaneIndex` and its newest entries stay. A snapshot of the index is written from time to
time, so that a restart reads only the entries after it. Entries that lie entirely below the trimmed version are
released on disk, after a snapshot covers them.

Trims are decided as for two-phase lanes (`queue.retention`): storage knows files by position, readers know versions,
and a rule releases the oldest files. Any rule that is set allows removal on its own; holds override all of them. The
cursors are vectors in the metadata lane, and the result is a TRIM entry there, which every peer applies.

A lane ends with its owner's run, and a lane trimmed to its end is removed. After that the outcome of a write to it can
no longer be looked up. So a lane that has just ended keeps its last message for a while, because its writers may still
ask. An empty ended lane is removed after that time, with or without rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from avow.limits import PUBSUB_LANE_KEPT_S
from avow.node.pubsub.history_repair import HistoryRepair
from avow.node.pubsub.lane_index import LaneIndex
from avow.node.pubsub.lanes import QueueLanes
from avow.node.records import PubSubBounds
from avow.queue.commands import LaneTrimCommand, RetentionRules, TrimRule
from avow.queue.records import StoredFile, VectorCursor
from avow.queue.retention import aged_to, surplus_to
from avow.replication.pubsub.core import PubSubCore


class QueueRetention:
    """`forgets`: entries can be read back from storage, so memory need not hold all of them."""

    def __init__(
        self, core: PubSubCore, lanes: QueueLanes, history: HistoryRepair, bounds: PubSubBounds, *, forgets: bool
    ) -> None:
        self._core, self._lanes, self._history, self._bounds, self._forgets = core, lanes, history, bounds, forgets
        self._ended_at_ms: dict[int, int] = {}  # lane -> when retention first found it ended

    def keep(self, number: int) -> None:
        """Bound the memory of a lane, and what a restart reads. A complete ended lane needs no entries in memory."""
        index, core, ended = self._lanes.by_number[number], self._core, self._core.ended_here(number)
        if index.due or (ended and index.shown > index.saved_to):
            core.retention.save_snapshot(number, index.shown, index.snapshot())
        self.release(number)
        if self._forgets:
            entries, size = (0, 0) if ended else (self._bounds.memory_entries, self._bounds.memory_bytes)
            core.retention.relieve(number, index.shown, entries_max=entries, bytes_max=size)

    def release(self, number: int) -> None:
        """Release entries on disk that lie entirely below the trimmed version, once a snapshot covers them."""
        index, retention = self._lanes.by_number[number], self._core.retention
        position, _ = index.start()
        if not index.visible.trimmed_to or position <= index.removed_to:
            return
        if index.saved_to < position:
            retention.save_snapshot(number, index.shown, index.snapshot())
        index.release(position)
        retention.save_trim(number, position)
        self._history.trimmed(number)

    def trims(
        self,
        rules: RetentionRules,
        now_ms: int,
        files_of: Callable[[int], Sequence[StoredFile]],
        *,
        subscribers: Collection[VectorCursor],
    ) -> list[LaneTrimCommand]:
        """The trims that the rules ask for. Called from time to time, on one peer only."""
        commands = []
        for number, index in self._lanes.by_number.items():
            ended_ms = self._ended_at_ms.setdefault(number, now_ms) if self._core.ended_here(number) else None
            kept = ended_ms is None or now_ms - ended_ms < 1000 * PUBSUB_LANE_KEPT_S
            command = lane_trim(
                number, index, files_of(number), now_ms=now_ms, rules=rules, subscribers=subscribers, keeps_lane=kept
            )
            if command is not None:
                commands.append(command)
        self._ended_at_ms = {at: ms for at, ms in self._ended_at_ms.items() if at in self._lanes.by_number}
        return commands


def lane_trim(
    number: int,
    index: LaneIndex,
    files: Sequence[StoredFile],
    *,
    now_ms: int,
    rules: RetentionRules,
    subscribers: Collection[VectorCursor],
    keeps_lane: bool,
) -> LaneTrimCommand | None:
    """The TRIM to propose, or None. `keeps_lane`: it is open, or ended so recently that its writers may still ask."""
    cursors = [(cursor.versions.get(number, 0), cursor.hold) for cursor in subscribers]
    released = _released(index, files, now_ms=now_ms, rules=rules, cursors=[version for version, _ in cursors])
    best, why = max(released, default=(0, "age"), key=lambda item: item[0])
    target = min([best, *(version for version, hold in cursors if hold)])
    trimmed_to, end = max(index.trimmed_to, index.visible.trimmed_to), index.visible.end
    if not keeps_lane and trimmed_to >= end:
        return LaneTrimCommand(number, end, why)
    if keeps_lane:
        target = min(target, end - 1)
    return LaneTrimCommand(number, target, why) if target > trimmed_to else None


def _released(
    index: LaneIndex, files: Sequence[StoredFile], *, now_ms: int, rules: RetentionRules, cursors: Sequence[int]
) -> Iterator[tuple[int, TrimRule]]:
    """For each rule that is set, the last version it allows to remove."""
    visible = index.visible
    if rules.age_s is not None:
        yield visible.last_version_within(aged_to(files, before_ms=now_ms - 1000 * rules.age_s)), "age"
    if rules.size_bytes is not None:
        yield visible.last_version_within(surplus_to(files, keep_bytes=rules.size_bytes)), "size"
    if rules.passed and cursors:
        yield min(*cursors, visible.end), "passed"
