"""Single lanes of a two-phase queue without IO, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

from avow.node.lane.queue_lane import HISTORY, QueueLane
from avow.node.lane.two_phase_lane import Write
from avow.queue.ledger import Bounds
from avow.replication.durable import synced_receipt
from avow.replication.effects import LaneImage
from avow.replication.tuning import Tuning
from avow.storage.memory import MemoryStore
from avow.wire.batch import encode_batch, unpack_entry
from avow.wire.messages import Confirmed, Entry, Kind, Message, ProbeAnswer, Promise, Ready, Snapshot

LANE = 1
NOW = 1.0

PROOF = synced_receipt(1)


def lane(
    me: int = 1,
    *,
    bounds: Bounds | None = None,
    snapshot_every: int = 0,
    memory_entries: int = 4_096,
    store: MemoryStore | None = None,
) -> QueueLane:
    """With a store, whatever is performed is stored there, and read from there."""
    found = store.load().lanes if store is not None else {}
    image = found.get(LANE) or LaneImage(snapshot=Snapshot(0, 0, (1, 2, 3), (), b""), entries=[])
    return QueueLane(
        me=me,
        lane=LANE,
        image=image,
        rng=lambda: 0.5,
        tuning=Tuning(),
        now=0.0,
        bounds=bounds,
        snapshot_every=snapshot_every,
        memory_entries=memory_entries,
        read=reader(store, LANE) if store is not None else None,
        history=found.get(LANE | HISTORY),
        read_history=reader(store, LANE | HISTORY) if store is not None else None,
    )


def reader(store: MemoryStore, number: int) -> Callable[[int, int], list[Entry]]:
    def read(after: int, max_entries: int) -> list[Entry]:
        return store.read(number, after=after, max_entries=max_entries, max_bytes=1 << 20)

    return read


def perform(peer: QueueLane, store: MemoryStore | None = None) -> list[tuple[int, Message]]:
    sent: list[tuple[int, Message]] = []
    while (effects := peer.drain()) is not None:
        sent += effects.sends
        if effects.persist and store is not None:
            store.write(effects.persist, lambda _proof: None)
            store.sync()
        while peer.core.effects.outstanding:
            peer.persisted(PROOF)
    return sent


def coordinating(
    *,
    bounds: Bounds | None = None,
    snapshot_every: int = 0,
    memory_entries: int = 4_096,
    store: MemoryStore | None = None,
) -> QueueLane:
    peer = lane(bounds=bounds, snapshot_every=snapshot_every, memory_entries=memory_entries, store=store)
    peer.tick(NOW)
    peer.receive(2, ProbeAnswer(0, False, 0), NOW)
    perform(peer, store)
    peer.receive(2, Promise(peer.core.promised, 0, 0, 0), NOW)
    perform(peer, store)
    stored(peer, store)
    return peer


def stored(peer: QueueLane, store: MemoryStore | None = None) -> None:
    """Peer 2 has stored everything."""
    perform(peer, store)
    peer.receive(2, Ready(peer.core.promised, peer.core.log.end, True), NOW)
    perform(peer, store)


def confirmed(peer: QueueLane) -> None:
    peer.receive(2, Confirmed(peer.core.promised, peer.core.leadership.reads.round), NOW)
    perform(peer)


def write(number: int, *, count: int = 1, expected: int = -1) -> Write:
    return Write(Kind.DATA, b"%016d" % number, count, expected, 0, b"", b"x")


def section(*values: bytes, key: bytes | None = None) -> bytes:
    keys = None if key is None else [key] * len(values)
    return bytes(unpack_entry(bytes(encode_batch(list(values), keys=keys))).batch)


def small(number: int, *values: bytes, key: bytes | None = None) -> Write:
    """A write that may be merged."""
    values = values or (b"v%d" % number,)
    batch = section(*values, key=key)
    return Write(Kind.DATA, b"%016d" % number, len(values), -1, 0, b"", batch, mergeable=True)


def heard(peer: QueueLane) -> list[tuple[int, object]]:
    return list(peer.take_answers())
