"""The examples of pledges run as their first lines say, in a short form."""

from __future__ import annotations

import pytest
from tests.integration.test_examples import run


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_no_money_is_lost_by_transfers_between_banks_that_are_killed(database: str) -> None:
    output = run(
        "bank_transfer/run.py",
        "--database",
        database,
        "--transfers",
        "40",
        "--kills",
        "3",
        "--seed",
        "5",
        timeout_s=500,
    )
    assert "40 transfers" in output
    assert "nothing is missing" in output


def test_point_10_a_flash_sale_sells_what_it_has_and_nothing_twice_whoever_is_killed() -> None:
    output = run("flash_sale/run.py", "--runs", "8", "--kill", "--seed", "11", timeout_s=500)
    assert "8 sales, 8 times somebody was killed" in output
    assert "requests/s" in output
    assert "yes, in every sale" in output


def test_the_cache_ends_up_equal_to_the_database() -> None:
    output = run("cache_consistency/run.py", "--runs", "4", "--seed", "3", timeout_s=500)
    assert "killed after the commit, pledged" in output
    assert "at the end of 4 of 4 random runs" in output
