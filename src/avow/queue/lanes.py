"""Which lane of a queue a key belongs to.

Order holds per lane only, so all messages of one key must meet in one lane: whichever client sends them, in whichever
process, today or after an upgrade. Python's own `hash` is salted per process and promises nothing across versions;
CRC-32C is a fixed function that the rest of the tree already depends on. Its low bits are spread well enough that a
plain remainder serves; the number of a queue's lanes never changes after creation, which is what makes that safe.

A message without a key has no order to keep. Its sender takes the lanes in turn, and that counter is the sender's.
"""

from __future__ import annotations

from crc32c import crc32c

from avow.errors import InvalidRequest
from avow.limits import LANES_PER_QUEUE_MAX


def lane_for(key: bytes, lanes: int) -> int:
    """The lane of `key`, from 0 to `lanes` - 1. The values are a contract: they are pinned by a test."""
    if not 1 <= lanes <= LANES_PER_QUEUE_MAX:
        raise InvalidRequest(f"a queue has 1 to {LANES_PER_QUEUE_MAX} lanes, not {lanes}; nothing was sent")
    return crc32c(key) % lanes
