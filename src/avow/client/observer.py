"""Replication events of a pub-sub queue, for a client that acts like one of its peers or monitors it.

    async for event in client.observe("clicks"):
        match event:
            case Enqueued(lane, first_version, last_version, batch): ...     # a peer has stored it, committed or not
            case Stored(lane, peer, upto_version): ...                       # another peer has stored it
            case Committed(lane, upto_version): ...                          # a quorum has stored it

Events come from one peer when it learns of them, in order per lane: Stored and Committed follow Enqueued. The stream
starts with what is not committed yet. When its channel ends the observer continues at another peer, which starts in the
same way: after a reconnect events may be repeated or missing. Read the queue to find what was committed in between;
versions have no gaps. A slow observer delays the peer's events, not its writes.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.client.push_stream import pushed
from avow.client.reader import ReadBatch
from avow.errors import Malformed
from avow.wire.ranges import Range
from avow.wire.record import read_record

if TYPE_CHECKING:
    from avow.client.cluster import Cluster


class Enqueued(Struct, frozen=True):
    """A peer has stored the batch. Until it is committed it may disappear."""

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
        event = _decode(value)
        if isinstance(event, _Stored):
            return Stored(event.lane, event.peer, event.upto_version)
        if isinstance(event, _Committed):
            return Committed(event.lane, event.upto_version)
        record = memoryview(base64.b64decode(event.batch, validate=True))
    except (msgspec.MsgspecError, ValueError) as cause:
        raise Malformed("event of an observer", expected="its JSON", found=f"{bytes(value[:80])!r}") from cause
    read_record(record)
    count = event.last_version - event.first_version + 1
    batch = ReadBatch(Range(event.lane, event.first_version, 0, count, record))
    return Enqueued(event.lane, event.first_version, event.last_version, batch)


def observed(cluster: Cluster, queue: str) -> AsyncGenerator[Event, None]:
    """An endless stream of events. Raises a peer's refusal, or Offline if none can be reached in time."""
    return pushed(cluster, lambda: {"role": "observer", "queue": queue}, read_event)
