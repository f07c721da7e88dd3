from __future__ import annotations

import json

import pytest

from avow import errors
from avow.client.outcomes import error_of, final
from avow.errors import AvowError, Busy, Forbidden, InvalidRequest, NotEqual, Offline, Refused, TooShort, Unknown
from avow.wire.error_body import errors_from
from avow.wire.http import Answer


def answer(status: int, body: bytes) -> Answer:
    return Answer(status, b"http/1.1", body)


def test_every_code_becomes_its_error_class_with_the_peers_message() -> None:
    codes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AvowError)]
    for cls in codes:
        error = errors_from(cls.code, "as the peer said", {})
        assert type(error) is next(one for one in cls.__mro__ if "code" in vars(one)), "as the class that has the code"
        assert str(error) == "as the peer said"


def test_not_equal_carries_the_end_of_the_lane() -> None:
    body = json.dumps({"error": {"code": "NOT_EQUAL", "message": "m", "definite": True, "expected": 3, "cursor": 7}})
    error = error_of(answer(409, body.encode()))
    assert isinstance(error, NotEqual)
    assert (error.expected, error.current) == (3, 7)


def test_details_of_other_errors_keep_their_names() -> None:
    details = {"coordinator": 2, "api": "http://h:1", "definite": True}
    error = errors_from("NOT_COORDINATOR", "m", details)
    assert error.details() == {"coordinator": 2, "api": "http://h:1"}
    malformed = errors_from("TOO_SHORT", "m", {"what": "record", "expected": "80", "found": "3", "at": None})
    assert isinstance(malformed, TooShort)
    assert malformed.what == "record"


def test_an_unknown_code_is_refused_only_if_it_is_marked_definite() -> None:
    assert type(errors_from("NEW_CODE", "m", {"definite": True})) is Refused
    assert not errors_from("NEW_CODE", "m", {"definite": False}).definite


@pytest.mark.parametrize(
    ("status", "cls"), [(503, Busy), (429, Busy), (404, InvalidRequest), (502, Unknown), (500, Unknown), (504, Unknown)]
)
def test_an_answer_that_is_not_from_a_peer_claims_no_more_than_is_known(status: int, cls: type[AvowError]) -> None:
    assert type(error_of(answer(status, b"<html>proxy</html>"))) is cls


def test_a_refusal_stays_definite_when_no_attempt_may_have_happened() -> None:
    error = Offline("no quorum")
    assert final(error, maybe=False) is error


def test_a_refusal_after_an_attempt_without_an_answer_is_unknown_and_names_the_write() -> None:
    for error in (Offline("no quorum"), Forbidden("token revoked")):
        found = final(error, maybe=True, write_id=b"w" * 16, lane=4)
        assert isinstance(found, Unknown)
        assert (found.__dict__["write_id"], found.__dict__["lane"]) == (b"w" * 16, 4)
        assert found.__cause__ is error


def test_not_equal_is_definite_even_after_a_lost_attempt_once_the_lane_has_passed_it() -> None:
    passed = NotEqual(expected=3, current=9)
    assert final(passed, maybe=True) is passed
    assert isinstance(final(NotEqual(expected=9, current=3), maybe=True), Unknown)
