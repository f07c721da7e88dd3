"""The plan of kills, and the parts of a verdict. No process is started."""

from __future__ import annotations

from collections import Counter

from avow.spark.pipelines.audit_report import Finding, Report
from avow_lab.campaigns.chain.campaign import misreported
from avow_lab.campaigns.chain.faults import VICTIMS, draw_faults
from avow_lab.campaigns.chain.planted_errors import Planted, names_exactly


def test_a_seed_decides_the_faults() -> None:
    assert draw_faults(30, seed=7) == draw_faults(30, seed=7)
    assert draw_faults(30, seed=7) != draw_faults(30, seed=8)


def test_the_first_four_faults_differ_and_driver_kills_are_rare() -> None:
    for seed in range(20):
        victims = [fault.victim for fault in draw_faults(100, seed=seed)]
        assert set(victims[:4]) == set(VICTIMS)
        assert 12 <= Counter(victims)["driver"] <= 14


def test_answers_to_customers_are_compared_with_the_database() -> None:
    answers = {"a": True, "b": True, "c": False, "d": False}
    assert misreported(answers, {"a", "d"}) == [
        "b: told committed, and it is not",
        "d: told rolled back, and it is committed",
    ]
    assert misreported(answers, {"a", "b", "unheard"}) == []


def test_a_planted_error_counts_as_found_only_if_exactly_it_is_named() -> None:
    lost, orphan = Planted("lost", "table", "o-1"), Planted("orphaned", "queue", "o-2")
    first = Finding("lost", "table", "in the queue, not in the table", 1, ("o-1",))
    second = Finding("orphaned", "queue", "in the queue, without a business row", 1, ("o-2",))
    assert names_exactly(Report("a", (), {}, (first,)), [lost])
    assert names_exactly(Report("a", (), {}, (first, second)), [orphan, lost])
    assert not names_exactly(Report("a", (), {}, ()), [lost])
    assert not names_exactly(Report("a", (), {}, (second,)), [lost])
    assert not names_exactly(Report("a", (), {}, (first, second)), [lost])
