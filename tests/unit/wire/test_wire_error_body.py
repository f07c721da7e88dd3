"""Errors as bytes, and back."""

from __future__ import annotations

import json

import pytest

from avow.errors import AvowError, Busy, NotCoordinator, NotEqual, Refused, TooShort
from avow.wire.error_body import decode_failure, encode_failure


@pytest.mark.parametrize(
    "error",
    [
        Busy("try again"),
        NotCoordinator("ask two", coordinator=2, api="http://two:1"),
        NotEqual(expected=3, current=7),
        TooShort("record", expected=80, found=3, at=5),
    ],
)
def test_an_error_is_decoded_as_it_was_encoded(error: AvowError) -> None:
    found = decode_failure(encode_failure(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found is not None
    assert {k: str(v) for k, v in found.details().items()} == {k: str(v) for k, v in error.details().items()}


def test_the_encoding_is_that_of_the_api() -> None:
    fields = json.loads(encode_failure(NotEqual(expected=3, current=7)))["error"]
    assert (fields["code"], fields["definite"], fields["retriable"], fields["cursor"]) == ("NOT_EQUAL", True, False, 7)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":5}', b"\xff", b'{"error":{"code":"A"}'])
def test_an_answer_that_no_peer_sends_is_not_a_peer_error(body: bytes) -> None:
    assert decode_failure(body) is None


def test_an_unknown_code_claims_no_more_than_its_fields() -> None:
    assert type(decode_failure(b'{"error":{"code":"NEW","message":"m","definite":true}}')) is Refused
    assert type(decode_failure(b'{"error":{}}')) is AvowError
