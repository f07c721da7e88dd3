"""The checkback's HTTP answers, parsed as a coordinator does; and the arguments and replies of the Redis scripts."""

from __future__ import annotations

import json

import pytest

from avow.barrier import redis_scripts as scripts
from avow.barrier.key import HORIZON_MIN_S, Key, Question, Verdict, now_ms
from avow.barrier.mongo import document_of, query_of
from avow.barrier.redis_scripts import Adjusted
from avow.barrier.web import answer, question_of, verdict_response
from avow.errors import AlreadyDecided, AvowError, InvalidRequest, Malformed, Trimmed
from avow.pledge.verdicts import of_http

KEY = Key("a-gid", "01", "action")


@pytest.mark.parametrize("verdict", Verdict)
def test_our_coordinator_reads_every_verdict_correctly(verdict: Verdict) -> None:
    given = verdict_response(verdict)
    assert of_http(given.status, headers=(), body=given.body, checkback=True).result == verdict.value


@pytest.mark.parametrize(
    "error", [ValueError("FAILURE"), AlreadyDecided("FAILURE"), Trimmed("SUCCESS"), InvalidRequest("ONGOING")]
)
def test_an_error_is_not_a_verdict_for_our_coordinator_or_one_that_searches_for_words(error: Exception) -> None:
    given = verdict_response(error)
    assert of_http(given.status, headers=(), body=given.body, checkback=True).result == "ERROR"
    assert given.status == 500
    assert not any(word in given.body for word in (b"FAILURE", b"SUCCESS", b"ONGOING"))


def every_error(of: type[AvowError] = AvowError) -> list[type[AvowError]]:
    return [of, *(error for child in of.__subclasses__() for error in every_error(child))]


def test_no_error_code_contains_the_word_of_a_verdict() -> None:
    words = [verdict.value for verdict in Verdict]
    assert [error.code for error in every_error() if any(word in error.code for word in words)] == []


def test_a_checkback_request_of_dtm_is_parsed() -> None:
    query = {"gid": "g", "trans_type": "msg", "branch_id": "00", "op": "msg", "dtm": "http://server"}
    assert question_of(query) == Question("g")
    assert question_of({**query, "prepared_ms": "17"}) == Question("g", 17)


def test_an_answer_is_computed_from_the_request() -> None:
    given = answer({"gid": "g", "prepared_ms": "5"}, lambda question: Verdict.FAILURE if question.prepared_ms else None)  # type: ignore[arg-type,return-value]
    assert (given.status, json.loads(given.body)) == (409, {"dtm_result": "FAILURE"})


def test_a_script_receives_value_expiry_and_commands() -> None:
    assert scripts.name_of(KEY) == "a-gid-01-action-01"
    assert scripts.adjust_arguments(KEY, amount=-3, expire_s=None) == ["action:5", "", "-3"]
    assert scripts.run_arguments(KEY, [("SET", "k", b"v"), ("INCR", "n")], expire_s=HORIZON_MIN_S) == [
        "action:5",
        str(HORIZON_MIN_S),
        2,
        *(3, "SET", "k", b"v"),
        *(2, "INCR", "n"),
    ]


@pytest.mark.parametrize("amount", [1.5, True, "3", (1 << 52) + 1])
def test_an_amount_that_redis_cannot_count_is_refused(amount: object) -> None:
    with pytest.raises(InvalidRequest, match="must be an integer"):
        scripts.adjust_arguments(KEY, amount=amount, expire_s=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("commands", [[], [()], [("SADD", *["x"] * scripts.WORDS_MAX)]])
def test_commands_that_cannot_be_run_are_refused(commands: list[tuple[str, ...]]) -> None:
    with pytest.raises(InvalidRequest, match="nothing was written"):
        scripts.run_arguments(KEY, commands, expire_s=None)


def test_the_result_of_a_script_is_parsed() -> None:
    assert scripts.read_adjusted(KEY, b"") is Adjusted.DONE
    assert scripts.read_adjusted(KEY, "short") is Adjusted.SHORT
    assert [scripts.read_adjusted(KEY, given_back) for given_back in (b"action:5", "op", "action")] == [
        Adjusted.DUPLICATE
    ] * 3
    with pytest.raises(AlreadyDecided):
        scripts.read_adjusted(KEY, b"rollback")
    for other in ("action:6", "msg:5", "broken:2"):
        with pytest.raises(Malformed):
            scripts.was_done(KEY, other)
    assert scripts.read_verdict(KEY, b"rollback") is Verdict.FAILURE
    assert scripts.read_verdict(KEY, b"msg:5") is Verdict.SUCCESS
    with pytest.raises(Trimmed):
        scripts.read_verdict(KEY, b"")


def test_a_missing_key_proves_nothing_once_it_may_have_expired() -> None:
    def proven(prepared_ms: int | None, expire_s: int | None) -> bool:
        return scripts.check_back_arguments(prepared_ms=prepared_ms, expire_s=expire_s)[0] == "proven"

    day_ms = 24 * 3600 * 1000
    assert proven(None, None)
    assert not proven(None, HORIZON_MIN_S)
    assert proven(now_ms() - 4 * day_ms, HORIZON_MIN_S)
    assert not proven(now_ms() - 6 * day_ms, HORIZON_MIN_S)
    assert proven(now_ms() - 20 * day_ms, 30 * 24 * 3600)


def test_a_document_has_the_columns_of_dtm() -> None:
    document = document_of(KEY, "action")
    del document["create_time"]
    assert document == {
        "trans_type": "msg",
        "gid": "a-gid",
        "branch_id": "01",
        "op": "action",
        "barrier_id": "01",
        "reason": "action",
    }
    assert query_of(KEY) == {"gid": "a-gid", "branch_id": "01", "op": "action", "barrier_id": "01"}
