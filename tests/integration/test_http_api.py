"""Every call of the API against a live cluster of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.http_peer import PeerProcess, serving, wait_until

from avow.wire.batch import Batch, check, encode_batch
from avow.wire.ranges import parse_ranges

RAW = {"content-type": "application/vnd.avow.batch"}
RANGES = {"accept": "application/vnd.avow.batches"}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer")) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer
        assert peer.stop() == 0


@pytest.fixture
def queue(peer: PeerProcess) -> str:
    """A fresh two-phase queue."""
    name = f"q-{uuid4().hex}"
    assert peer.ask("POST", "/v1/queues", {"name": name}).status == 201
    return name


@pytest.fixture
def pubsub(peer: PeerProcess) -> str:
    name = f"p-{uuid4().hex}"
    assert peer.ask("POST", "/v1/queues", {"name": name, "strategy": "pub-sub"}).status == 201
    return name


def enqueue(peer: PeerProcess, queue: str, *values: str, query: str = "") -> dict[str, int]:
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages?{query}", {"messages": [{"value": v} for v in values]})
    assert answer.status == 200, answer.body
    (written,) = answer.json["written"]
    found: dict[str, int] = written
    return found


# ---------------------------------------------------------------------- the peer


def test_health_needs_nothing_and_head_gives_no_body(peer: PeerProcess) -> None:
    assert peer.ask("GET", "/healthz").json == {"status": "alive"}
    answer = peer.ask("HEAD", "/healthz")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "18")


def test_the_status_describes_this_peer(peer: PeerProcess, queue: str) -> None:
    status = peer.ask("GET", "/v1/cluster").json
    assert (status["peer"], len(status["cluster"]), status["metadata"]["coordinator"]) == (1, 32, 1)
    assert queue in {lane["queue"] for lane in status["lanes"]}
    assert status["storage"]["syncs"] > 0


def test_peers_join_once_and_leave(peer: PeerProcess) -> None:
    wait_until(lambda: bool(peer.ask("GET", "/v1/peers").json["peers"]))  # it announces itself soon after its start
    me = peer.ask("GET", "/v1/peers").json["peers"][0]
    assert (me["voter"], me["connected"], me["state"]) == (True, True, "ready")
    wish = {"identity": uuid4().hex, "link": "127.0.0.1:1", "api": "http://127.0.0.1:2"}
    first = peer.ask("POST", "/v1/peers", wish)
    again = peer.ask("POST", "/v1/peers", wish)
    assert first.status == 200
    assert first.json["number"] == again.json["number"] > 1
    assert first.json["cluster"] == peer.ask("GET", "/v1/cluster").json["cluster"]
    number = first.json["number"]
    left = peer.ask("DELETE", f"/v1/peers/{number}")
    assert (left.status, left.json["number"]) == (202, number)
    assert peer.ask("DELETE", "/v1/peers/999").code == "UNKNOWN_PEER"
    assert peer.ask("DELETE", "/v1/peers/1").code == "INVALID_REQUEST"  # somebody must remain


@pytest.mark.parametrize(
    "wish",
    [
        {"identity": "xyz", "link": "a:1"},
        {"identity": "0" * 32, "link": "nowhere"},
        {"identity": "0" * 32, "link": "a:1", "api": "javascript:alert(1)"},
        {"identity": "0" * 32, "link": "a:1", "api": "http://a:1\r\nset-cookie: x"},
        {"identity": "0" * 32, "link": "a:1", "more": 1},
    ],
)
def test_an_invalid_join_is_refused(peer: PeerProcess, wish: dict[str, str]) -> None:
    answer = peer.ask("POST", "/v1/peers", wish)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


# ---------------------------------------------------------------------- queues


def test_a_queue_is_created_once_changed_and_deleted(peer: PeerProcess) -> None:
    wanted = {"name": "name with/slash é", "lanes": 2, "retention": {"age_s": 60}}
    created = peer.ask("POST", "/v1/queues", wanted)
    assert created.status == 201
    assert [lane["lane"] for lane in created.json["lanes"]] == [0, 1]
    assert created.json["lanes"][0]["coordinator"] == 1
    assert peer.ask("POST", "/v1/queues", wanted).status == 200
    assert peer.ask("POST", "/v1/queues", {**wanted, "lanes": 3}).code == "ALREADY_EXISTS"
    path = "/v1/queues/name%20with%2Fslash%20%C3%A9"
    changed = peer.ask("PATCH", path, {"retention": {"size_bytes": 5, "passed": True}}).json
    assert changed["retention"] == {"age_s": None, "size_bytes": 5, "passed": True}
    assert peer.ask("GET", path).json["retention"]["passed"]
    assert wanted["name"] in {queue["name"] for queue in peer.ask("GET", "/v1/queues").json["queues"]}
    assert peer.ask("DELETE", path).json == {"name": wanted["name"], "deleted": True}
    assert peer.ask("GET", path).code == "UNKNOWN_QUEUE"
    assert peer.ask("DELETE", path).status == 404


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "tab\there"},
        {"name": " edge "},
        {"name": "n", "strategy": "three-phase"},
        {"name": "n", "lanes": 0},
        {"name": "n", "lanes": 1025},
        {"name": "n", "peers": [9]},
        {"name": "n", "strategy": "pub-sub", "lanes": 2},
        {"name": "n", "retention": {"age_s": -1}},
        {"name": "n", "unknown": 1},
        {},
    ],
)
def test_an_invalid_queue_is_refused(peer: PeerProcess, wanted: dict[str, object]) -> None:
    answer = peer.ask("POST", "/v1/queues", wanted)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_trimmed_versions_are_gone_as_far_as_holds_allow(peer: PeerProcess, queue: str) -> None:
    enqueue(peer, queue, *"abcdef")
    peer.ask("PUT", f"/v1/queues/{queue}/subscribers/slow", {"versions": {"0": 4}, "hold": True})
    trimmed = peer.ask("POST", f"/v1/queues/{queue}/trim", {"lane": 0, "upto_version": 5})
    assert trimmed.json == {"lane": 0, "trimmed_to": 4}
    gone = peer.ask("GET", f"/v1/queues/{queue}/messages")
    assert (gone.status, gone.code, gone.json["error"]["trimmed_to"]) == (410, "TRIMMED", 4)
    assert [m["value"] for m in peer.ask("GET", f"/v1/queues/{queue}/messages?after=4").lines] == ["e", "f"]


# ---------------------------------------------------------------------- writing


def test_messages_written_as_json_are_read_unchanged(peer: PeerProcess, queue: str) -> None:
    sent: list[dict[str, Any]] = [
        {"value": "text é", "key": "k", "headers": {"a": "1"}, "time_ms": 5},
        {"value_base64": "/w==", "key_base64": "/g=="},
        {"value": ""},
    ]
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages", {"messages": sent})
    assert answer.json["written"] == [{"lane": 0, "first_version": 1, "last_version": 3}]
    assert answer.headers["avow-coordinator"] == "1"
    one, two, three = peer.ask("GET", f"/v1/queues/{queue}/messages").lines
    assert {**sent[0], "lane": 0, "version": 1} == one
    assert (two["value_base64"], two["key_base64"], two["version"]) == ("/w==", "/g==", 2)
    assert (three["value"], "key" in three) == ("", False)


def test_a_repeated_write_id_gets_the_first_answer(peer: PeerProcess, queue: str) -> None:
    write_id = uuid4().hex
    first = enqueue(peer, queue, "a", query=f"write_id={write_id}")
    enqueue(peer, queue, "b")
    assert enqueue(peer, queue, "a", query=f"write_id={write_id.upper()}") == first
    found = peer.ask("GET", f"/v1/queues/{queue}/writes/{write_id}").json
    assert found == {"write_id": write_id, "written": [first]}
    assert peer.ask("GET", f"/v1/queues/{queue}/writes/{'0' * 32}").code == "UNKNOWN_MESSAGE"


def test_expected_is_compared_with_the_end(peer: PeerProcess, queue: str) -> None:
    assert enqueue(peer, queue, "a", query="expected=0")["last_version"] == 1
    refused = peer.ask("POST", f"/v1/queues/{queue}/messages?expected=0", {"messages": [{"value": "b"}]})
    error = refused.json["error"]
    assert (refused.status, error["code"], error["cursor"], error["expected"]) == (409, "NOT_EQUAL", 1, 0)
    assert (error["definite"], len(error["write_id"])) == (True, 32)


def test_a_raw_batch_is_stored_and_returned_unchanged(peer: PeerProcess, queue: str) -> None:
    write_id = uuid4().bytes
    record = bytes(encode_batch([b"one", b"two"], keys=[b"k", None], write_id=write_id, created_ms=7))
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages", record, headers=RAW)
    assert answer.json["write_id"] == write_id.hex()
    read = peer.ask("GET", f"/v1/queues/{queue}/messages?after=1", headers=RANGES)
    (found,) = parse_ranges(read.body)
    batch = check(found.record)
    assert (found.first_version, found.offset, found.count) == (2, 1, 1)
    assert [bytes(value) for value in batch.values()] == [b"one", b"two"]
    assert (read.headers["avow-next"], read.headers["avow-end"], read.headers["avow-trimmed"]) == ("2", "2", "0")
    other = peer.ask("POST", f"/v1/queues/{queue}/messages?write_id={'0' * 32}", record, headers=RAW)
    assert other.code == "INVALID_REQUEST"


def test_a_damaged_batch_is_refused_and_nothing_is_stored(peer: PeerProcess, queue: str) -> None:
    record = encode_batch([b"one"], write_id=uuid4().bytes)
    record[-3] ^= 1
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages", bytes(record), headers=RAW)
    assert (answer.status, answer.code) == (400, "BAD_CHECKSUM")
    assert peer.ask("GET", f"/v1/queues/{queue}").json["lanes"][0]["end"] == 0


def test_keys_spread_over_lanes_and_one_write_id_covers_them(peer: PeerProcess) -> None:
    peer.ask("POST", "/v1/queues", {"name": "spread", "lanes": 3})
    messages = [{"value": f"{n}", "key": f"key{n}"} for n in range(20)]
    write_id = uuid4().hex
    first = peer.ask("POST", f"/v1/queues/spread/messages?write_id={write_id}", {"messages": messages}).json
    again = peer.ask("POST", f"/v1/queues/spread/messages?write_id={write_id}", {"messages": messages}).json
    assert first == again
    assert [written["lane"] for written in first["written"]] == [0, 1, 2]
    assert peer.ask("GET", f"/v1/queues/spread/writes/{write_id}").json == first
    read = [line for lane in range(3) for line in peer.ask("GET", f"/v1/queues/spread/messages?lane={lane}").lines]
    assert sorted(int(line["value"]) for line in read) == list(range(20))
    spread = peer.ask("POST", "/v1/queues/spread/messages?expected=0", {"messages": messages})
    assert spread.code == "INVALID_REQUEST"
    assert peer.ask("GET", "/v1/queues/spread/messages?lane=3").code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "application/json"}, 400),
        (b'{"messages":[]}', {"content-type": "application/json"}, 400),
        (b'{"messages":[{}]}', {"content-type": "application/json"}, 400),
        (b'{"messages":[{"value":"\xff"}]}', {"content-type": "application/json"}, 400),
        (b'{"messages":[{"value":"x"}]}', {"content-type": "text/plain"}, 415),
        (b'{"messages":[{"value":"x"}]}', {"content-type": "application/json", "accept": "text/html"}, 406),
        (b'{"messages":[{"value":"x"}]}', {"content-type": "application/json", "avow-age-ms": "-1"}, 400),
        (b"nonsense", RAW, 400),
    ],
)
def test_an_invalid_body_is_refused(
    peer: PeerProcess, queue: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages", body, headers=headers)
    assert answer.status == status
    assert answer.json["error"]["definite"]
    assert peer.ask("GET", f"/v1/queues/{queue}").json["lanes"][0]["end"] == 0


def test_everything_missing_is_a_404_in_one_format(peer: PeerProcess) -> None:
    for method, path, code in (
        ("GET", "/v1/nothing", "INVALID_REQUEST"),
        ("GET", "/v1/queues/none/messages", "UNKNOWN_QUEUE"),
        ("GET", "/v1/queues/none/subscribers", "UNKNOWN_QUEUE"),
    ):
        answer = peer.ask(method, path)
        assert (answer.status, answer.code) == (404, code)
    wrong = peer.ask("DELETE", "/v1/queues")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST")


# ---------------------------------------------------------------------- transactions


def test_staged_messages_are_visible_when_they_are_published(peer: PeerProcess, queue: str) -> None:
    path = f"/v1/queues/{queue}/transactions/t1"
    staged = peer.ask("POST", f"{path}/messages?deadline_s=60", {"messages": [{"value": "a"}, {"value": "b"}]})
    assert staged.json["staged"] == [{"lane": 0}]
    record = bytes(encode_batch([b"c"], write_id=uuid4().bytes))
    assert peer.ask("POST", f"{path}/messages", record, headers=RAW).status == 200
    assert peer.ask("GET", f"/v1/queues/{queue}/messages").lines == []
    published = peer.ask("POST", f"{path}/publish").json
    assert published == {"published": [{"lane": 0, "first_version": 1, "last_version": 3}]}
    assert peer.ask("POST", f"{path}/publish?lane=0").json == published
    assert [line["value"] for line in peer.ask("GET", f"/v1/queues/{queue}/messages").lines] == ["a", "b", "c"]
    (_, staged_range) = parse_ranges(peer.ask("GET", f"/v1/queues/{queue}/messages", headers=RANGES).body)
    assert bytes(Batch(staged_range.record).value(staged_range.offset)) == b"c"
    assert peer.ask("POST", f"{path}/discard").code == "ALREADY_DECIDED"
    late = peer.ask("POST", f"{path}/messages", {"messages": [{"value": "late"}]})
    assert (late.status, late.code) == (409, "ALREADY_DECIDED")


@pytest.mark.parametrize("part", ["", "&part=3"])
@pytest.mark.parametrize("raw", [False, True])
def test_a_write_id_of_a_staged_batch_cannot_be_used_for_a_write(
    peer: PeerProcess, queue: str, raw: bool, part: str
) -> None:
    write_id = uuid4()
    record = bytes(encode_batch([b"w"], write_id=write_id.bytes))
    body: Any = record if raw else {"messages": [{"value": "w"}]}
    headers = RAW if raw else None
    staging = f"/v1/queues/{queue}/transactions/t/messages?write_id={write_id.hex}{part}"
    writing = f"/v1/queues/{queue}/messages?write_id={write_id.hex}"
    assert peer.ask("POST", staging, body, headers=headers).status == 200
    looked_up = f"/v1/queues/{queue}/writes/{write_id.hex}"
    for method, path, sent in (("POST", writing, body), ("GET", looked_up, None)):
        refused = peer.ask(method, path, sent, headers=headers if sent is not None else None)
        assert (refused.status, refused.code) == (409, "CONTENT_DIFFERS")
        assert refused.json["error"]["definite"] is True
        assert "staged" in refused.json["error"]["message"]
    assert peer.ask("POST", staging, body, headers=headers).status == 200  # the stage itself is still answered
    assert peer.ask("GET", f"/v1/queues/{queue}/messages").lines == []


@pytest.mark.parametrize("part", ["", "&part=3"])
def test_a_write_id_of_a_write_cannot_be_used_to_stage(peer: PeerProcess, queue: str, part: str) -> None:
    write_id = uuid4().hex
    enqueue(peer, queue, "a", "b", query=f"write_id={write_id}")
    staging = f"/v1/queues/{queue}/transactions/t/messages?write_id={write_id}{part}"
    refused = peer.ask("POST", staging, {"messages": [{"value": "lost"}]})
    assert (refused.status, refused.code, refused.json["error"]["cursor"]) == (409, "CONTENT_DIFFERS", 2)
    assert peer.ask("POST", f"/v1/queues/{queue}/transactions/t/publish").code == "UNKNOWN_TRANSACTION"


def test_a_write_that_one_lane_refuses_and_another_stores_is_not_definitely_refused(peer: PeerProcess) -> None:
    peer.ask("POST", "/v1/queues", {"name": "partly", "lanes": 2})
    write_id = uuid4().hex
    body = {"messages": [{"value": "a"}]}
    assert peer.ask("POST", f"/v1/queues/partly/transactions/t/messages?lane=0&write_id={write_id}", body).status == 200
    both = {"messages": [{"value": f"{n}", "key": f"key{n}"} for n in range(10)]}
    refused = peer.ask("POST", f"/v1/queues/partly/messages?write_id={write_id}", both)
    assert (refused.status, refused.code) == (409, "CONTENT_DIFFERS")
    assert refused.json["error"]["definite"] is False
    assert [written["lane"] for written in refused.json["error"]["written"]] == [1]


def test_discarded_messages_are_never_visible(peer: PeerProcess, queue: str) -> None:
    path = f"/v1/queues/{queue}/transactions/t2"
    peer.ask("POST", f"{path}/messages", {"messages": [{"value": "a"}]})
    for _ in range(2):
        assert peer.ask("POST", f"{path}/discard").json == {"discarded": [{"lane": 0}]}
    assert peer.ask("POST", f"{path}/publish").code == "ALREADY_DECIDED"
    assert peer.ask("GET", f"/v1/queues/{queue}/messages").lines == []


def test_an_unknown_transaction_is_404(peer: PeerProcess, queue: str) -> None:
    for decision in ("publish", "discard"):
        answer = peer.ask("POST", f"/v1/queues/{queue}/transactions/none/{decision}")
        assert (answer.status, answer.code) == (404, "UNKNOWN_TRANSACTION")


def test_a_transaction_over_several_lanes_is_decided_in_all_of_them(peer: PeerProcess) -> None:
    peer.ask("POST", "/v1/queues", {"name": "wide", "lanes": 4})
    messages = [{"value": f"{n}", "key": f"key{n}"} for n in range(6)]
    staged = peer.ask("POST", "/v1/queues/wide/transactions/t/messages", {"messages": messages}).json["staged"]
    published = peer.ask("POST", "/v1/queues/wide/transactions/t/publish").json["published"]
    assert [lane["lane"] for lane in published] == [lane["lane"] for lane in staged]
    assert sum(lane["last_version"] for lane in published) == 6


@pytest.mark.parametrize("part", [0, 3])
@pytest.mark.parametrize("first", [0, 1])
def test_a_transaction_whose_stages_have_different_deadlines_has_one_outcome(
    peer: PeerProcess, first: int, part: int
) -> None:
    """Whichever lane has the short one, and whichever is the home lane."""
    queue, path = _two_lanes(peer)
    for lane, deadline_s in ((first, 0.2), (1 - first, 60.0)):
        staged = f"{path}/messages?lane={lane}&deadline_s={deadline_s}&part={part}"
        assert peer.ask("POST", staged, {"messages": [{"value": "x"}]}).status == 200
    expired = f"/v1/queues/{queue}/transactions/other/messages?lane={first}&deadline_s=0.2"
    assert peer.ask("POST", expired, {"messages": [{"value": "y"}]}).status == 200
    other = f"/v1/queues/{queue}/transactions/other/publish"
    too_much = {"parts": [{"part": 9, "messages": 7}]}  # INCOMPLETE, and decides nothing, until it has expired
    wait_until(lambda: peer.ask("POST", other, too_much).code == "ALREADY_DECIDED")
    body = {"parts": [{"part": part, "messages": 2}]} if part else None
    published = peer.ask("POST", f"{path}/publish", body)
    assert published.status == 200, published.body
    assert [span["lane"] for span in published.json["published"]] == [0, 1]
    for lane in (0, 1):
        read = peer.ask("GET", f"/v1/queues/{queue}/messages?lane={lane}&level=linearizable")
        assert [line["value"] for line in read.lines] == ["x"]
    assert peer.ask("POST", f"{path}/publish", body).json == published.json


@pytest.mark.parametrize("part", [0, 3])
def test_a_transaction_that_expired_is_visible_in_no_lane(peer: PeerProcess, part: int) -> None:
    queue, path = _two_lanes(peer)
    for lane in (0, 1):
        staged = f"{path}/messages?lane={lane}&deadline_s=0.3&part={part}"
        assert peer.ask("POST", staged, {"messages": [{"value": "x"}]}).status == 200
    body = {"parts": [{"part": part, "messages": 7}]} if part else {"parts": [{"part": 9, "messages": 7}]}
    wait_until(lambda: peer.ask("POST", f"{path}/publish", body).code != "INCOMPLETE")  # asking decides nothing
    refused = peer.ask("POST", f"{path}/publish")
    code = "UNKNOWN_TRANSACTION" if part else "ALREADY_DECIDED"
    assert (refused.code, refused.json["error"]["definite"]) == (code, True)
    assert [lane["end"] for lane in peer.ask("GET", f"/v1/queues/{queue}").json["lanes"]] == [0, 0]


def test_parts_of_several_lanes_are_published_by_one_request_only(peer: PeerProcess) -> None:
    queue, path = _two_lanes(peer)
    for lane, part in ((0, 1), (1, 1), (1, 2)):
        assert (
            peer.ask("POST", f"{path}/messages?lane={lane}&part={part}", {"messages": [{"value": "x"}]}).status == 200
        )
    parts = [{"part": 1, "messages": 1}]
    alone = peer.ask("POST", f"{path}/publish?lane=0", {"parts": parts})
    assert (alone.status, alone.code) == (400, "INVALID_REQUEST")
    missing = peer.ask("POST", f"{path}/publish", {"lanes": [{"lane": 0, "parts": [{"part": 1, "messages": 2}]}]})
    assert (missing.status, missing.code) == (409, "INCOMPLETE")
    both = {"lanes": [{"lane": 0, "parts": parts}, {"lane": 1, "parts": parts}]}
    assert [span["lane"] for span in peer.ask("POST", f"{path}/publish", both).json["published"]] == [0, 1]
    ends = [lane["end"] for lane in peer.ask("GET", f"/v1/queues/{queue}").json["lanes"]]
    assert ends == [1, 1]
    for wrong in ({}, {"parts": parts, "lanes": both["lanes"]}, {"lanes": [*both["lanes"], *both["lanes"]]}):
        assert peer.ask("POST", f"{path}/publish", wrong).code == "INVALID_REQUEST"


def _two_lanes(peer: PeerProcess) -> tuple[str, str]:
    """A queue, and the path of a transaction."""
    queue = f"q-{uuid4().hex}"
    assert peer.ask("POST", "/v1/queues", {"name": queue, "lanes": 2}).status == 201
    return queue, f"/v1/queues/{queue}/transactions/{uuid4().hex}"


def test_a_deadline_beyond_the_bound_is_refused(peer: PeerProcess, queue: str) -> None:
    body = {"messages": [{"value": "a"}]}
    answer = peer.ask("POST", f"/v1/queues/{queue}/transactions/t/messages?deadline_s=100000", body)
    assert answer.status == 400


# ---------------------------------------------------------------------- reading


def test_a_read_continues_where_the_last_one_ended(peer: PeerProcess, queue: str) -> None:
    for start in range(5):
        enqueue(peer, queue, *(f"{start * 10 + n}" for n in range(10)))
    seen: list[str] = []
    after = "0"
    for _ in range(100):
        answer = peer.ask("GET", f"/v1/queues/{queue}/messages?after={after}&max=7&level=linearizable")
        if not answer.lines:
            break
        seen += [line["value"] for line in answer.lines]
        after = answer.headers["avow-next"]
    assert seen == [f"{n}" for n in range(50)]
    assert peer.ask("GET", f"/v1/queues/{queue}/messages?after=900").headers["avow-next"] == "900"


def test_a_reader_at_the_end_may_wait_for_the_next_message(peer: PeerProcess, queue: str) -> None:
    writer = threading.Timer(0.3, enqueue, (peer, queue, "came"))
    writer.start()
    answer = peer.ask("GET", f"/v1/queues/{queue}/messages?wait_s=20")  # ends early, or it would be empty
    writer.join()
    assert [line["value"] for line in answer.lines] == ["came"]
    began = time.monotonic()
    empty = peer.ask("GET", f"/v1/queues/{queue}/messages?after=1&wait_s=0.3")
    assert (empty.status, empty.lines) == (200, [])
    assert time.monotonic() - began > 0.2


def test_a_reader_may_wait_for_a_version_it_knows_of(peer: PeerProcess, queue: str) -> None:
    enqueue(peer, queue, "a", "b")
    assert len(peer.ask("GET", f"/v1/queues/{queue}/messages?level=at_least&at_least=2").lines) == 2
    late = peer.ask("GET", f"/v1/queues/{queue}/messages?level=at_least&at_least=3&timeout_s=0.3")
    assert (late.status, late.code) == (503, "OFFLINE")
    assert peer.ask("GET", f"/v1/queues/{queue}/messages?level=at_least").status == 400


def test_a_message_is_found_by_its_version_id(peer: PeerProcess, queue: str) -> None:
    enqueue(peer, queue, "a", "b")
    found = peer.ask("GET", f"/v1/queues/{queue}/messages/0/2").json
    assert (found["value"], found["version"], found["committed"], found["stored_by"]) == ("b", 2, True, [1])
    assert peer.ask("GET", f"/v1/queues/{queue}/messages/0/3").code == "UNKNOWN_MESSAGE"


# ---------------------------------------------------------------------- subscribers


def test_a_cursor_moves_forward_and_only_a_reset_moves_it_back(peer: PeerProcess, queue: str) -> None:
    enqueue(peer, queue, *"abcde")
    path = f"/v1/queues/{queue}/subscribers/reader%201"
    assert peer.ask("GET", path).code == "UNKNOWN_SUBSCRIBER"
    assert peer.ask("PUT", path, {"versions": {"0": 3}}).json == {
        "name": "reader 1",
        "versions": {"0": 3},
        "hold": False,
        "epoch": 0,
        "members": [],
    }
    assert peer.ask("PUT", path, {"versions": {"0": 1}}).json["versions"] == {"0": 3}
    assert peer.ask("PUT", path, {"versions": {"0": 1}, "reset": True}).json["versions"] == {"0": 1}
    held = peer.ask("PUT", path, {"hold": True}).json
    assert held == {"name": "reader 1", "versions": {"0": 1}, "hold": True, "epoch": 0, "members": []}
    assert peer.ask("GET", f"/v1/queues/{queue}/subscribers").json["subscribers"] == [peer.ask("GET", path).json]
    assert peer.ask("PUT", path, {"versions": {"0": 99}}).code == "INVALID_REQUEST"
    assert peer.ask("PUT", path, {"versions": {"7": 1}}).code == "INVALID_REQUEST"
    assert peer.ask("DELETE", path).json == {"name": "reader 1", "removed": True}
    assert peer.ask("DELETE", path).code == "UNKNOWN_SUBSCRIBER"


# ---------------------------------------------------------------------- pub-sub


def test_a_pubsub_queue_is_written_read_and_remembered(peer: PeerProcess, pubsub: str) -> None:
    shown = peer.ask("GET", f"/v1/queues/{pubsub}").json
    lane = shown["open_lane"]
    assert [(one["lane"], one["owner"]) for one in shown["lanes"]] == [(lane, 1)]
    write_id = uuid4().hex
    written = enqueue(peer, pubsub, "a", "b", query=f"lane={lane}&write_id={write_id}")
    assert written == {"lane": lane, "first_version": 1, "last_version": 2}
    assert enqueue(peer, pubsub, "a", "b", query=f"lane={lane}&write_id={write_id}") == written
    found = peer.ask("GET", f"/v1/queues/{pubsub}/writes/{write_id}?lane={lane}")
    assert found.json == {"write_id": write_id, "written": [written]}
    read = peer.ask("GET", f"/v1/queues/{pubsub}/messages?lane={lane}&level=at_least&at_least=2")
    assert [line["value"] for line in read.lines] == ["a", "b"]
    assert peer.ask("GET", f"/v1/queues/{pubsub}/messages/{lane}/1").json["value"] == "a"
    moved = peer.ask("PUT", f"/v1/queues/{pubsub}/subscribers/s", {"versions": {str(lane): 1}, "hold": True})
    assert moved.json == {"name": "s", "versions": {str(lane): 1}, "hold": True, "epoch": 0, "members": []}
    trimmed = peer.ask("POST", f"/v1/queues/{pubsub}/trim", {"lane": lane, "upto_version": 2})
    assert trimmed.json == {"lane": lane, "trimmed_to": 1}


def test_operations_that_a_pubsub_queue_lacks_are_refused_with_an_explanation(peer: PeerProcess, pubsub: str) -> None:
    lane = peer.ask("GET", f"/v1/queues/{pubsub}").json["open_lane"]
    body = {"messages": [{"value": "a"}]}
    for method, path, sent in (
        ("POST", f"/v1/queues/{pubsub}/messages?expected=0", body),
        ("POST", f"/v1/queues/{pubsub}/transactions/t/messages", body),
        ("GET", f"/v1/queues/{pubsub}/messages", None),
        ("GET", f"/v1/queues/{pubsub}/messages?lane=4000000", None),
        ("GET", f"/v1/queues/{pubsub}/messages?lane={lane}&level=linearizable", None),
        ("GET", f"/v1/queues/{pubsub}/writes/{'0' * 32}", None),
    ):
        answer = peer.ask(method, path, sent)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST"), path


def test_a_request_that_is_too_large_is_refused_as_such(peer: PeerProcess) -> None:
    head = b"POST /v1/queues HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n"
    assert peer.talk(head).startswith(b"HTTP/1.1 413 ")


def test_a_stopped_peer_has_answered_and_keeps_acknowledged_messages(tmp_path: Path) -> None:
    with serving(tmp_path) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        peer.ask("POST", "/v1/queues", {"name": "kept"})
        enqueue(peer, "kept", "a")
        assert peer.stop() == 0
    with serving(tmp_path) as peer:
        wait_until(lambda: peer.ask("GET", "/v1/queues/kept/messages?level=linearizable").status == 200)
        assert [m["value"] for m in peer.ask("GET", "/v1/queues/kept/messages").lines] == ["a"]
