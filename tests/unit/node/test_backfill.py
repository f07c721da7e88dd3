"""How a peer fetches what it lacks after another's snapshot: one lane without IO, with a store that fails."""

from __future__ import annotations

import pytest
from tests.unit.node.queue_lane_hand import LANE, NOW, coordinating, lane, perform, stored, write

from avow.errors import Offline, StorageDamaged
from avow.node.backfill import HISTORY, Backfill
from avow.node.lane.queue_lane import QueueLane
from avow.queue.commands import TrimCommand, encode
from avow.replication.effects import Persist, SaveEntries, SaveSnapshot
from avow.storage.memory import MemoryStore
from avow.wire.messages import Enqueue, Entry, Heartbeat, Install, Kind, LaneFetch, LaneFetched, Message

BALLOT = 65537
ENTRIES = 12  # of the coordinator below: a noop and eleven writes


def coordinator() -> tuple[QueueLane, MemoryStore]:
    store = MemoryStore()
    peer = coordinating(snapshot_every=6, memory_entries=2, store=store)
    for number in range(1, ENTRIES):
        peer.write(number, write(number), NOW)
        stored(peer, store)
    return peer, store


def newcomer(donor: QueueLane, store: MemoryStore | None = None) -> tuple[QueueLane, MemoryStore]:
    """Peer 3, given the donor's snapshot."""
    store = store or MemoryStore()
    peer = lane(3, store=store, memory_entries=2, snapshot_every=4)
    assert donor.core.state.snapshot is not None
    peer.receive(1, Install(donor.core.promised, donor.core.state.snapshot, 0, donor.core.committed), NOW)
    perform(peer, store)
    return peer, store


def talk(peer: QueueLane, store: MemoryStore, donor: QueueLane, *, pieces: int) -> list[int]:
    """The donor answers so many questions; where they began."""
    asked: list[int] = []
    now = NOW
    for _ in range(20):
        now += 0.3
        peer.receive(1, Heartbeat(donor.core.promised, True, donor.core.committed), now)
        peer.tick(now)
        questions: list[tuple[int, Message]] = perform(peer, store)
        while questions and len(asked) < pieces:
            target, question = questions.pop(0)
            if not isinstance(question, LaneFetch) or target != 1:
                continue
            asked.append(question.after)
            donor.receive(3, question, now)
            for _, answer in [item for item in perform(donor) if isinstance(item[1], LaneFetched)]:
                peer.receive(1, answer, now)
                questions += perform(peer, store)
    return asked


def test_entries_are_read_from_memory_or_storage_alike() -> None:
    donor, _ = coordinator()
    assert donor.core.log.base > 6, "forgotten beyond the first snapshot"
    assert [entry.position for entry in donor.entries(1, 99)] == list(range(2, donor.core.log.base + 1))
    assert donor.read_entry(ENTRIES).position == ENTRIES
    assert donor.entries(ENTRIES, 9) == ()
    found = donor.peek_version(1)
    assert found is not None
    assert (found[0].position, found[2]) == (2, True)
    assert donor.whole


def test_entries_have_a_bound_in_bytes() -> None:
    donor, _ = coordinator()
    assert len(donor.entries(1, 99, 3)) == 3  # of one byte each


def test_a_peer_that_got_a_snapshot_reports_what_it_lacks_and_copies_it() -> None:
    donor, _ = coordinator()
    peer, store = newcomer(donor)
    assert not peer.whole
    with pytest.raises(Offline, match="still copying entry"):
        peer.read_entry(2)
    talk(peer, store, donor, pieces=9)
    assert peer.whole
    assert peer.core.state.snapshot is not None
    for position in range(2, peer.core.state.snapshot.position + 1):
        assert peer.read_entry(position) == donor.read_entry(position)


def test_a_restart_continues_the_copy_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avow.node.lane.entries.one_frame", lambda entries: entries[:2])
    donor, _ = coordinator()
    peer, store = newcomer(donor)
    assert talk(peer, store, donor, pieces=2) == [1, 3]  # the noop before the first message is not needed
    again = lane(3, store=store, memory_entries=2)
    assert not again.whole
    assert again.read_entry(4) == donor.read_entry(4)
    assert talk(again, store, donor, pieces=9)[0] == 5
    assert again.whole


def test_a_peer_with_whole_lanes_is_still_whole_after_a_restart() -> None:
    donor, _ = coordinator()
    peer, store = newcomer(donor)
    talk(peer, store, donor, pieces=9)
    again = lane(3, store=store, memory_entries=2)
    assert again.whole
    assert again.read_entry(3) == donor.read_entry(3)


def test_a_second_snapshot_leaves_more_to_copy_and_keeps_existing_entries() -> None:
    donor, donor_store = coordinator()
    peer, store = newcomer(donor)
    talk(peer, store, donor, pieces=9)
    for number in range(20, 32):
        donor.write(number, write(number), NOW)
        stored(donor, donor_store)
    assert donor.core.state.snapshot is not None
    first_copied = peer.core.committed
    peer.receive(1, Install(donor.core.promised, donor.core.state.snapshot, 0, donor.core.committed), NOW + 20)
    perform(peer, store)
    assert not peer.whole
    assert peer.read_entry(3) == donor.read_entry(3)
    assert talk(peer, store, donor, pieces=9)[0] == first_copied
    assert peer.whole


def test_a_trim_beyond_the_snapshot_leaves_nothing_to_copy() -> None:
    donor, donor_store = coordinator()
    peer, store = newcomer(donor)
    talk(peer, store, donor, pieces=9)
    donor.propose(Kind.TRIM, encode(TrimCommand(donor.state.end)))
    for number in range(40, 46):
        donor.write(number, write(number), NOW)
    log, after = donor.core.log, peer.core.log.end
    origin, entries = log.origin(after), log.slice(after, 99)
    stored(donor, donor_store)
    peer.receive(1, Enqueue(donor.core.promised, after, origin, entries, 0, donor.core.committed), NOW + 9)
    perform(peer, store)
    assert peer.whole
    assert store.load().lanes[LANE | HISTORY].entries == []


def test_a_damaged_history_is_copied_again() -> None:
    donor, _ = coordinator()
    peer, store = newcomer(donor)
    talk(peer, store, donor, pieces=9)
    store.damage(LANE | HISTORY, 4)
    with pytest.raises(StorageDamaged):
        peer.read_entry(4)
    assert not peer.whole
    talk(peer, store, donor, pieces=9)
    assert peer.whole
    assert peer.read_entry(4) == donor.read_entry(4)
    store.damage(LANE | HISTORY, 5)
    again = lane(3, store=store, memory_entries=2)  # found out at a start this time
    assert not again.whole
    perform(again, store)
    talk(again, store, donor, pieces=9)
    assert again.whole
    assert not store.load().lanes[LANE | HISTORY].damaged_from


def test_an_unreadable_entry_of_the_lane_itself_is_copied_from_another_peer() -> None:
    donor, _ = coordinator()
    twin, store = coordinator()
    store.damage(LANE, 3)
    with pytest.raises(StorageDamaged):
        twin.read_entry(3)
    assert not twin.whole
    twin.core.heard[2] = NOW + 5
    twin.tick(NOW + 5)
    ((_, question),) = [item for item in perform(twin, store) if isinstance(item[1], LaneFetch)]
    assert question == LaneFetch(LANE, 1)
    twin.receive(2, LaneFetched(LANE, 1, donor.entries(1, 9)), NOW + 5)
    perform(twin, store)
    assert twin.whole
    assert twin.read_entry(3) == donor.read_entry(3)


def test_a_damaged_stretch_is_copied_as_a_whole() -> None:
    donor, _ = coordinator()
    twin, store = coordinator()
    for position in (3, 4, 5):
        store.damage(LANE, position)
    with pytest.raises(StorageDamaged):
        twin.read_entry(3)
    twin.core.heard[2] = NOW + 5
    twin.tick(NOW + 5)
    perform(twin, store)
    twin.receive(2, LaneFetched(LANE, 1, donor.entries(1, 9)), NOW + 5)
    perform(twin, store)
    assert twin.whole
    assert [twin.read_entry(position) for position in (3, 4, 5)] == list(donor.entries(2, 3))


def test_entries_that_storage_lacks_at_the_start_are_copied() -> None:
    found = Backfill(
        lane=LANE,
        image=None,
        read=lambda _a, _n: [],
        main=lambda after, _n: [entry(after + 1)],
        snapshot_at=10,
        needed_from=1,
        missing_upto=4,
    )
    assert (found.busy, found.main_base, found.wanted(1)) == (True, 4, 0)
    assert found.is_whole(5)


def test_no_uncommitted_entry_is_served() -> None:
    donor, store = coordinator()
    donor.write(99, write(99), NOW)
    perform(donor, store)
    donor.receive(3, LaneFetch(LANE, ENTRIES - 1), NOW)
    ((_, answer),) = [item for item in perform(donor, store) if isinstance(item[1], LaneFetched)]
    assert isinstance(answer, LaneFetched)
    assert [entry.position for entry in answer.entries] == [ENTRIES]


def entry(position: int) -> Entry:
    return Entry(position, BALLOT, Kind.DATA, 1)


def backfill() -> Backfill:
    found = Backfill(lane=LANE, image=None, read=lambda _a, _n: [], main=None, snapshot_at=0, needed_from=1)
    found.lost(10)
    return found


def saved(found: Backfill) -> list[Persist]:
    return found.take_saves()


def test_answers_that_are_not_consecutive_are_ignored() -> None:
    found = backfill()
    assert found.wanted(4) == 3
    assert not found.take(2, (entry(3), entry(4)), 4)
    assert not found.take(3, (), 4)
    assert not found.take(3, (entry(4), entry(6)), 4)
    assert saved(found) == []
    assert found.take(3, (entry(4), entry(5)), 4)
    assert isinstance(saved(found)[0], SaveSnapshot)


def test_no_more_is_stored_than_was_lost() -> None:
    found = backfill()
    assert found.take(8, tuple(map(entry, range(9, 15))), 9)
    (kept,) = [operation for operation in saved(found) if isinstance(operation, SaveEntries)]
    assert [held.position for held in kept.entries] == [9, 10]
    assert not found.is_whole(9), "not synced yet"
    found.synced(found.mark)
    assert found.is_whole(9)


def test_a_peer_that_does_not_answer_is_skipped() -> None:
    found = backfill()
    asked = [found.ask(needed_from=1, peers=(2, 3), now=float(now), wait_s=0.5) for now in (0, 1, 2)]
    assert [question[0] for question in asked if question is not None] == [2, 3, 2]
    assert found.ask(needed_from=1, peers=(2, 3), now=2.1, wait_s=0.5) is None
