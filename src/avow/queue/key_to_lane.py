"""Maps a key to a lane of a queue.

Order holds only within a lane, so all messages of one key must go to one lane: from every client and process, also
after an upgrade. Python's own `hash` is salted per process and not stable across versions. CRC-32C is fixed and used
elsewhere in the code. Its low bits are distributed well enough for a plain remainder, which is safe because the number
of a queue's lanes never changes.

A message without a key has no order to preserve. Its sender uses the lanes in turn with a counter of its own.
"""

from __future__ import annotations

from crc32c import crc32c

from avow.errors import InvalidRequest
from avow.limits import LANES_PER_QUEUE_MAX


def lane_for(key: bytes, lanes: int) -> int:
    """The lane of `key`, from 0 to `lanes` - 1. The values must never change; a test pins them."""
    if not 1 <= lanes <= LANES_PER_QUEUE_MAX:
        raise InvalidRequest(f"a queue has 1 to {LANES_PER_QUEUE_MAX} lanes, not {lanes}; nothing was sent")
    return crc32c(key) % lanes
