"""Errors and answers of lanes as HTTP: one shape, the class's own status."""

from __future__ import annotations

import pytest
from tests.unit.server.http.http_memory import error_of

from avow.errors import BY_CODE, NotAuthenticated, NotCoordinator, NotEqual, Offline
from avow.node.answers import LOST, Done, Refusal
from avow.server.http.error_reply import elsewhere, reply_of, reply_of_answer
from avow.server.http.write_replies import joined


def test_every_error_keeps_its_status_and_says_whether_the_operation_happened() -> None:
    reply = reply_of(NotEqual(expected=3, current=7))
    error = error_of(reply.body)
    assert reply.status == 409
    assert (error["code"], error["definite"], error["retriable"]) == ("NOT_EQUAL", True, False)
    assert (error["expected"], error["cursor"]) == (3, 7)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_a_refusal_of_a_lane_is_answered_as_the_error_of_its_code(code: str) -> None:
    reply = reply_of_answer(Refusal(code))
    error = error_of(reply.body)
    assert reply.status == BY_CODE[code].http_status
    assert error["code"] == code
    assert error["message"]


def test_not_equal_carries_the_cursor_even_for_an_empty_lane() -> None:
    assert error_of(reply_of_answer(Refusal("NOT_EQUAL", 0)).body)["cursor"] == 0


def test_a_replaced_reader_learns_where_its_messages_go() -> None:
    reply = reply_of_answer(Refusal("FENCED"))
    error = error_of(reply.body)
    assert (reply.status, error["definite"], error["retriable"]) == (409, True, False)
    assert "another reader took over" in error["message"]


def test_an_unknown_code_is_an_error_that_names_it() -> None:
    error = error_of(reply_of_answer(Refusal("NEW_IN_A_LATER_VERSION")).body)
    assert (error["code"], error["definite"], error["answered"]) == ("ERROR", False, "NEW_IN_A_LATER_VERSION")


def test_a_lost_answer_is_the_only_indefinite_error() -> None:
    reply = reply_of_answer(LOST, details={"write_id": "aa"})
    error = error_of(reply.body)
    assert (reply.status, error["code"], error["definite"], error["write_id"]) == (504, "UNKNOWN", False, "aa")


def test_details_never_replace_the_fields_of_an_error() -> None:
    assert error_of(reply_of(Offline("x"), details={"code": "FINE"}).body)["code"] == "OFFLINE"


def test_errors_carry_retry_after_and_www_authenticate() -> None:
    assert reply_of(Offline("x")).headers == b"retry-after: 1\r\n"
    assert reply_of(NotAuthenticated("x")).headers.startswith(b"www-authenticate: Bearer")


def test_a_redirect_needs_a_location() -> None:
    assert (
        elsewhere(NotCoordinator("x", coordinator=2, api="http://b:1/"), "/y").headers == b"location: http://b:1/y\r\n"
    )
    assert elsewhere(NotCoordinator("x"), "/y").status == 503


def test_an_address_cannot_inject_a_header() -> None:
    assert b"evil" not in elsewhere(NotCoordinator("x", api="http://b:1\r\nevil: 1"), "/y").headers


DONE = Done(1, 2)


@pytest.mark.parametrize(
    ("answers", "combined"),
    [
        ([DONE, DONE], None),
        ([DONE, Refusal("OFFLINE")], LOST),
        ([DONE, LOST], LOST),
        ([Refusal("OFFLINE"), Refusal("OFFLINE")], Refusal("OFFLINE")),
        ([Refusal("OFFLINE"), LOST], LOST),
        ([DONE, Refusal("ALREADY_DECIDED")], Refusal("ALREADY_DECIDED")),
        ([Refusal("OFFLINE"), Refusal("ALREADY_DECIDED")], Refusal("ALREADY_DECIDED")),
    ],
)
def test_results_of_several_lanes_are_combined_without_false_claims(answers: list[object], combined: object) -> None:
    assert joined(list(enumerate(answers)))[0] == combined  # type: ignore[arg-type]
