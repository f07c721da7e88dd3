"""What the metadata lane reports of pub-sub lanes: one fact for each change, and all of them to a new listener."""

from __future__ import annotations

from avow.node.facts import (
    EndDecided,
    Fact,
    LaneForgotten,
    LaneOpened,
    LaneOrphaned,
    LanesListed,
    LaneTrimmed,
    MembersChanged,
)
from avow.node.lane.metadata_machine import MetadataMachine
from avow.node.pubsub.lanes import forgotten_images
from avow.queue.commands import (
    Command,
    LaneEndCommand,
    LaneOpenCommand,
    LaneTrimCommand,
    QueueCommand,
    encode,
)
from avow.queue.metadata_state import MetadataState
from avow.replication.effects import LaneImage, SaveSnapshot, SaveTrim
from avow.wire.messages import Entry, Kind, Snapshot


def machine() -> MetadataMachine:
    found = MetadataMachine(MetadataState(voters=(1, 2, 3)), applied=0)
    found.take_facts()
    apply(found, Kind.QUEUE, QueueCommand("create", "q", "pub-sub"))
    return found


def apply(found: MetadataMachine, kind: int, command: Command) -> list[Fact]:
    found.apply(Entry(found.applied + 1, 1, kind, control=encode(command)))
    return found.take_facts()


def opened(found: MetadataMachine, peer: int = 1, incarnation: int = 1) -> list[Fact]:
    return apply(found, Kind.LANE_OPEN, LaneOpenCommand(peer, incarnation, "q"))


def test_a_lane_is_reported_when_it_opens_is_orphaned_ends_is_trimmed_and_is_forgotten() -> None:
    found = machine()
    assert [type(fact) for fact in opened(found)] == [LaneOpened]
    first, second = opened(found, incarnation=2)
    assert isinstance(first, LaneOpened)
    assert second == LaneOrphaned(2)
    assert apply(found, Kind.LANE_END, LaneEndCommand(2, 5, 1)) == [EndDecided(2, 5)]
    assert apply(found, Kind.TRIM, LaneTrimCommand(2, 3)) == [LaneTrimmed(2, 3)]
    assert apply(found, Kind.TRIM, LaneTrimCommand(2, 9)) == [LaneForgotten(2)]
    assert apply(found, Kind.TRIM, LaneTrimCommand(2, 9)) == [], "there is no such lane"


def test_the_lanes_of_a_deleted_queue_are_forgotten() -> None:
    found = machine()
    opened(found, 1)
    opened(found, 2)
    assert apply(found, Kind.QUEUE, QueueCommand("delete", "q")) == [LaneForgotten(2), LaneForgotten(3)]


def test_a_new_listener_gets_the_present_state_and_what_is_missing() -> None:
    found = machine()
    for peer in (1, 2, 3):
        opened(found, peer)
    apply(found, Kind.LANE_END, LaneEndCommand(2, 0, 1))
    apply(found, Kind.TRIM, LaneTrimCommand(2, 0))
    apply(found, Kind.TRIM, LaneTrimCommand(3, 4))
    apply(found, Kind.LANE_END, LaneEndCommand(3, 7, 1))
    found.report_all()
    assert found.facts == [
        MembersChanged((1, 2, 3), ()),
        LaneOpened(found.state.lane(3)),
        LaneTrimmed(3, 4),
        EndDecided(3, 7),
        LaneOpened(found.state.lane(4)),
        LanesListed(5, frozenset({1, 3, 4})),
    ]


def test_images_of_forgotten_lanes_are_emptied_once_and_others_left_alone() -> None:
    listing = LanesListed(6, frozenset({1, 4}))
    entries = [Entry(1, 1, Kind.DATA, 1), Entry(2, 1, Kind.DATA, 1)]
    images = {
        2: LaneImage(entries=entries),
        3: LaneImage(snapshot=Snapshot(9, 0, (), (), b""), entries=[]),  # emptied before
        4: LaneImage(entries=entries),
        6: LaneImage(entries=entries),  # opened by an entry that was not applied yet
    }
    assert forgotten_images(images, listing) == [
        SaveSnapshot(2, Snapshot(2, 0, (), (), b""), reset=True),
        SaveTrim(2, 2),
    ]
    assert list(images) == [4, 6]
