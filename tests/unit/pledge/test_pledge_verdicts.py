"""How answers are interpreted: tables of answers, most of which are not a verdict."""

from __future__ import annotations

import pytest

from avow.limits import PLEDGE_ERROR_CHARS_MAX
from avow.pledge.verdicts import of_grpc, of_http, of_jsonrpc, unreached


def checkback(status: int, body: bytes = b"", *headers: bytes) -> str:
    return of_http(status, headers=headers, body=body, checkback=True).result


def branch(status: int, body: bytes = b"", *headers: bytes) -> str:
    return of_http(status, headers=headers, body=body, checkback=False).result


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (200, b'{"dtm_result":"SUCCESS"}', "SUCCESS"),
        (200, b'{"dtm_result":"FAILURE"}', "FAILURE"),
        (200, b'{"dtm_result":"ONGOING"}', "ONGOING"),
        (200, b'{"message":"ok","dtm_result": "SUCCESS"}\n', "SUCCESS"),
        (409, b'{"dtm_result":"FAILURE","message":"rolled back. FAILURE"}', "FAILURE"),
        (425, b'{"dtm_result":"ONGOING","message":"in progress"}', "ONGOING"),
    ],
)
def test_the_checkbacks_of_known_dtm_clients_are_understood(status: int, body: bytes, result: str) -> None:
    assert checkback(status, body) == result


def test_a_header_is_a_verdict_too() -> None:
    assert checkback(204, b"", b"SUCCESS") == "SUCCESS"
    assert checkback(409, b"conflict", b"FAILURE") == "FAILURE"
    assert checkback(200, b'{"dtm_result":"SUCCESS"}', b"SUCCESS") == "SUCCESS"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"OK"),
        (200, b"SUCCESS"),
        (200, b'Traceback (most recent call last):\n  File "x.py"\nValueError: FAILURE'),
        (200, b'<html>{"dtm_result":"SUCCESS"}</html>'),
        (200, b'{"result":{"dtm_result":"SUCCESS"}}'),
        (200, b'["dtm_result","SUCCESS"]'),
        (200, b'{"dtm_result":"success"}'),
        (200, b'{"dtm_result":"SUCCESS "}'),
        (200, b'{"dtm_result":"COMMITTED"}'),
        (200, b'{"dtm_result":null}'),
        (200, b'{"dtm_result":["SUCCESS"]}'),
        (200, b'{"dtm_result":"SUCCESS"'),
        (200, b'\xff{"dtm_result":"SUCCESS"}'),
        (302, b'{"dtm_result":"SUCCESS"}'),
        (404, b'{"dtm_result":"FAILURE"}'),
        (409, b""),
        (409, b"conflict with FAILURE in it"),
        (409, b'{"dtm_result":"SUCCESS"}'),
        (425, b""),
        (425, b'{"dtm_result":"SUCCESS"}'),
        (500, b"internal FAILURE"),
        (500, b'{"dtm_result":"FAILURE"}'),
        (500, b'{"dtm_result":"SUCCESS"}'),
        (503, b'{"message":"ONGOING"}'),
    ],
)
def test_point_2_a_checkback_without_an_explicit_verdict_decides_nothing(status: int, body: bytes) -> None:
    assert checkback(status, body) == "ERROR"


def test_point_2_verdicts_that_contradict_each_other_decide_nothing() -> None:
    assert checkback(200, b'{"dtm_result":"SUCCESS"}', b"FAILURE") == "ERROR"
    assert checkback(200, b"", b"SUCCESS", b"FAILURE") == "ERROR"
    assert checkback(200, b"", b"yes") == "ERROR"


def test_a_deeply_nested_body_is_not_a_verdict() -> None:
    assert checkback(200, b'{"dtm_result":' + b"[" * 100_000) == "ERROR"


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (200, b"", "SUCCESS"),
        (200, b"whatever FAILURE", "SUCCESS"),
        (200, b'{"message":"no FAILURE, no ONGOING"}', "SUCCESS"),
        (201, b'{"id":7}', "SUCCESS"),
        (204, b"", "SUCCESS"),
        (200, b'{"dtm_result":"SUCCESS"}', "SUCCESS"),
        (200, b'{"dtm_result":"FAILURE"}', "FAILURE"),
        (200, b'{"dtm_result":"ONGOING"}', "ONGOING"),
        (200, b'{"dtm_result":"FAILED"}', "ERROR"),
        (409, b"", "FAILURE"),
        (409, b'{"dtm_result":"ONGOING"}', "ONGOING"),
        (409, b'{"dtm_result":"SUCCESS"}', "FAILURE"),
        (425, b"", "ONGOING"),
        (301, b"", "ERROR"),
        (400, b'{"dtm_result":"SUCCESS"}', "ERROR"),
        (500, b'{"dtm_result":"ONGOING"}', "ERROR"),
    ],
)
def test_point_2_a_branch_is_delivered_by_any_2xx_unless_it_says_otherwise(
    status: int, body: bytes, result: str
) -> None:
    assert branch(status, body) == result


def test_a_gateway_error_is_distinguished_from_an_answer_of_the_service() -> None:
    for status, reached in ((500, True), (404, True), (429, False), (502, False), (503, False), (504, False)):
        verdict = of_http(status, headers=(), body=b"", checkback=False)
        assert (verdict.result, verdict.reached) == ("ERROR", reached)
    assert not unreached("refused").reached


def test_error_texts_are_short() -> None:
    verdict = of_http(500, headers=(), body=b"x" * 10_000, checkback=True)
    assert len(verdict.text) <= PLEDGE_ERROR_CHARS_MAX
    assert "HTTP 500" in verdict.text


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (200, b'{"jsonrpc":"2.0","id":"g-01","result":{}}', "SUCCESS"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","result":null}', "SUCCESS"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","result":{"dtm_result":"FAILURE"}}', "FAILURE"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","result":{"dtm_result":"?"}}', "ERROR"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","error":{"code":-32901,"message":"FAILURE"}}', "FAILURE"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","error":{"code":-32902,"message":"ONGOING"}}', "ONGOING"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","error":{"code":-32603,"message":"FAILURE"}}', "ERROR"),
        (200, b'{"jsonrpc":"2.0","id":"g-01","error":"FAILURE"}', "ERROR"),
        (200, b'{"jsonrpc":"2.0","id":"other","result":{}}', "ERROR"),
        (200, b'{"jsonrpc":"2.0","id":"g-01"}', "ERROR"),
        (200, b'{"dtm_result":"SUCCESS"}', "ERROR"),
        (200, b"<html>", "ERROR"),
        (500, b'{"jsonrpc":"2.0","id":"g-01","result":{}}', "ERROR"),
    ],
)
def test_a_json_rpc_answer_must_match_its_call(status: int, body: bytes, result: str) -> None:
    assert of_jsonrpc(status, body=body, asked_id="g-01").result == result


@pytest.mark.parametrize(
    ("code", "message", "result", "reached"),
    [
        (0, "", "SUCCESS", True),
        (10, "FAILURE", "FAILURE", True),
        (10, "ONGOING", "ONGOING", True),
        (9, "anything", "ONGOING", True),
        (2, "FAILURE", "ERROR", True),
        (13, "ONGOING", "ERROR", True),
        (4, "deadline", "ERROR", False),
        (14, "unavailable", "ERROR", False),
    ],
)
def test_a_grpc_status_is_a_verdict(code: int, message: str, result: str, reached: bool) -> None:
    verdict = of_grpc(code, message)
    assert (verdict.result, verdict.reached) == (result, reached)
