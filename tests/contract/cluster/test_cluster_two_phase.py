"""Queues, two-phase writes, reads and cursors: what a client relies on, of scripted peers and of real ones."""

from __future__ import annotations

from threading import Thread

import pytest
from tests.contract.cluster.contract_clusters import BATCH, NEVER, Answer, Contract

from avow.testing.cluster import wait_until

ID = b"0123456789abcdef"


def refused(answer: Answer, code: str, status: int, *, retriable: bool = False) -> dict[str, object]:
    """The details of a refusal, which every one of these is: definite."""
    found = answer.error
    fields = (answer.status, found.pop("code"), found.pop("definite"), found.pop("retriable"))
    assert fields == (status, code, True, retriable)
    assert ("retry-after" in answer.headers) == (status == 503)
    return found


# ----------------------------------------------------------------------------------------------- peers and queues


def test_every_peer_lists_all_peers_with_their_addresses(cluster: Contract) -> None:
    for number in cluster.members.numbers:
        found = cluster.ask("GET", "/v1/peers", at=number).json["peers"]
        assert {peer["number"]: peer["api"] for peer in found} == {
            each: cluster.members.url(each) for each in cluster.members.numbers
        }
        assert all(peer["state"] == "ready" and peer["voter"] for peer in found)
        assert set(found[0]) == {"number", "identity", "link", "api", "state", "voter", "connected", "newest"}


def test_creating_a_queue_again_returns_the_existing_one(cluster: Contract) -> None:
    assert cluster.create(lanes=2).status == 201
    assert cluster.create(lanes=2).status == 200
    refused(cluster.ask("POST", "/v1/queues", body={"name": cluster.queue, "lanes": 3}), "ALREADY_EXISTS", 409)


def test_the_description_of_a_two_phase_queue_is_complete(cluster: Contract) -> None:
    created = cluster.create().json
    found = cluster.ask("GET", "", at=cluster.last).json
    assert set(created) == set(found) == {"name", "strategy", "peers", "retention", "open_lane", "lanes"}
    assert (found["name"], found["strategy"], found["peers"], found["open_lane"]) == (
        cluster.queue,
        "two-phase",
        [],
        None,
    )
    [lane] = found["lanes"]
    assert lane.pop("number") > 0
    assert lane.pop("coordinator") in (None, *cluster.members.numbers)
    numbers = list(cluster.members.numbers)
    assert lane == {
        "lane": 0,
        "end": 0,
        "trimmed_to": 0,
        "voters": numbers,
        "owner": None,
        "ended": False,
        "held": True,
    }


def test_a_queue_that_was_deleted_is_unknown_and_no_longer_listed(cluster: Contract) -> None:
    cluster.create()
    assert cluster.queue in {found["name"] for found in cluster.ask("GET", "/v1/queues").json["queues"]}
    assert cluster.ask("DELETE", "").json == {"name": cluster.queue, "deleted": True}
    refused(cluster.ask("DELETE", ""), "UNKNOWN_QUEUE", 404)
    wait_until(lambda: cluster.ask("GET", "").status == 404, what="the queue is still there")
    assert cluster.queue not in {found["name"] for found in cluster.ask("GET", "/v1/queues").json["queues"]}


def test_every_call_on_a_queue_that_does_not_exist_is_refused(cluster: Contract) -> None:
    refused(cluster.ask("GET", ""), "UNKNOWN_QUEUE", 404)
    refused(cluster.write(b"a", lane=0), "UNKNOWN_QUEUE", 404)
    refused(cluster.read(lane=0), "UNKNOWN_QUEUE", 404)
    refused(cluster.ask("GET", f"writes/{ID.hex()}"), "UNKNOWN_QUEUE", 404)
    refused(cluster.ask("GET", "subscribers/s"), "UNKNOWN_QUEUE", 404)


def test_an_unknown_path_is_an_invalid_request(cluster: Contract) -> None:
    cluster.create()
    refused(cluster.ask("GET", "nothing"), "INVALID_REQUEST", 404)


# -------------------------------------------------------------------------------------------------------- writing


def test_a_write_is_answered_with_its_versions_and_names_the_coordinator(cluster: Contract) -> None:
    cluster.create()
    first = cluster.write(b"a", b"b", lane=0, write_id=ID)
    assert first.json == {"write_id": ID.hex(), "written": [{"lane": 0, "first_version": 1, "last_version": 2}]}
    assert int(first.headers["avow-coordinator"]) in cluster.members.numbers
    assert cluster.write(b"c", lane=0, at=cluster.last).spans == [(0, 3, 3)]


def test_the_same_write_id_is_answered_with_its_first_outcome_at_every_peer(cluster: Contract) -> None:
    cluster.create(lanes=2)
    first = cluster.write(b"a", b"b", lane=0, write_id=ID).json
    cluster.write(b"c", lane=0)
    for number in cluster.members.numbers:
        assert cluster.write(b"a", b"b", lane=0, at=number, write_id=ID).json == first
    assert cluster.write(b"a", b"b", lane=1, write_id=ID).spans == [(1, 1, 2)]  # remembered in each lane
    assert len(cluster.read(lane=0, level="linearizable").values) == 3


def test_an_expected_version_is_compared_with_the_end_and_a_conflict_names_it(cluster: Contract) -> None:
    cluster.create()
    assert cluster.write(b"a", b"b", lane=0, expected=0, write_id=ID).status == 200
    details = refused(cluster.write(b"c", lane=0, expected=1, write_id=NEVER), "NOT_EQUAL", 409)
    assert (details["cursor"], details["expected"], details["write_id"]) == (2, 1, NEVER.hex())
    assert cluster.write(b"a", b"b", lane=0, expected=0, write_id=ID).spans == [(0, 1, 2)]  # a repeat, not a conflict
    assert cluster.write(b"c", lane=0, expected=2).spans == [(0, 3, 3)]


def test_a_lane_that_does_not_exist_is_refused(cluster: Contract) -> None:
    cluster.create(lanes=2)
    refused(cluster.write(b"a", lane=2), "INVALID_REQUEST", 400)
    refused(cluster.read(lane=2), "INVALID_REQUEST", 400)


def test_the_write_id_chooses_the_lane_of_a_batch_without_one(cluster: Contract) -> None:
    cluster.create(lanes=3)
    [(lane, first, last)] = cluster.write(b"a", b"b", write_id=ID).spans
    assert (lane, first, last) == (2, 1, 2)


def test_a_body_that_is_not_a_batch_is_refused(cluster: Contract) -> None:
    cluster.create()
    refused(cluster.ask("POST", "messages?lane=0", body=b"hello", headers=BATCH), "TOO_SHORT", 400)
    assert cluster.read(lane=0, level="linearizable").values == []


def test_a_write_that_nobody_has_seen_is_accepted_whatever_its_age(cluster: Contract) -> None:
    cluster.create()
    assert cluster.write(b"a", lane=0, age_ms=60_000).spans == [(0, 1, 1)]
    assert cluster.write(b"b", lane=0, age_ms=0).spans == [(0, 2, 2)]


def test_a_write_is_looked_up_by_its_id_with_or_without_its_lane(cluster: Contract) -> None:
    cluster.create(lanes=2)
    written = cluster.write(b"a", b"b", lane=1, write_id=ID).json
    path = f"writes/{ID.hex()}"
    wait_until(lambda: cluster.ask("GET", path, at=cluster.last).status == 200, what="the write")
    for found in (path, f"{path}?lane=1"):
        assert cluster.ask("GET", found, at=cluster.last).json == written
    details = refused(cluster.ask("GET", f"writes/{ID.hex()}?lane=0"), "UNKNOWN_MESSAGE", 404)
    assert details == {"write_id": ID.hex()}
    refused(cluster.ask("GET", f"writes/{NEVER.hex()}"), "UNKNOWN_MESSAGE", 404)


# -------------------------------------------------------------------------------------------------------- reading


@pytest.fixture
def written(cluster: Contract) -> Contract:
    """Five messages in three batches of lane 0, visible at every peer."""
    cluster.create()
    for values in ((b"1", b"2"), (b"3",), (b"4", b"5")):
        cluster.write(*values, lane=0)
    for number in cluster.members.numbers:
        assert len(cluster.read(at=number, lane=0, level="at_least", at_least=5).values) == 5
    return cluster


def test_a_read_returns_the_messages_after_a_version_and_where_to_continue(written: Contract) -> None:
    found = written.read(lane=0, after=1)
    assert found.values == [(2, b"2"), (3, b"3"), (4, b"4"), (5, b"5")]
    assert [found.headers[f"avow-{name}"] for name in ("next", "end", "trimmed")] == ["5", "5", "0"]


def test_a_read_stops_at_its_message_limit_even_inside_a_batch(written: Contract) -> None:
    found = written.read(lane=0, after=1, max=3)
    assert found.values == [(2, b"2"), (3, b"3"), (4, b"4")]
    assert (found.headers["avow-next"], found.headers["avow-end"]) == ("4", "5")


def test_a_read_with_a_small_byte_limit_still_returns_one_batch(written: Contract) -> None:
    found = written.read(lane=0, after=0, max_bytes=1)
    assert found.values == [(1, b"1"), (2, b"2")]
    assert found.headers["avow-next"] == "2"


def test_a_read_at_or_after_the_end_is_empty_and_does_not_advance(written: Contract) -> None:
    for after in (5, 9):
        found = written.read(lane=0, after=after)
        assert (found.values, found.headers["avow-next"], found.headers["avow-end"]) == ([], str(after), "5")


def test_a_read_of_a_later_version_waits_for_it(written: Contract) -> None:
    later = Thread(target=lambda: written.write(b"6", lane=0, at=written.last))
    later.start()
    found = written.read(lane=0, after=5, level="at_least", at_least=6)
    later.join()
    assert found.values == [(6, b"6")]


def test_a_read_of_a_version_that_does_not_arrive_is_offline(written: Contract) -> None:
    refused(written.read(lane=0, level="at_least", at_least=9, timeout_s=0.1), "OFFLINE", 503, retriable=True)


# -------------------------------------------------------------------------------------------------------- cursors


def test_a_subscriber_begins_with_its_first_cursor_and_moves_forward_only(written: Contract) -> None:
    refused(written.ask("GET", "subscribers/s"), "UNKNOWN_SUBSCRIBER", 404)
    for wanted, reached in ((3, 3), (1, 3), (5, 5)):
        found = written.ask("PUT", "subscribers/s", body={"versions": {"0": wanted}}).json
        assert found == {"name": "s", "versions": {"0": reached}, "hold": False, "epoch": 0, "members": []}


def test_a_cursor_moves_backwards_only_with_an_explicit_reset(written: Contract) -> None:
    written.ask("PUT", "subscribers/s", body={"versions": {"0": 4}})
    found = written.ask("PUT", "subscribers/s", body={"versions": {"0": 2}, "reset": True}).json
    assert found["versions"] == {"0": 2}


def test_a_cursor_cannot_pass_the_end_or_name_an_unknown_lane(written: Contract) -> None:
    refused(written.ask("PUT", "subscribers/s", body={"versions": {"0": 6}}), "INVALID_REQUEST", 400)
    refused(written.ask("PUT", "subscribers/s", body={"versions": {"1": 0}}), "INVALID_REQUEST", 400)


def test_a_hold_or_first_cursor_without_versions_applies_to_every_lane(cluster: Contract) -> None:
    cluster.create(lanes=2)
    assert cluster.ask("PUT", "subscribers/s", body={"versions": {}}).json["versions"] == {"0": 0, "1": 0}
    found = cluster.ask("PUT", "subscribers/t", body={"versions": {"0": 0}, "hold": True}).json
    assert (found["versions"], found["hold"]) == ({"0": 0, "1": 0}, True)


def test_subscribers_are_listed_for_their_queue_alone_and_removed(cluster: Contract) -> None:
    other = Contract(cluster.members)
    cluster.create()
    other.create()
    for name in ("s", "t"):
        cluster.ask("PUT", f"subscribers/{name}", body={"versions": {}})
    wait_until(lambda: listed(cluster) == ["s", "t"], what="both are listed")
    assert listed(other) == []
    assert cluster.ask("DELETE", "subscribers/s").json == {"name": "s", "removed": True}
    wait_until(lambda: listed(cluster) == ["t"], what="one is listed")
    refused(cluster.ask("DELETE", "subscribers/s"), "UNKNOWN_SUBSCRIBER", 404)


def listed(cluster: Contract) -> list[str]:
    return [found["name"] for found in cluster.ask("GET", "subscribers").json["subscribers"]]
