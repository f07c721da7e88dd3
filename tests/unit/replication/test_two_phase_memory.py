"""Bounds of a two-phase lane's log: what one message carries, what memory keeps, what one acknowledgement says."""

from __future__ import annotations

import pytest
from tests.unit.replication.two_phase_hand import B1, VOTERS, coordinator, core, data, image_of, sent_by, sync

from avow.errors import Offline, StorageDamaged, Trimmed
from avow.limits import ENQUEUE_SIZE_BYTES_MAX, FRAME_SIZE_BYTES_MAX
from avow.replication.effects import SaveSnapshot
from avow.replication.two_phase.core import TwoPhaseCore
from avow.replication.two_phase.state import LaneLog
from avow.wire.frames import encode
from avow.wire.messages import (
    Enqueue,
    Entry,
    Fetch,
    Fetched,
    Heartbeat,
    Install,
    Kind,
    Message,
    Ready,
    Reject,
    Snapshot,
)

LARGE = b"x" * (ENQUEUE_SIZE_BYTES_MAX // 3)


def frame_size(message: Message) -> int:
    return sum(map(len, encode(1, message)))


def large(position: int, origin: int = B1) -> Entry:
    return Entry(position, origin, Kind.DATA, 1, b"%016d" % position, 0, b"", LARGE)


class Disk:
    """Storage for one lane, which may have lost something."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.trimmed_to = 0
        self.damaged = 0
        self.reads: list[tuple[int, int]] = []

    def read(self, after: int, max_entries: int) -> list[Entry]:
        self.reads.append((after, max_entries))
        if after < self.trimmed_to:
            raise Trimmed(f"held from {self.trimmed_to + 1}")
        if after + 1 == self.damaged:
            raise StorageDamaged(file="disk", position=self.damaged, expected="an entry", found="damage")
        return self.entries[after : after + max_entries]


def with_disk(count: int, *, size: int = 0) -> tuple[TwoPhaseCore, Disk]:
    """Peer 1, a coordinator whose take-over log is `count` entries, all committed and on its disk."""
    entries = [Entry(p, B1, Kind.DATA, 1, b"%016d" % p, 0, b"", b"x" * size) for p in range(1, count + 1)]
    disk = Disk(entries)
    peer = coordinator(log=tuple(entries), read=disk.read)
    peer.receive(2, Ready(peer.promised, peer.log.end, True), 1.0)
    disk.entries.append(peer.log.entry(peer.log.end))
    assert peer.committed == count + 1
    return peer, disk


# ------------------------------------------------------------------ one message


def test_an_enqueue_stays_below_the_bound_of_a_frame() -> None:
    peer = coordinator(log=tuple(large(position) for position in range(1, 8)))
    peer.receive(2, Reject(peer.promised, 0, 0), 1.0)
    sizes: list[int] = []
    for _ in range(9):
        for message in sent_by(peer, Enqueue):
            assert isinstance(message, Enqueue)
            sizes.append(frame_size(message))
            last = message.after + len(message.entries)
            peer.receive(2, Ready(peer.promised, last, last >= peer.leadership.takeover_end), 1.0)
    assert max(sizes) <= FRAME_SIZE_BYTES_MAX
    assert peer.leadership.progress[2].match == peer.log.end


def test_a_fetch_answer_stays_below_the_bound_of_a_frame() -> None:
    entries = [large(position) for position in range(1, 8)]
    donor = core(2, image=image_of(entries, stamped=B1, promised=B1))
    donor.receive(3, Fetch(B1, 0, 0), 0.0)
    (message,) = sent_by(donor, Fetched)
    assert isinstance(message, Fetched)
    assert len(message.entries) == 3
    assert message.end == 7


def test_a_take_over_sees_the_whole_tail_of_any_size() -> None:
    log = LaneLog(snapshot=None, entries=[large(position) for position in range(1, 8)])
    assert len(log.slice(0, 99)) == 7
    assert len(log.piece(0, 99)) == 3


def test_an_entry_larger_than_the_bound_is_sent_alone() -> None:
    log = LaneLog(snapshot=None, entries=[Entry(1, B1, Kind.DATA, 1, b"", 0, b"c", b"x" * ENQUEUE_SIZE_BYTES_MAX)])
    assert len(log.piece(0, 9)) == 1


def test_bytes_that_wait_for_a_quorum_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avow.replication.two_phase.leadership.IN_FLIGHT_SIZE_BYTES_MAX", 100)
    peer = coordinator()
    peer.leadership.append(Kind.DATA, count=1, write_id=b"", batch=b"x" * 101)
    with pytest.raises(Offline):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"", batch=b"x")
    sync(peer)
    peer.receive(2, Ready(peer.promised, peer.log.end, True), 1.0)
    peer.leadership.append(Kind.DATA, count=1, write_id=b"", batch=b"x")


# ------------------------------------------------------------------ one acknowledgement


def test_several_enqueues_between_two_drains_are_acknowledged_once() -> None:
    follower = core(2)
    for position in (1, 2, 3):
        origin = B1 if position > 1 else 0
        follower.receive(1, Enqueue(B1, position - 1, origin, (data(position, B1),), 0, 0), 0.0)
    assert sent_by(follower, Ready) == [Ready(B1, 3, True)]


def test_a_late_repetition_undoes_nothing() -> None:
    follower = core(2)
    first = Enqueue(B1, 0, 0, (data(1, B1),), 0, 0)
    follower.receive(1, first, 0.0)
    follower.receive(1, Enqueue(B1, 1, B1, (data(2, B1),), 0, 0), 0.0)
    follower.receive(1, first, 0.0)
    assert sent_by(follower, Ready) == [Ready(B1, 2, True)]


def test_a_stamp_is_acknowledged_with_the_last_position() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 2, 0), 0.0)
    follower.receive(1, Enqueue(B1, 1, B1, (data(2, B1),), 2, 0), 0.0)
    assert sent_by(follower, Ready) == [Ready(B1, 2, True)]


def test_entries_cut_by_a_stamp_are_not_acknowledged() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1), data(2, B1)), 9, 0), 0.0)  # not all of it: no stamp
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 1, 0), 0.0)  # an older one, which asked for less
    assert follower.log.end == 1
    assert sent_by(follower, Ready) == [Ready(B1, 1, True)]


def test_two_coordinators_are_answered_separately() -> None:
    follower = core(3)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    later = (2 << 16) + 2
    follower.receive(2, Enqueue(later, 0, 0, (data(1, later),), 0, 0), 0.0)
    assert [peer for peer, message in sync(follower)[1] if isinstance(message, Ready)] == [1, 2]


# ------------------------------------------------------------------ what memory keeps


def test_forgotten_entries_are_fed_from_storage() -> None:
    peer, disk = with_disk(6)
    peer.state.forget(5)
    assert (peer.log.base, peer.log.end) == (5, 7)
    peer.receive(3, Reject(peer.promised, 2, 0), 1.0)
    (message,) = [m for m in sent_by(peer, Enqueue) if isinstance(m, Enqueue) and m.after == 2]
    assert isinstance(message, Enqueue)
    assert [entry.position for entry in message.entries] == [3, 4, 5]  # never beyond the entries known to be committed
    assert message.origin == B1
    assert disk.reads


def test_forgotten_entries_are_served_to_a_claim_and_for_repair() -> None:
    peer, _ = with_disk(6)
    peer.state.forget(5)
    peer.receive(3, Fetch(0, 1, B1), 1.0)
    (message,) = sent_by(peer, Fetched)
    assert isinstance(message, Fetched)
    assert [entry.position for entry in message.entries] == [2, 3, 4, 5]


def test_only_synced_entries_are_forgotten() -> None:
    peer, _ = with_disk(3)
    position = peer.leadership.append(Kind.DATA, count=1, write_id=b"")
    peer.drain()
    for other in (2, 3):
        peer.receive(other, Ready(peer.promised, position, True), 1.0)
    assert peer.committed == position
    peer.state.forget(position)
    assert peer.log.base == position - 1


def test_without_readable_storage_all_entries_stay_in_memory() -> None:
    peer = coordinator(log=tuple(data(position, B1) for position in (1, 2, 3)))
    peer.receive(2, Ready(peer.promised, peer.log.end, True), 1.0)
    peer.state.forget(3)
    assert peer.log.base == 0


def test_a_peer_behind_deleted_entries_gets_the_snapshot() -> None:
    peer, disk = with_disk(6)
    snapshot = Snapshot(5, B1, VOTERS, (), b"state")
    peer.state.compact(snapshot)
    peer.state.forget(6)
    disk.trimmed_to = 4
    peer.receive(3, Reject(peer.promised, 2, 0), 1.0)
    (message,) = sent_by(peer, Install)
    assert isinstance(message, Install)
    assert message.snapshot == snapshot


def test_a_snapshot_is_requested_when_storage_lacks_the_entries() -> None:
    peer, disk = with_disk(6)
    peer.state.forget(6)
    disk.damaged = 4
    peer.receive(3, Reject(peer.promised, 3, 0), 1.0)
    assert sent_by(peer, Install) == []
    assert peer.state.snapshot_wanted
    peer.state.compact(Snapshot(7, peer.log.origin(7), VOTERS, (), b""))
    assert not peer.state.snapshot_wanted
    installs: list[Message] = []
    for beat in range(4):  # a peer that does not answer is asked what it has
        now = 1.1 + 0.1 * beat
        peer.receive(2, Heartbeat(peer.promised, False, 7), now)
        peer.tick(now)
        installs += sent_by(peer, Install)
        if beat == 3:
            peer.receive(3, Ready(peer.promised, 3, True), now)
            installs += sent_by(peer, Install)
    assert len(installs) == 1


def test_a_snapshot_alone_keeps_the_entries_in_memory_when_storage_can_be_read() -> None:
    peer, _ = with_disk(4)
    peer.state.compact(Snapshot(3, B1, VOTERS, (), b""))
    effects = peer.drain()
    assert effects is not None
    assert any(isinstance(operation, SaveSnapshot) for operation in effects.persist)
    assert peer.log.base == 0
    peer.state.trim(3)
    with pytest.raises(AssertionError):
        peer.state.trim(4)


def test_forgotten_entries_are_removed_from_memory() -> None:
    log = LaneLog(snapshot=None, entries=[data(position, B1) for position in range(1, 9)])
    log.compact(6)
    assert [entry.position for entry in log._entries] == [7, 8]
    assert (log.base, log.base_origin, log.size_bytes) == (6, B1, 0)


def test_memory_in_bytes_follows_appends_cuts_and_forgetting() -> None:
    entries = [Entry(p, B1, Kind.DATA, 1, b"", 0, b"cc", b"x" * p) for p in range(1, 6)]
    log = LaneLog(snapshot=None, entries=entries)
    assert log.size_bytes == 1 + 2 + 3 + 4 + 5 + 10
    log.cut(4)
    assert log.size_bytes == 1 + 2 + 3 + 4 + 8
    log.compact(1)
    assert log.size_bytes == 2 + 3 + 4 + 6


def test_the_surplus_leaves_a_quarter_of_the_bounds_free() -> None:
    log = LaneLog(snapshot=None, entries=[Entry(p, B1, Kind.DATA, 1, b"", 0, b"", b"x" * 10) for p in range(1, 21)])
    assert log.surplus(max_entries=16, max_bytes=1 << 20) == 8
    assert log.surplus(max_entries=99, max_bytes=160) == 8
    assert log.surplus(max_entries=8, max_bytes=40) == 17
