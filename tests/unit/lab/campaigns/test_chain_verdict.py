"""Output of `avow prove --chain` for a verdict. No process is started."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from rich.console import Console

from avow.spark.pipelines.audit_report import Finding, Report, StageCount
from avow_lab.campaigns.chain.campaign import Progress, Verdict
from avow_lab.campaigns.chain.command import fault_count, print_verdict
from avow_lab.campaigns.chain.planted_errors import Planted

LOST = Finding("lost", "table", "in the queue, not in the table", 1, ("o-1",))


def verdict(*findings: Finding, rows: int = 1_200, **given: Any) -> Verdict:
    counts = {"business": 1_200, "queue": 1_200, "table": rows}
    stages = tuple(StageCount(stage, "orders", count, count) for stage, count in counts.items())  # type: ignore[arg-type]
    known = {
        "seed": 7,
        "database": "sqlite",
        "peers": 3,
        "master": "local[2]",
        "duration_s": 61.4,
        "faults": {"service": 3, "driver": 1},
        "told_committed": 1_200,
        "told_rolled_back": 100,
        "repeated": 5,
        "committed": 1_200,
        "messages": 1_200,
        "rows": rows,
        "batches": 40,
        "report": Report("orders", stages, {}, findings),
        "misreported": [],
    }
    return Verdict(**{**known, **given})


def printed(made: Verdict) -> str:
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        print_verdict(console, made)
    return captured.get()


def test_a_clean_verdict_says_that_orders_messages_and_rows_agree() -> None:
    assert verdict().clean
    output = printed(verdict())
    assert (
        "All promises held. 1,200 orders committed = 1,200 messages = 1,200 rows; 4 faults in 61 s (seed 7)" in output
    )
    assert "killed with -9: driver 1, service 3" in output
    assert "rolled back 100; 5 requests had to be repeated" in output


def test_a_finding_makes_the_verdict_unclean_and_is_named() -> None:
    broken = verdict(LOST, rows=1_199, folder="/somewhere")
    assert not broken.clean
    output = printed(broken)
    assert "lost: in the queue, not in the table: o-1" in output
    assert "Broken: 1,200 orders committed, 1,200 messages, 1,199 rows" in output


@pytest.mark.parametrize("trouble", [{"misreported": ["o-2: told committed, and it is not"]}, {"stuck": "no driver"}])
def test_wrong_answers_and_missing_restarts_make_the_verdict_unclean(trouble: dict[str, Any]) -> None:
    broken = verdict(**trouble)
    assert not broken.clean
    assert "Broken:" in printed(broken)
    assert "".join(next(iter(trouble.values()))) in printed(broken)


def test_a_planted_error_must_be_named_exactly() -> None:
    planted = Planted("lost", "table", "o-1")
    assert "Planted error found. The audit names lost o-1, and nothing else" in printed(
        verdict(LOST, rows=1_199, planted=planted)
    )
    for wrong in (verdict(planted=planted), verdict(LOST, planted=Planted("doubled", "table", "o-1"))):
        assert not wrong.clean
        assert "was planted, and this is not exactly what the audit says" in printed(wrong)


def test_progress_is_one_line() -> None:
    line = Progress(12.3, "killing", 4, 100, 1_234, 1_100, 1_000, "driver").line()
    assert line == (
        "  12.3 s  killing: 4 of 100 faults; 1,234 orders answered, 1,100 messages, 1,000 rows; now: driver"
    )


def test_the_chain_option_takes_a_number_of_faults() -> None:
    assert (fault_count("all"), fault_count("6")) == (100, 6)
    with pytest.raises(typer.BadParameter, match="how many"):
        fault_count("kill")
