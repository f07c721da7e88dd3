"""Output of `avow prove --pledges` for a verdict: all of it, with errors in red."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from avow_lab.campaigns.pledges.campaign import Cell, Verdict
from avow_lab.campaigns.pledges.command import print_verdict
from avow_lab.campaigns.pledges.findings import ANOMALIES, Found


def printed(**changed: object) -> str:
    verdict = Verdict(
        seed=7,
        duration_s=12.0,
        runs=39,
        pledges=90,
        committed=50,
        kills={"service": 26, "coordinator": 26},
        points={"in-work": 3},
        not_reached=0,
        combinations=38,
        told={"CommittedPending": 60, "": 30},
        cells=[Cell("lane", "redis", 39, 90, 50, 52)],
        checked=dict.fromkeys(ANOMALIES, 90),
        violations={},
        findings=[],
    )
    for name, value in changed.items():
        setattr(verdict, name, value)
    out = StringIO()
    print_verdict(Console(file=out, width=140, highlight=False), verdict)
    return out.getvalue()


def test_a_clean_verdict_reports_the_faults_and_what_callers_were_answered() -> None:
    output = printed()
    assert "38 of 39" in output
    assert "CommittedPending 60, nothing 30" in output
    assert "All promises held. 39 runs in 12 s" in output
    assert "ended before" not in output


def test_runs_that_never_reached_their_step_are_reported() -> None:
    output = printed(not_reached=2)
    assert "ended before the step was reached: 2 runs" in output
    assert "All promises held." in output


def test_a_violation_is_named() -> None:
    output = printed(violations={"lost": 1}, findings=[Found("lost", "7-3-1", "branch 02 has no effect; run 3")])
    assert "lost: 7-3-1: branch 02 has no effect; run 3" in output
    assert "Broken:" in output


def test_a_campaign_that_could_not_go_on_is_not_clean() -> None:
    output = printed(stuck="lane-redis: the service ended")
    assert "could not go on: lane-redis" in output
    assert "Broken:" in output
