"""The judge of `avow prove --pledges` notices everything it is there for; runs meet every combination."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from avow_lab.campaigns.pledges.findings import Evidence, Made, judge
from avow_lab.campaigns.pledges.runs import DATABASES, ON_COMMIT, POINTS, STORES, VICTIMS, Crashes, Plan, draw_run

WHOLE = {("g", "01"): 1, ("g", "02"): 1}


def anomalies(*, commit: bool = True, outcome: str = "", **evidence: Any) -> list[str]:
    given = {"works": {}, "effects": {}, "messages": {}, "late": {}, "undecided": {}, **evidence}
    return [found.anomaly for found in judge(Made("g", commit, outcome, "run 1"), Evidence(**given))]


def test_a_committed_pledge_whose_branches_took_effect_once_is_correct() -> None:
    assert anomalies(outcome="CommittedPending", works={"g": 1}, effects=WHOLE, messages={"g": 1}) == []
    assert anomalies(outcome="", works={"g": 1}, effects=WHOLE, messages={"g": 1}) == []


def test_a_pledge_that_was_rolled_back_without_effect_is_correct() -> None:
    assert anomalies(commit=False, outcome="RolledBack") == []
    assert anomalies(outcome="OutcomeUnknown") == []
    assert anomalies(outcome="raised OFFLINE") == []


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({"works": {"g": 1}, "effects": {("g", "01"): 1}, "messages": {"g": 1}}, ["lost"]),
        ({"works": {"g": 1}, "effects": WHOLE}, ["lost"]),
        ({"works": {"g": 1}, "effects": {**WHOLE, ("g", "02"): 2}, "messages": {"g": 1}}, ["duplicated"]),
        ({"works": {"g": 1}, "effects": WHOLE, "messages": {"g": 2}}, ["duplicated"]),
        ({"works": {"g": 2}, "effects": WHOLE, "messages": {"g": 1}}, ["duplicated"]),
        ({"effects": {("g", "01"): 1}}, ["phantom"]),
        ({"messages": {"g": 1}}, ["phantom"]),
        ({"works": {"g": 1}, "effects": {**WHOLE, ("g", "early-01"): 1}, "messages": {"g": 1}}, ["phantom"]),
        ({"outcome": "Delivered"}, ["misreported"]),
        ({"outcome": "raised UNKNOWN_QUEUE"}, ["misreported"]),
        ({"outcome": "HTTP 500"}, ["misreported"]),
        ({"outcome": "RolledBack", "works": {"g": 1}, "effects": WHOLE, "messages": {"g": 1}}, ["misreported"]),
        ({"commit": False, "works": {"g": 1}, "effects": WHOLE, "messages": {"g": 1}}, ["misreported"]),
        ({"late": {"g": "was prepared"}}, ["late"]),
        ({"undecided": {"g": "still prepared"}}, ["undecided"]),
    ],
)
def test_every_other_outcome_has_a_name(evidence: dict[str, Any], expected: list[str]) -> None:
    assert anomalies(**evidence) == expected


def test_the_plan_covers_every_step_victim_store_and_database() -> None:
    cells = len(STORES) * len(DATABASES)
    steps = len(POINTS) * len(VICTIMS)
    runs = [draw_run(number, seed=3, stores=STORES, databases=DATABASES) for number in range(cells * steps)]
    met = Counter((run.store, run.database, run.point, run.victim) for run in runs)
    assert len(met) == cells * steps
    assert set(met.values()) == {1}
    assert all(run.commits[0] for run in runs if run.point in ON_COMMIT)


def test_seed_and_number_decide_a_run() -> None:
    first, again, other = (draw_run(7, seed=seed, stores=STORES, databases=DATABASES) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.gid(0, seed=1) != first.gid(1, seed=1)


def test_a_plan_targets_one_pledge_at_one_point() -> None:
    crashes = Crashes()
    crashes.arm("g", Plan("in-work", ()))
    crashes.at("in-work", "another")
    crashes.at("after-commit", "g")
    assert crashes.expects("g") == "in-work"
    crashes.at("in-work", "g")
    assert crashes.expects("g") is None
