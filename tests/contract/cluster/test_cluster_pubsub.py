"""Pub-sub lanes and write ids: what a client relies on, of scripted peers and of real ones."""

from __future__ import annotations

import pytest
from tests.contract.cluster.contract_clusters import NEVER, Contract
from tests.contract.cluster.test_cluster_two_phase import ID, refused

from avow.testing.cluster import wait_until


@pytest.fixture
def pubsub(cluster: Contract) -> Contract:
    assert cluster.create(strategy="pub-sub").status == 201
    return cluster


def test_each_peer_has_an_open_lane_and_all_peers_know_its_owner(pubsub: Contract) -> None:
    numbers = pubsub.members.numbers
    lanes = {number: pubsub.open_lane(number) for number in numbers}
    assert len(set(lanes.values())) == len(numbers)
    for number in numbers:
        rows = {row["lane"]: row for row in pubsub.ask("GET", "", at=number).json["lanes"]}
        for owner, lane in lanes.items():
            assert rows[lane] == {
                "lane": lane,
                "number": lane,
                "end": 0,
                "trimmed_to": 0,
                "coordinator": None,
                "voters": list(numbers),
                "owner": owner,
                "ended": False,
                "held": True,
            }


def test_a_write_is_bound_to_the_lane_it_names_and_names_no_coordinator(pubsub: Contract) -> None:
    lane = pubsub.open_lane(pubsub.first)
    found = pubsub.write(b"a", b"b", lane=lane, write_id=ID)
    assert found.json == {"write_id": ID.hex(), "written": [{"lane": lane, "first_version": 1, "last_version": 2}]}
    assert "avow-coordinator" not in found.headers
    assert pubsub.write(b"a", b"b", lane=lane, write_id=ID).json == found.json
    assert pubsub.write(b"c").spans == [(lane, 3, 3)]  # without a lane: the peer's own
    wait_until(lambda: len(pubsub.read(at=pubsub.last, lane=lane).values) == 3, what="the messages")


def test_only_the_owner_of_a_lane_writes_to_it(pubsub: Contract) -> None:
    """Another peer knows what is in the lane, but cannot rule out a write that is not there yet."""
    lane = pubsub.open_lane(pubsub.first)
    written = pubsub.write(b"a", lane=lane, write_id=ID)
    for other in pubsub.members.numbers[1:]:
        details = refused(pubsub.write(b"b", at=other, lane=lane, write_id=NEVER), "OFFLINE", 503, retriable=True)
        assert details["write_id"] == NEVER.hex()
        _wait_for(pubsub, ID, lane=lane, at=other)
        assert pubsub.write(b"a", at=other, lane=lane, write_id=ID).json == written.json
    assert [value for _, value in pubsub.read(lane=lane).values] == [b"a"]


def test_a_lane_that_nobody_opened_accepts_no_writes(pubsub: Contract) -> None:
    refused(pubsub.write(b"a", lane=4_000), "OFFLINE", 503, retriable=True)


def test_a_write_missing_from_an_open_lane_is_not_decided_yet(pubsub: Contract) -> None:
    lane = pubsub.open_lane(pubsub.first)
    for number in pubsub.members.numbers:
        answer = pubsub.ask("GET", f"writes/{NEVER.hex()}?lane={lane}&since=0", at=number)
        assert refused(answer, "OFFLINE", 503, retriable=True) == {"write_id": NEVER.hex()}


def test_a_lookup_names_the_lane_the_write_was_bound_to(pubsub: Contract) -> None:
    refused(pubsub.ask("GET", f"writes/{ID.hex()}"), "INVALID_REQUEST", 400)


def test_an_expected_version_is_refused_by_a_pubsub_queue(pubsub: Contract) -> None:
    refused(pubsub.write(b"a", lane=pubsub.open_lane(pubsub.first), expected=0), "INVALID_REQUEST", 400)


def test_a_new_cursor_of_a_pubsub_queue_names_no_lanes(pubsub: Contract) -> None:
    lane = pubsub.open_lane(pubsub.first)
    pubsub.write(b"a", b"b", lane=lane)
    assert pubsub.ask("PUT", "subscribers/s", body={"versions": {}}).json["versions"] == {}
    wait_until(lambda: len(pubsub.read(lane=lane).values) == 2, what="the messages")
    found = pubsub.ask("PUT", "subscribers/s", body={"versions": {str(lane): 2}}).json
    assert found == {"name": "s", "versions": {str(lane): 2}, "hold": False, "epoch": 0, "members": []}


def test_a_lookup_in_an_ended_runs_lane_finds_the_write_or_rules_it_out(pubsub: Contract) -> None:
    lane = pubsub.open_lane(pubsub.first)
    written = pubsub.write(b"a", lane=lane, write_id=ID).json
    pubsub.members.run_again(pubsub.first)
    for number in pubsub.members.numbers:
        _require_ended(pubsub, lane, at=number)
        assert pubsub.write(b"a", at=number, lane=lane, write_id=ID).json == written
        assert pubsub.ask("GET", f"writes/{ID.hex()}?lane={lane}", at=number).json == written
    wait_until(lambda: pubsub.ask("GET", "").json["open_lane"] not in (None, lane), what="a new lane")
    rows = {row["lane"]: row for row in pubsub.ask("GET", "").json["lanes"]}
    assert (rows[lane]["ended"], rows[pubsub.open_lane(pubsub.first)]["ended"]) == (True, False)


def _require_ended(pubsub: Contract, lane: int, *, at: int) -> None:
    lookup = f"writes/{NEVER.hex()}?lane={lane}"
    wait_until(lambda: pubsub.ask("GET", lookup, at=at).status == 409, what="the end of the lane")
    details = refused(pubsub.ask("GET", lookup, at=at), "LANE_ENDED", 409, retriable=True)
    assert details == {"write_id": NEVER.hex()}
    refused(pubsub.write(b"b", at=at, lane=lane), "LANE_ENDED", 409, retriable=True)


def _wait_for(pubsub: Contract, write_id: bytes, *, lane: int, at: int) -> None:
    path = f"writes/{write_id.hex()}?lane={lane}"
    wait_until(lambda: pubsub.ask("GET", path, at=at).status == 200, what="the write")
