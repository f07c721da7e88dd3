"""Producers: messages from the client are written to a queue; the ack of a commit means that a quorum has stored them.

    records   each channel message is a batch encoded by the client, with its lane and its age
    json      each is one message as JSON; those between two commits are one write, with an id made from the commit's id

Writes are numbered as they arrive. A commit covers all writes before it, in all lanes, and is acknowledged when they
are done: when the oldest write that is not done came after it.

A write that fails ends the channel. The client then resends everything that no ack covers, to this peer or another:
writes that were done are recognized by their write ids.
"""

from __future__ import annotations

from collections import deque
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final

import msgspec

from avow.errors import InvalidRequest, Offline
from avow.server.channels.lane_writer import LaneAccess, LaneWriter, ProducerWrite, PubSubAccess, TwoPhaseAccess
from avow.server.http.schemas import NewMessage
from avow.server.http.write_body import WriteBody, age_since, check_message, take_batch, take_messages

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.queue.records import Queue
    from avow.server.channels.channels import ChannelCounters
    from avow.server.process import Peer

_HEAD: Final = Layout("<II")
_WRITER_SIZE_BYTES: Final = 8  # of the producer's id; the commit's id follows
_decode_message: Final = msgspec.json.Decoder(NewMessage).decode


class Writes:
    """The writes of one producer, over all lanes, and the commits between them."""

    def __init__(self, peer: Peer, channel: Channel, queue: Queue) -> None:
        self._peer, self._channel, self._queue = peer, channel, queue
        self._lanes: dict[int, LaneWriter] = {}
        self._busy: dict[LaneWriter, None] = {}
        self._count = 0
        self._commits: deque[tuple[int, int]] = deque()  # (writes before it, commit id); one per count

    def put(self, lane: int, taken: WriteBody, *, write_id: bytes, age_ms: int = 0) -> None:
        self._count += 1
        writer = self._lanes.get(lane)
        if writer is None:
            writer = self._lanes[lane] = self._open(lane)
        writer.put(ProducerWrite(self._count, taken, write_id, age_ms, self._peer.now()))
        self._busy[writer] = None

    def send(self) -> None:
        for writer in self._busy:
            writer.send()

    def commit(self, commit_id: int) -> None:
        if self._commits and self._commits[-1][0] == self._count:
            self._commits.pop()
        self._commits.append((self._count, commit_id))
        self._acknowledge()

    def stop(self) -> None:
        for writer in self._lanes.values():
            writer.stop()
        self._busy.clear()

    def _open(self, lane: int) -> LaneWriter:
        queue = self._queue
        if queue.strategy == "pub-sub":
            if not lane:
                raise InvalidRequest("a record for a pub-sub queue must name its lane; it was not stored")
            access: LaneAccess = PubSubAccess(self._peer, queue, lane)
        elif lane < queue.lanes:
            access = TwoPhaseAccess(self._peer, queue, lane)
        else:
            raise InvalidRequest(
                f"queue {queue.name!r} has lanes 0 to {queue.lanes - 1}, not {lane}; the record was not stored"
            )
        return LaneWriter(self._peer, self._channel, access, self._group_done)

    def _group_done(self, writer: LaneWriter) -> None:
        if writer.idle:
            del self._busy[writer]
        else:
            writer.send()
        self._acknowledge()

    def _acknowledge(self) -> None:
        done = min((writer.first for writer in self._busy), default=self._count + 1) - 1
        commit_id = 0
        while self._commits and self._commits[0][0] <= done:
            commit_id = self._commits.popleft()[1]
        if commit_id:
            self._channel.ack_commit(commit_id)


class RecordsProducer:
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, counters: ChannelCounters) -> None:
        self._writes, self._counters = Writes(peer, channel, queue), counters
        channel.on_messages, channel.on_commit, channel.on_end = self._messages, self._writes.commit, self._ended

    def _messages(self, values: list[memoryview]) -> None:
        self._counters.received += len(values)
        try:
            for value in values:
                self._take(value)
        finally:
            self._writes.send()  # also those before an invalid record

    def _take(self, value: memoryview) -> None:
        if len(value) < _HEAD.size:
            raise InvalidRequest("a producer's message must have a lane, an age and a record; it was not stored")
        lane, age_ms = _HEAD.unpack_from(value)
        taken = take_batch(value[_HEAD.size :])
        if not taken.write_id:
            raise InvalidRequest(
                "a producer's record must have a write id, which prevents duplicates; it was not stored"
            )
        self._writes.put(lane, _without_packet(taken), write_id=taken.write_id, age_ms=age_ms)

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._writes.stop()


def _without_packet(taken: WriteBody) -> WriteBody:
    """Copies a section out of its packet if it would keep a much larger packet in memory."""
    section = taken.section
    if isinstance(section, memoryview) and 2 * len(section) < memoryview(section.obj).nbytes:
        return msgspec.structs.replace(taken, section=bytes(section))
    return taken


class JsonProducer:
    """`producer`: the client's id, the same on each of its channels, as long as it continues the commit numbers.

    Commits up to `tried` may have been sent on an earlier channel, at `created_ms` or later. JSON has no field for the
    age of a write, so this is how a lane learns which commits are first attempts. Without `tried` every commit may be a
    repetition from any time, and a lane that has forgotten write ids takes none that it does not know.
    """

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        queue: Queue,
        counters: ChannelCounters,
        *,
        producer: bytes,
        tried: int | None,
        created_ms: int | None,
    ) -> None:
        self._tried, self._created_ms = tried, created_ms
        self._peer, self._queue, self._counters = peer, queue, counters
        self._writes = Writes(peer, channel, queue)
        self._producer = producer[:_WRITER_SIZE_BYTES]
        self._messages: list[NewMessage] = []
        self._received = 0
        channel.on_messages, channel.on_commit, channel.on_end = self._take, self._commit, self._ended

    def _take(self, values: list[memoryview]) -> None:
        self._counters.received += len(values)
        for value in values:
            self._received += 1
            try:
                message = _decode_message(value)
                check_message(message)
                self._messages.append(message)
            except (msgspec.DecodeError, UnicodeDecodeError, InvalidRequest) as cause:
                raise InvalidRequest(f"message {self._received} is not valid: {cause}; it was not stored") from cause

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
        is_first = self._tried is not None and commit_id > self._tried
        age_ms = 0 if is_first else age_since(self._created_ms, self._peer.now_ms())
        for lane, taken in batches.items():
            self._writes.put(lane, taken, write_id=write_id, age_ms=age_ms)
        self._writes.send()

    def _open_lane(self) -> int:
        """Pub-sub: the lane to which this peer writes now. The write stays bound to it."""
        held = self._peer.node.pubsub.get(self._queue.name)
        if held is None or not held.open_lane:
            raise Offline("this peer has no open lane of the queue at present; nothing was stored. Try another peer")
        return held.open_lane

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._messages.clear()
        self._writes.stop()
