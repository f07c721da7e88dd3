"""One core without IO: copies that start after removed entries, entries that left memory, dropped lanes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from avow.errors import InvalidRequest, StorageDamaged, Trimmed
from avow.replication.durable import LaneImages, synced_receipt
from avow.replication.effects import Effects, LaneImage, SaveEntries, SaveFence, SaveSnapshot, SaveTrim
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.state import Read
from avow.replication.tuning import Tuning
from avow.wire.messages import (
    Entry,
    Fence,
    Fenced,
    Kind,
    LaneEnqueue,
    LaneFetch,
    LaneFetched,
    LaneHeartbeat,
    Message,
    Refill,
    Refilled,
    Snapshot,
    Stored,
)

LANE = 7
STATE = b"state at five"


def entries(first: int, last: int) -> tuple[Entry, ...]:
    return tuple(Entry(position, 1, Kind.DATA, 1, batch=b"%d" % position) for position in range(first, last + 1))


def start(position: int) -> Entry:
    return Entry(position, 1, Kind.TRIM, batch=STATE)


def core_of(image: LaneImage | None = None, *, me: int = 3, owner: int = 1, read: Read | None = None) -> PubSubCore:
    core = PubSubCore(
        me=me,
        incarnation=1,
        images=LaneImages({} if image is None else {LANE: image}),
        rng=lambda: 0.5,
        tuning=Tuning(piece_entries=4),
        now=0.0,
        read=read,
    )
    core.members((1, 2, 3), ())
    core.lane_opened(LANE, owner, 1, (1, 2, 3), 0.0)
    core.drain()
    return core


def synced(core: PubSubCore) -> Effects:
    effects = core.drain()
    assert effects is not None
    core.persisted(synced_receipt(1), 0.0)
    return effects


def sent_by(core: PubSubCore, kind: type) -> list[Message]:
    effects = core.drain()
    return [] if effects is None else [message for _, message in effects.sends if isinstance(message, kind)]


def test_a_lagging_copy_starts_at_the_given_base_and_continues_from_there() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 2), 0), 0.0)
    synced(core)
    core.receive(2, LaneFetched(LANE, 4, (start(5), *entries(6, 7))), 0.0)
    assert core.notifications.take_begun() == [(LANE, 5, STATE)]
    effects = synced(core)
    saved, taken = effects.persist
    assert saved == SaveSnapshot(LANE, Snapshot(5, 1, (1, 2, 3), (), STATE), reset=True)
    assert isinstance(taken, SaveEntries)
    assert (core.end_of(LANE), core.readable_to(LANE), core.cursor_of(LANE)) == (7, 5, 5)
    assert sent_by(core, Stored) == [Stored(LANE, 7), Stored(LANE, 7)]


def test_a_copy_that_has_the_removed_entries_takes_only_later_ones() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 6), 6), 0.0)
    synced(core)
    core.receive(2, LaneFetched(LANE, 4, (start(5), *entries(6, 8))), 0.0)
    assert core.notifications.take_begun() == []
    assert core.end_of(LANE) == 8
    assert core.retention.held(LANE, after=0, to=8) == list(entries(1, 8))


def test_a_base_is_also_accepted_from_a_resending_owner_and_from_a_refill() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 4, (start(5), *entries(6, 6)), 6), 0.0)
    assert core.end_of(LANE) == 6
    core = core_of()
    core.receive(2, Fence(LANE, 9), 0.0)
    core.receive(2, Refill(LANE, 9, 4, (start(5), *entries(6, 6))), 0.0)
    assert (2, Refilled(LANE, 9, 6)) not in synced(core).sends
    assert sent_by(core, Refilled) == [Refilled(LANE, 9, 6)]


def test_entries_after_a_fence_are_never_counted_as_stored() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 2), 0), 0.0)
    core.receive(2, Fence(LANE, 9), 0.0)
    core.receive(2, Refill(LANE, 9, 4, (start(5), *entries(6, 7))), 0.0)
    synced(core)
    assert sent_by(core, Stored) == [Stored(LANE, 2), Stored(LANE, 2)], "as much as came before the fence"


def test_a_fenced_copy_does_not_restart_by_a_fetch() -> None:
    core = core_of()
    core.receive(2, Fence(LANE, 9), 0.0)
    synced(core)
    core.receive(2, LaneFetched(LANE, 4, (start(5),)), 0.0)
    assert core.end_of(LANE) == 0


def test_an_owner_does_not_restart_its_own_lane() -> None:
    core = core_of(owner=3)
    core.receive(2, LaneFetched(LANE, 4, (start(5),)), 0.0)
    assert (core.own_lane, core.end_of(LANE)) == (LANE, 0)


def test_a_base_that_arrives_before_its_lane_is_used_when_the_lane_is_known() -> None:
    core = PubSubCore(me=3, incarnation=1, images=LaneImages({}), rng=lambda: 0.5, tuning=Tuning(), now=0.0)
    core.receive(2, Fence(LANE, 9), 0.0)
    core.receive(2, Refill(LANE, 9, 4, (start(5),)), 0.0)
    assert core.notifications.take_begun() == []
    core.lane_opened(LANE, 1, 1, (1, 2, 3), 0.0)
    assert core.retention.take_state(LANE) == (5, STATE)


def test_a_copy_on_a_full_disk_does_not_start_at_a_base() -> None:
    core = core_of()
    core.disk_full(full=True)
    core.receive(2, LaneFetched(LANE, 4, (start(5),)), 0.0)
    assert core.end_of(LANE) == 0


def donor(read: list[Entry] | Exception) -> PubSubCore:
    def from_storage(_lane: int, after: int, limit: int) -> Sequence[Entry]:
        if isinstance(read, Exception):
            raise read
        return [entry for entry in read if entry.position > after][:limit]

    image = LaneImage(snapshot=Snapshot(6, 1, (1, 2, 3), (), b"mine"), entries=list(entries(7, 8)))
    core = core_of(image, read=from_storage)
    core.retention.ask_for_starts(lambda _lane: (5, STATE))
    return core


def test_a_peer_asked_for_removed_entries_answers_where_to_start() -> None:
    core = donor(Trimmed("gone"))
    core.receive(2, LaneFetch(LANE, 3), 0.0)
    (fetched,) = sent_by(core, LaneFetched)
    assert isinstance(fetched, LaneFetched)
    assert (fetched.after, [(entry.kind, entry.position) for entry in fetched.entries]) == (4, [(Kind.TRIM, 5)])


def test_entries_still_on_disk_are_sent_from_there() -> None:
    core = donor(list(entries(1, 8)))
    core.receive(2, LaneFetch(LANE, 3), 0.0)
    (fetched,) = sent_by(core, LaneFetched)
    assert isinstance(fetched, LaneFetched)
    assert [entry.position for entry in fetched.entries] == [4, 5, 6], "the rest is in memory, and another piece"


def test_unreadable_entries_are_not_sent_and_the_reader_gets_an_error() -> None:
    core = donor(StorageDamaged(file="f", position=1, expected="entry", found="damage"))
    core.receive(2, LaneFetch(LANE, 3), 0.0)
    assert sent_by(core, LaneFetched) == []
    with pytest.raises(StorageDamaged):
        core.retention.entries(LANE, after=3, limit=1)


def test_a_copy_restored_from_a_snapshot_counts_and_answers_for_all_of_it() -> None:
    core = donor([])
    assert (core.end_of(LANE), core.readable_to(LANE)) == (8, 6)
    core.receive(2, Fence(LANE, 9), 0.0)
    effects = synced(core)
    assert (2, Fenced(LANE, 9, 8, 0)) not in effects.sends
    assert SaveFence(LANE, -1) in effects.persist
    assert sent_by(core, Fenced) == [Fenced(LANE, 9, 8, 0)]


def test_half_of_the_visible_entries_leave_memory_once_a_bound_is_passed() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 9), 9), 0.0)
    synced(core)
    core.retention.relieve(LANE, 3, entries_max=2, bytes_max=1000)
    assert core.retention.held(LANE, after=2, to=9) == list(entries(3, 9))
    core.retention.relieve(LANE, 9, entries_max=100, bytes_max=6)
    assert core.retention.held(LANE, after=6, to=9) == list(entries(7, 9))
    assert core.retention.held(LANE, after=5, to=9) is None


def test_a_snapshot_of_unreadable_entries_is_a_programming_error() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 3), 0), 0.0)
    synced(core)
    with pytest.raises(AssertionError):
        core.retention.save_snapshot(LANE, 1, b"too early")


def test_a_dropped_lane_leaves_nothing_on_disk_and_its_messages_are_ignored() -> None:
    core = core_of()
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 3), 3), 0.0)
    before = core.drain()
    assert before is not None
    core.drop(LANE)
    core.persisted(synced_receipt(1), 0.0)
    assert not core.notifications.any
    effects = synced(core)
    assert effects.persist == [SaveSnapshot(LANE, Snapshot(3, 0, (), (), b""), reset=True), SaveTrim(LANE, 3)]
    core.receive(1, LaneEnqueue(LANE, 3, entries(4, 4), 4), 0.0)
    core.tick(10.0)
    with pytest.raises(InvalidRequest):
        core.end_of(LANE)


def beats(core: PubSubCore, first: int, last: int) -> list[int]:
    """The heartbeats, counted in intervals, at which a message was sent."""
    spoken = []
    for beat in range(first, last + 1):
        core.tick(beat * 1.01 * Tuning().heartbeat_interval_s)
        if sent_by(core, LaneHeartbeat):
            spoken.append(beat)
    return spoken


def test_an_idle_queue_sends_no_heartbeats_where_others_do() -> None:
    core = PubSubCore(me=3, incarnation=1, images=LaneImages({}), rng=lambda: 0.5, tuning=Tuning(), now=0.0, heard={})
    core.members((1, 2, 3), ())
    core.lane_opened(LANE, 1, 1, (1, 2, 3), 0.0)
    core.heard[1] = 1e9  # its owner lives
    assert beats(core, 1, 19) == [1]
    core.receive(1, LaneEnqueue(LANE, 0, entries(1, 1), 0), 1.0)
    core.heard[1] = 1e9
    synced(core)
    assert beats(core, 20, 45) == [20, 40], "there was something to say, and then nothing for a while"
    core.receive(2, LaneHeartbeat(((LANE, 1, 1),)), 1.0)
    core.receive(2, LaneHeartbeat(((LANE, 0, 0),)), 1.0)
    assert beats(core, 46, 50) == [46], "somebody fell behind"


def test_a_queue_alone_on_its_peer_sends_every_heartbeat() -> None:
    core = core_of()
    assert beats(core, 1, 5) == [1, 2, 3, 4, 5]
