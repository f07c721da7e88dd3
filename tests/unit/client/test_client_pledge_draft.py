"""The request body of a pledge, and the outcomes of a coordinator's answers."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from avow.client.pledge_draft import Draft, Options, new_gid
from avow.client.pledge_outcomes import (
    CommittedPending,
    Delivered,
    OutcomeUnknown,
    PledgeAnswer,
    RolledBack,
    Stopped,
    committed_outcome,
    current_outcome,
)
from avow.errors import InvalidRequest


def asked(draft: Draft, checkback: str = "") -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(draft.request(checkback=checkback))
    return found


def draft(**options: object) -> Draft:
    return Draft("g", msgspec.convert(options, Options))


def test_a_gid_has_22_letters_and_digits_and_is_new_each_time() -> None:
    gids = {new_gid() for _ in range(1000)}
    assert len(gids) == 1000
    assert all(len(gid) == 22 and gid.isalnum() and gid.isascii() for gid in gids)


def test_a_request_lists_branches_in_order_and_only_the_options_that_were_set() -> None:
    made = draft().call("http://a/in", {"amount": 30}).publish("q/1", "text", key=b"\xff k").topic("news", b"\xfe")
    assert asked(made, "http://a/checkback") == {
        "checkback": "http://a/checkback",
        "branches": [
            {"url": "http://a/in", "payload": '{"amount":30}'},
            {"url": "queue://q%2F1?key=%FF%20k", "payload": "text"},
            {"url": "topic://news", "payload_base64": "/g=="},
        ],
    }


def test_options_are_sent_flat_and_times_in_milliseconds() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    made = draft(wait_result=True, delay_s=2.5, branch_headers={"a": "b"}, retry_limit=3)
    assert asked(made) == {
        "checkback": "",
        "branches": [],
        "wait_result": True,
        "delay_s": 2.5,
        "branch_headers": {"a": "b"},
        "retry_limit": 3,
    }
    assert asked(Draft("g", Options(not_before=at)))["not_before_ms"] == 1_893_456_000_000


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        Draft("g", Options(not_before=datetime(2030, 1, 1))).request()  # noqa: DTZ001


def test_a_pledge_cannot_be_changed_after_it_was_sent() -> None:
    made = draft().call("http://a/in")
    first = made.request()
    with pytest.raises(InvalidRequest, match="fixed"):
        made.publish("q", b"")
    assert made.request() == first


def test_headers_of_a_call_do_not_reach_other_hosts() -> None:
    made = draft().call("http://a/in", headers={"authorization": "x"}).call("http://a/other")
    assert asked(made)["branch_headers"] == {"authorization": "x"}
    with pytest.raises(InvalidRequest, match="different hosts"):
        draft().call("http://a/in", headers={"authorization": "x"}).call("http://b/in").request()
    with pytest.raises(InvalidRequest, match="two different values"):
        draft().call("http://a/in", headers={"k": "1"}).call("http://a/in", headers={"k": "2"})


@pytest.mark.parametrize(
    ("status", "state", "expected"),
    [
        ("succeeded", "succeeded", Delivered("g")),
        ("submitted", "started", CommittedPending("g", "started", "e", 5)),
        ("submitted", "delayed", CommittedPending("g", "delayed", "e", 5)),
        ("submitted", "ongoing", CommittedPending("g", "ongoing", "e", 5)),
        ("submitted", "failing", CommittedPending("g", "failing", "e", 5)),
        ("dead", "dead", CommittedPending("g", "dead", "e", 5)),
        ("failed", "failed", Stopped("g", "e")),
        ("submitted", "of a newer peer", CommittedPending("g", "started", "e", 5)),
    ],
)
def test_point_13_no_state_of_the_delivery_makes_a_commit_look_failed(
    status: str, state: str, expected: object
) -> None:
    outcome = committed_outcome(PledgeAnswer("g", status, delivery=state, error="e", next_at_ms=5))
    assert outcome == expected
    assert outcome.committed is True


def test_asking_the_coordinator_reveals_no_more_than_it_knows() -> None:
    assert current_outcome(PledgeAnswer("g", "failed", reason="e")) == RolledBack("g", reason="e")
    unknown = current_outcome(PledgeAnswer("g", "prepared"))
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.committed is None
    assert isinstance(current_outcome(PledgeAnswer("g", "succeeded")), Delivered)
