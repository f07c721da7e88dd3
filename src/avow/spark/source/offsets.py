"""The progress of a stream, as Spark stores it in the checkpoint. Pure.

    {"v": 1, "queues": {"orders": {"0": 7, "1": 23}}}

The number of a lane is the next version to read (7: versions 1 to 6 were read), as with Kafka and in `startingOffsets`.
Spark compares offsets as text, so equal progress must have equal text: keys are sorted, and empty parts are omitted.

The lanes of a two-phase queue are fixed. Those of a pub-sub queue come and go: each run of a peer opens one, and the
cluster drops an ended lane some time after it was trimmed completely. Two facts are stored for this reason, to tell a
finished lane from a lost one and from a new one:

    "whole":     {"events": [3]}    lanes that have ended and were read to their end; they may disappear
    "forgotten": {"events": 3}      lanes up to this number that are not listed are finished. A peer that lags behind
                                    may still list one; it is not read again

A lane that is neither listed nor forgotten is new, and is read from its first version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from avow.errors import InvalidRequest

FORMAT: Final = 1
FIRST_VERSION: Final = 1


class Progress(Struct, frozen=True):
    """`queues`: the next version of each lane; `whole` and `forgotten` as above."""

    queues: dict[str, dict[int, int]] = {}
    whole: dict[str, frozenset[int]] = {}
    forgotten: dict[str, int] = {}

    def next(self, queue: str, lane: int) -> int:
        """The next version to read; for a new lane its first."""
        return self.queues.get(queue, {}).get(lane, FIRST_VERSION)

    def knows(self, queue: str, lane: int) -> bool:
        return lane in self.queues.get(queue, {})

    def over(self, queue: str, lane: int) -> bool:
        """Whether the lane is finished and must not be read again, even if a peer still lists it."""
        return not self.knows(queue, lane) and lane <= self.forgotten.get(queue, -1)

    def lanes(self) -> Iterator[tuple[str, int, int]]:
        for queue, lanes in self.queues.items():
            for lane, version in lanes.items():
                yield queue, lane, version

    def to_json(self) -> dict[str, Any]:
        """With sorted keys, so that equal progress has equal text."""
        found: dict[str, Any] = {"v": FORMAT, "queues": {}}
        for queue in sorted(self.queues):
            lanes = self.queues[queue]
            found["queues"][queue] = {str(lane): lanes[lane] for lane in sorted(lanes)}
        whole = {queue: sorted(self.whole[queue]) for queue in sorted(self.whole) if self.whole[queue]}
        if whole:
            found["whole"] = whole
        if self.forgotten:
            found["forgotten"] = {queue: self.forgotten[queue] for queue in sorted(self.forgotten)}
        return found


def from_json(found: Mapping[str, Any]) -> Progress:
    """Raises InvalidRequest for offsets of another source or of a newer Avow."""
    if found.get("v") != FORMAT:
        raise InvalidRequest(
            f"this version of Avow cannot read the checkpoint's offsets: {str(dict(found))[:200]}; nothing was read. "
            "Another source or a newer Avow wrote them: use that version, or a new checkpoint"
        )
    try:
        queues = {queue: {int(lane): int(at) for lane, at in lanes.items()} for queue, lanes in found["queues"].items()}
        whole = {queue: frozenset(map(int, lanes)) for queue, lanes in found.get("whole", {}).items()}
        forgotten = {queue: int(lane) for queue, lane in found.get("forgotten", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise InvalidRequest(f"the checkpoint's offsets are damaged ({cause!r}); nothing was read") from cause
    return Progress(queues, whole, forgotten)
