"""Keys and calls of the barrier: what an id may be, what a coordinator's query says, how long things must be kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.barrier.key import (
    CHARS_MAX,
    HORIZON_MIN_S,
    MARGIN_S,
    START_S,
    Call,
    Key,
    Verdict,
    is_surely_kept,
    now_ms,
    verdict_of,
)
from avow.errors import InvalidRequest, Malformed, Trimmed


@pytest.mark.parametrize("name", CHARS_MAX)
def test_an_id_of_maximum_length_is_accepted_and_a_longer_one_is_an_error(name: str) -> None:
    chars_max = CHARS_MAX[name]
    given = {"gid": "g", name: "é" * chars_max}
    assert getattr(Key(**given), name) == "é" * chars_max
    with pytest.raises(InvalidRequest, match=f"{chars_max} are allowed; nothing was written"):
        Key(**{**given, name: "é" * (chars_max + 1)})


@pytest.mark.parametrize("gid", ["", "a\0b", "half \ud800", None, 7])
def test_an_id_that_cannot_be_stored_as_text_is_an_error(gid: object) -> None:
    with pytest.raises(InvalidRequest):
        Key(gid)  # type: ignore[arg-type]


@given(st.text(min_size=1, max_size=128).filter(lambda text: "\0" not in text))
def test_any_other_text_is_a_valid_id(gid: str) -> None:
    assert Key(gid).exact() == (gid, "00", "msg", "01")


def test_a_delivery_counts_its_pieces_of_work() -> None:
    call = Call.from_query({"gid": "g", "branch_id": "01-02", "op": "action", "trans_type": "msg"})
    keys = [call.next_key() for _ in range(11)]
    assert [key.exact() for key in keys[:2]] == [("g", "01-02", "action", "01"), ("g", "01-02", "action", "02")]
    assert keys[-1].barrier_id == "11"


@pytest.mark.parametrize("missing", ["gid", "branch_id", "op"])
def test_a_query_that_is_not_a_delivery_is_an_error(missing: str) -> None:
    query = {"gid": "g", "branch_id": "01", "op": "action"}
    for wrong in ({**query, missing: ""}, {name: value for name, value in query.items() if name != missing}):
        with pytest.raises(InvalidRequest, match=missing):
            Call.from_query(wrong)


@pytest.mark.parametrize("prepared_ms", ["now", "-1", "1.5", "9" * 16, "１２"])
def test_an_invalid_time_is_an_error(prepared_ms: str) -> None:
    with pytest.raises(InvalidRequest, match="prepared_ms"):
        Call.from_query({"gid": "g", "branch_id": "01", "op": "action", "prepared_ms": prepared_ms})


def test_the_keys_of_a_pledge_and_of_its_branches_differ() -> None:
    with pytest.raises(InvalidRequest, match="once"):
        Call("g", "01", "action").own_key()
    with pytest.raises(InvalidRequest, match="insert"):
        Call("g").next_key()


def test_a_transaction_may_begin_until_a_day_after_prepare() -> None:
    assert Call("g").key_to_commit() == Key("g")
    assert Call("g", prepared_ms=now_ms() - START_S * 1000 + 60_000).key_to_commit() == Key("g")
    with pytest.raises(Trimmed, match="Roll back"):
        Call("g", prepared_ms=now_ms() - START_S * 1000 - 60_000).key_to_commit()


def test_tombstones_outlive_the_last_moment_at_which_a_transaction_may_begin() -> None:
    assert START_S + MARGIN_S < HORIZON_MIN_S


def test_only_rows_known_to_be_young_are_certain_to_be_kept() -> None:
    age_ms = (HORIZON_MIN_S - MARGIN_S) * 1000
    assert not is_surely_kept(None)
    assert is_surely_kept(now_ms())
    assert is_surely_kept(now_ms() - age_ms + 60_000)
    assert not is_surely_kept(now_ms() - age_ms)
    assert not is_surely_kept(now_ms() + MARGIN_S * 1000 + 60_000)  # a clock that nobody can rely on


def test_only_the_two_defined_reasons_are_verdicts() -> None:
    assert verdict_of("msg") is Verdict.SUCCESS
    assert verdict_of("rollback") is Verdict.FAILURE
    for reason in ("", "Msg", "rollback ", "action", "COMMITTED"):
        with pytest.raises(Malformed):
            verdict_of(reason)
