"""Producers: what a client sends goes into a queue, and the ack of a commit says that a quorum has it.

    records   each message of the channel is a batch that the client has encoded, with the lane it is for and its age
    json      each is one message as JSON; those between two commits are one write, whose id follows from the commit's

Writes are counted as they come. A commit covers those before it, and is acknowledged when all of them are done, in
whichever lanes they are: when the oldest that is not done came after it.

What cannot be written ends the channel. The client then has back all that no ack covers, and may send it again, here or
elsewhere: what was done already is known there by its write id.
"""

from __future__ import annotations

from collections import deque
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

import msgspec

from avow.errors import InvalidRequest, Offline
from avow.peer.channels.flights import LaneFlights, Port, PubSubPort, Sent, TwoPhasePort
from avow.peer.http.intake import Taken, check_message, take_batch, take_messages
from avow.peer.http.shapes import NewMessage

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.peer.channels.figures import Figures
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue

_HEAD: Final = Layout("<II")
_WRITER_SIZE_BYTES: Final = 8  # of a producer's id, in front of a commit's
_decode_message: Final = msgspec.json.Decoder(NewMessage).decode


class Writes:
    """The writes of one producer, over all lanes, and the commits between them."""

    def __init__(self, peer: Peer, channel: Channel, queue: Queue) -> None:
        self._peer, self._channel, self._queue = peer, channel, queue
        self._lanes: dict[int, LaneFlights] = {}
        self._busy: dict[LaneFlights, None] = {}
        self._count = 0
        self._commits: deque[tuple[int, int]] = deque()  # (writes before it, commit), the newest for each number

    def put(self, lane: int, taken: Taken, *, write_id: bytes, age_ms: int = 0) -> None:
        self._count += 1
        flights = self._lanes.get(lane)
        if flights is None:
            flights = self._lanes[lane] = self._open(lane)
        flights.put(Sent(self._count, taken, write_id, age_ms, self._peer.now()))
        self._busy[flights] = None

    def fly(self) -> None:
        for flights in self._busy:
            flights.fly()

    def commit(self, commit_id: int) -> None:
        if self._commits and self._commits[-1][0] == self._count:
            self._commits.pop()
        self._commits.append((self._count, commit_id))
        self._acknowledge()

    def stop(self) -> None:
        for flights in self._lanes.values():
            flights.stop()
        self._busy.clear()

    def _open(self, lane: int) -> LaneFlights:
        queue = self._queue
        if queue.strategy == "pub-sub":
            if not lane:
                raise InvalidRequest("a record for a pub-sub queue names the lane it is bound to; it was not stored")
            port: Port = PubSubPort(self._peer, queue, lane)
        elif lane < queue.lanes:
            port = TwoPhasePort(self._peer, queue, lane)
        else:
            raise InvalidRequest(
                f"queue {queue.name!r} has lanes 0 to {queue.lanes - 1}, not {lane}; the record was not stored"
            )
        return LaneFlights(self._peer, self._channel, port, self._landed)

    def _landed(self, flights: LaneFlights) -> None:
        if flights.idle:
            del self._busy[flights]
        else:
            flights.fly()
        self._acknowledge()

    def _acknowledge(self) -> None:
        done = min((flights.first for flights in self._busy), default=self._count + 1) - 1
        commit_id = 0
        while self._commits and self._commits[0][0] <= done:
            commit_id = self._commits.popleft()[1]
        if commit_id:
            self._channel.ack_commit(commit_id)


class RecordsProducer:
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, figures: Figures) -> None:
        self._writes, self._figures = Writes(peer, channel, queue), figures
        channel.on_messages, channel.on_commit, channel.on_end = self._messages, self._writes.commit, self._ended

    def _messages(self, values: list[memoryview]) -> None:
        self._figures.received += len(values)
        try:
            for value in values:
                self._take(value)
        finally:
            self._writes.fly()  # what came before a record that is none is as good as ever

    def _take(self, value: memoryview) -> None:
        if len(value) < _HEAD.size:
            raise InvalidRequest("a message of a producer is a lane, an age and a record; it was not stored")
        lane, age_ms = _HEAD.unpack_from(value)
        taken = take_batch(value[_HEAD.size :])
        if not taken.write_id:
            raise InvalidRequest("a producer's record has a write id, or it could be stored twice; it was not stored")
        self._writes.put(lane, _of_its_own(taken), write_id=taken.write_id, age_ms=age_ms)

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._writes.stop()


def _of_its_own(taken: Taken) -> Taken:
    """A section that would keep a much larger packet in memory is copied out of it."""
    section = taken.section
    if isinstance(section, memoryview) and 2 * len(section) < len(section.obj):
        return msgspec.structs.replace(taken, section=bytes(section))
    return taken


class JsonProducer:
    """`producer`: the client's id, the same on each of its channels, as long as its commits are numbered on."""

    def __init__(self, peer: Peer, channel: Channel, queue: Queue, figures: Figures, *, producer: bytes) -> None:
        self._peer, self._queue, self._figures = peer, queue, figures
        self._writes = Writes(peer, channel, queue)
        self._producer = producer[:_WRITER_SIZE_BYTES]
        self._messages: list[NewMessage] = []
        self._received = 0
        channel.on_messages, channel.on_commit, channel.on_end = self._take, self._commit, self._ended

    def _take(self, values: list[memoryview]) -> None:
        self._figures.received += len(values)
        for value in values:
            self._received += 1
            try:
                message = _decode_message(value)
                check_message(message)
                self._messages.append(message)
            except (msgspec.DecodeError, UnicodeDecodeError, InvalidRequest) as cause:
                raise InvalidRequest(f"message {self._received} is not one: {cause}; it was not stored") from cause

    def _commit(self, commit_id: int) -> None:
        messages, self._messages = self._messages, []
        if messages:
            self._write(messages, commit_id)
        self._writes.commit(commit_id)

    def _write(self, messages: list[NewMessage], commit_id: int) -> None:
        write_id = self._producer + commit_id.to_bytes(8, "big")
        pubsub = self._queue.strategy == "pub-sub"
        batches = take_messages(
            messages,
            write_id=write_id,
            lane=self._open_lane() if pubsub else None,
            lanes=self._queue.lanes,
            now_ms=self._peer.now_ms(),
        )
        for lane, taken in batches.items():
            self._writes.put(lane, taken, write_id=write_id)
        self._writes.fly()

    def _open_lane(self) -> int:
        """Pub-sub: where this peer writes now. The write stays bound to it."""
        held = self._peer.node.pubsub.get(self._queue.name)
        if held is None or not held.open_lane:
            raise Offline("this peer has no open lane of the queue now; nothing was stored. Try another peer")
        return held.open_lane

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._messages.clear()
        self._writes.stop()
