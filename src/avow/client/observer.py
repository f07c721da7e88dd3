"""What the peers of a pub-sub queue tell each other, for a client that acts as one of them, or wants to watch.

    async for event in client.observe("clicks"):
        match event:
            case Enqueued(lane, first_version, last_version, batch): ...     # a peer has it, committed or not
            case Stored(lane, peer, upto_version): ...                       # one more has stored it
            case Committed(lane, upto_version): ...                          # a quorum has

Events come from one peer, as it learns of them, in order for each lane: nothing is said to be stored or committed
before it was enqueued. An observer begins with what is not committed yet. When its channel is over it goes on at
another peer, which begins in the same way: after a reconnect events may be repeated, and some may be missing. What was
committed in between is found by reading: versions have no gaps. An observer that is slow holds up the peer's telling,
not its writing.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.pushed import pushed
from avow.client.reading import ReadBatch
from avow.errors import Malformed
from avow.wire.ranges import Range
from avow.wire.record import read_record

if TYPE_CHECKING:
    from avow.client.cluster import Cluster


class Enqueued(Struct, frozen=True):
    """A peer has stored it. `batch` is as of reading; not committed, it may vanish."""

    lane: int
    first_version: int
    last_version: int
    batch: ReadBatch


class Stored(Struct, frozen=True, gc=False):
    """This peer has stored the lane up to this version."""

    lane: int
    peer: int
    upto_version: int


class Committed(Struct, frozen=True, gc=False):
    """A quorum has stored the lane up to this version."""

    lane: int
    upto_version: int


Event: TypeAlias = Enqueued | Stored | Committed


class _Enqueue(Struct, frozen=True, tag_field="event", tag="enqueue"):
    lane: int
    first_version: int
    last_version: int
    batch: str


class _Stored(Struct, frozen=True, tag_field="event", tag="stored"):
    lane: int
    peer: int
    upto_version: int


class _Committed(Struct, frozen=True, tag_field="event", tag="committed"):
    lane: int
    upto_version: int


_decode: Final = msgspec.json.Decoder(_Enqueue | _Stored | _Committed).decode


def read_event(value: memoryview) -> Event:
    """One message of an observer's channel. Raises Malformed."""
    try:
        said = _decode(value)
        if isinstance(said, _Stored):
            return Stored(said.lane, said.peer, said.upto_version)
        if isinstance(said, _Committed):
            return Committed(said.lane, said.upto_version)
        record = memoryview(base64.b64decode(said.batch, validate=True))
    except (msgspec.MsgspecError, ValueError) as cause:
        raise Malformed("event of an observer", expected="its JSON", found=f"{bytes(value[:80])!r}") from cause
    read_record(record)
    count = said.last_version - said.first_version + 1
    batch = ReadBatch(Range(said.lane, said.first_version, 0, count, record))
    return Enqueued(said.lane, said.first_version, said.last_version, batch)


def observed(cluster: Cluster, queue: str) -> AsyncGenerator[Event, None]:
    """Without end. Raises what a peer refuses, Offline when none can be reached in time."""
    return pushed(cluster, lambda: {"role": "observer", "queue": queue}, read_event)
