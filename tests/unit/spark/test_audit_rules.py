"""How an audit judges one id, from plain counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from avow.spark.pipelines.audit_rules import COUNT_MAX, KINDS, Found, Signature, judge


def kinds(**seen: Any) -> list[tuple[str, str]]:
    return [(found.kind, found.stage) for found in judge(Signature(**seen))]


WHOLE: dict[str, Any] = {"business": 1, "barrier": 1, "pledges": "succeeded", "queue": 1, "table": 1}
NOTHING: dict[str, Any] = {"business": 0, "barrier": 0, "pledges": "failed", "queue": 0, "table": 0}


def test_an_id_that_is_in_every_stage_once_is_correct() -> None:
    assert judge(Signature(**WHOLE)) == []


def test_an_order_that_is_in_no_stage_after_a_rollback_is_correct() -> None:
    assert kinds(**NOTHING) == []


@pytest.mark.parametrize("stages", list(itertools.combinations(WHOLE, 2)))
def test_any_two_stages_that_agree_are_clean(stages: tuple[str, ...]) -> None:
    assert kinds(**{stage: WHOLE[stage] for stage in stages}) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"table": 0}, [("lost", "table")]),
        ({"queue": 0, "table": 0}, [("lost", "queue")]),
        ({"queue": 0}, [("lost", "queue")]),
        ({"queue": 0, "table": 0, "pledges": ""}, [("lost", "queue")]),
        ({"queue": 0, "table": 0, "pledges": "failed"}, [("lost", "queue")]),
        ({"table": 2}, [("doubled", "table")]),
        ({"queue": 2, "table": 2}, [("doubled", "queue")]),
        ({"queue": 2, "table": 3}, [("doubled", "queue"), ("doubled", "table")]),
        ({"queue": 2}, [("doubled", "queue")]),
        ({"business": 2, "queue": 2, "table": 2}, [("doubled", "business")]),
        ({"queue": 2, "table": 0}, [("lost", "table"), ("doubled", "queue")]),
        ({"business": 0}, [("orphaned", "barrier")]),
        ({"business": 0, "barrier": 0, "pledges": ""}, [("orphaned", "queue")]),
        ({"business": 0, "barrier": 0, "pledges": "failed", "queue": 0}, [("orphaned", "table")]),
        ({"pledges": "submitted", "queue": 0, "table": 0}, [("undecided", "pledges")]),
        ({"pledges": "dead", "queue": 0, "table": 0}, [("undecided", "pledges")]),
        ({"pledges": "submitted", "table": 0}, [("lost", "table"), ("undecided", "pledges")]),
        (
            {"business": 0, "barrier": 0, "pledges": "prepared", "queue": 0, "table": 0},
            [("undecided", "pledges")],
        ),
    ],
)
def test_findings_name_the_stage_where_an_id_goes_wrong(
    change: dict[str, int | str], found: list[tuple[str, str]]
) -> None:
    assert kinds(**{**WHOLE, **change}) == found


def test_without_a_business_table_the_barrier_defines_what_is_committed() -> None:
    assert kinds(barrier=1, queue=0) == [("lost", "queue")]
    assert kinds(barrier=0, queue=1) == [("orphaned", "queue")]


def test_without_business_table_and_barrier_the_pledges_define_what_is_committed() -> None:
    assert kinds(pledges="succeeded", queue=0) == [("lost", "queue")]
    assert kinds(pledges="failed", queue=1) == [("orphaned", "queue")]
    assert kinds(pledges="", queue=1) == []  # forgotten long ago, or never known: nobody can tell


def test_queue_and_table_alone_can_be_compared() -> None:
    assert kinds(queue=1, table=0) == [("lost", "table")]
    assert kinds(queue=0, table=1) == [("orphaned", "table")]
    assert kinds(queue=1, table=2) == [("doubled", "table")]


def test_business_and_table_alone_can_be_compared() -> None:
    assert kinds(business=1, table=0) == [("lost", "table")]
    assert kinds(business=0, table=1) == [("orphaned", "table")]


def test_rows_no_longer_in_the_queue_are_distinguished() -> None:
    (found,) = judge(Signature(business=1, queue=0, table=1))
    assert "archive" in found.what


def test_a_truncated_count_is_shown_as_such() -> None:
    (found,) = judge(Signature(queue=1, table=COUNT_MAX))
    assert found == Found("doubled", "table", "in the table at least 9 times")


def test_every_state_is_judged_and_only_complete_or_absent_ones_are_correct() -> None:
    counts = (0, 1, 2)
    for business, queue, table in itertools.product(counts, repeat=3):
        found = kinds(business=business, queue=queue, table=table)
        assert (found == []) == (business == queue == table and business < 2)
        assert all(kind in KINDS for kind, _ in found)
