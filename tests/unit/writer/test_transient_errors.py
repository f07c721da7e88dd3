"""Whether an error is transient is derived from its class, not from a list of codes."""

from __future__ import annotations

import pytest

from avow.errors import BY_CODE, is_transient


@pytest.mark.parametrize(
    "code", ["OFFLINE", "NOT_COORDINATOR", "BUSY", "TOO_MANY", "DISK_FULL", "MEMBERSHIP_BUSY", "UNKNOWN"]
)
def test_a_transient_error_is_worth_an_unchanged_retry(code: str) -> None:
    assert is_transient(code)


@pytest.mark.parametrize("code", ["LANE_ENDED", "CHANNEL_FAILED"])
def test_an_error_that_needs_another_target_is_retriable_and_not_transient(code: str) -> None:
    assert BY_CODE[code].retriable
    assert not is_transient(code)


def test_an_error_that_is_not_retriable_is_not_transient() -> None:
    refused = [code for code, error in BY_CODE.items() if not error.retriable]
    assert {"NOT_EQUAL", "INVALID_REQUEST", "FENCED", "UNKNOWN_QUEUE", "STORAGE_DAMAGED"} <= set(refused)
    assert not any(is_transient(code) for code in refused)


def test_an_unknown_code_is_not_transient() -> None:
    assert not is_transient("A_CODE_OF_TOMORROW")


def test_a_class_with_the_code_of_its_parent_is_found_as_the_parent() -> None:
    assert BY_CODE["ALREADY_DECIDED"].__name__ == "AlreadyDecided"
