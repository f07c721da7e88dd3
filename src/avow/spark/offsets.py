"""How far a stream has come, as Spark keeps it in its checkpoint. Pure.

    {"v": 1, "queues": {"orders": {"0": 7, "1": 23}}}

The number of a lane is the next version to read, so 7 says that 1 to 6 were read: Kafka's way, and the same number that
`startingOffsets` takes. Spark compares offsets as text, so one state has one text: keys are in order, and nothing is
written that is not needed.

A two-phase queue keeps its lanes. The lanes of a pub-sub queue come and go: each run of a peer opens one, and an ended
lane is forgotten by the cluster some time after all of it was trimmed. Two facts are kept because of this, else a lane
that is gone could not be told from one that was lost, or from one that is new:

    "whole":     {"events": [3]}    lanes that have ended and were read to their end: they may vanish without a word
    "forgotten": {"events": 3}      lanes up to this number that are not listed are over. A peer that is behind may
                                    still speak of one; it is not read again

A lane that is not listed and not forgotten is new, and is read from its first version on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from avow.errors import InvalidRequest

FORMAT: Final = 1
FIRST_VERSION: Final = 1


class Progress(Struct, frozen=True):
    """`queues`: the next version of each lane; the others as drawn above."""

    queues: dict[str, dict[int, int]] = {}
    whole: dict[str, frozenset[int]] = {}
    forgotten: dict[str, int] = {}

    def next(self, queue: str, lane: int) -> int:
        """The version to go on with; that of a lane never heard of is its first."""
        return self.queues.get(queue, {}).get(lane, FIRST_VERSION)

    def knows(self, queue: str, lane: int) -> bool:
        return lane in self.queues.get(queue, {})

    def over(self, queue: str, lane: int) -> bool:
        """Forgotten: nothing of it is read any more, whoever still speaks of it."""
        return not self.knows(queue, lane) and lane <= self.forgotten.get(queue, -1)

    def lanes(self) -> Iterator[tuple[str, int, int]]:
        for queue, lanes in self.queues.items():
            for lane, version in lanes.items():
                yield queue, lane, version

    def to_json(self) -> dict[str, Any]:
        """In order, so that one state has one text."""
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
    """Raises InvalidRequest for what this version did not write: a checkpoint of another source, or of a newer Avow."""
    if found.get("v") != FORMAT:
        raise InvalidRequest(
            f"the checkpoint has offsets that this version of Avow does not read: {str(dict(found))[:200]}; nothing "
            "was read. Was it made by another source, or by a newer Avow?"
        )
    try:
        queues = {queue: {int(lane): int(at) for lane, at in lanes.items()} for queue, lanes in found["queues"].items()}
        whole = {queue: frozenset(map(int, lanes)) for queue, lanes in found.get("whole", {}).items()}
        forgotten = {queue: int(lane) for queue, lane in found.get("forgotten", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise InvalidRequest(f"the checkpoint's offsets are damaged: {cause!r}; nothing was read") from cause
    return Progress(queues, whole, forgotten)
