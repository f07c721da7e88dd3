"""Output and exit code of `avow prove` for given verdicts."""

from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from avow_lab.campaigns.command import prove_command
from avow_lab.campaigns.harness.reporting import ProgressLines
from avow_lab.campaigns.peers.campaign import Progress, choose_network
from avow_lab.campaigns.peers.command import print_verdict
from avow_lab.campaigns.peers.faults import KINDS, Fault
from avow_lab.campaigns.peers.findings import Anomaly, Finding
from avow_lab.campaigns.peers.scripts import complaints
from avow_lab.campaigns.peers.verdict import Gap, Resumed, Verdict


def a_verdict(**more: object) -> Verdict:
    verdict = Verdict(
        seed=7,
        peers=3,
        duration_s=60.0,
        network="proxy",
        operations={"write": {"done": 10, "refused": 1}},
        refusals={"ledger": {"NOT_EQUAL": 1}},
        acknowledged=1234,
        checked={str(anomaly): 5 for anomaly in Anomaly},
        violations={},
        findings=[],
        faults=[Fault("kill coordinator", "kill -9 of coordinator of ledger/0, peer 2", 0, 2_000_000_000)],
        gaps=[Gap("ledger", 1.25, 3.0, "kill -9 of peer 2")],
        resumed=[Resumed("kill -9 of coordinator of ledger/0, peer 2", 3.0, 0.8)],
        notes=["disks are filled up only as root"],
        troubles=[],
    )
    for name, value in more.items():
        setattr(verdict, name, value)
    return verdict


def printed(verdict: Verdict) -> str:
    out = io.StringIO()
    print_verdict(Console(file=out, width=140, highlight=False), verdict)
    return out.getvalue()


def test_a_clean_verdict_says_what_was_checked() -> None:
    text = printed(a_verdict())
    assert "All promises held." in text
    assert "1,234 messages acknowledged through 1 faults, 0 violations (seed 7)" in text
    assert "longest time without an acknowledged write 1.25 s" in text
    assert "left out: disks are filled up only as root" in text
    assert "0.80" in text


def test_a_violation_is_shown_with_its_name_and_the_seed() -> None:
    finding = Finding(Anomaly.LOST, "ledger", "1 of 1 messages of write 9 are not there")
    text = printed(a_verdict(violations={"lost": 1}, findings=[finding]))
    assert "lost: ledger: 1 of 1 messages of write 9 are not there" in text
    assert "Broken:" in text


@pytest.mark.parametrize(
    ("field", "value"), [("violations", {"lost": 1}), ("troubles", ["KeyError"]), ("stuck", "peer 1 is not ready")]
)
def test_any_error_makes_a_verdict_unclean(field: str, value: object) -> None:
    assert a_verdict().clean
    assert not a_verdict(**{field: value}).clean


def test_progress_is_one_line() -> None:
    progress = Progress(12.34, "under load", 1000, 2, 3, "pause", 4)
    assert progress.line().strip() == ("12.3 s  under load: 1,000 done, 2 refused, 3 unknown; 4 faults; now: pause")


def test_without_a_terminal_few_lines_are_printed() -> None:
    out = io.StringIO()
    lines = ProgressLines(Console(file=out, width=140, highlight=False))
    for tenth in range(250):
        lines(Progress(tenth / 10, "under load", tenth, 0, 0, "", 0))
    assert len(out.getvalue().splitlines()) == 3


def test_an_unknown_fault_is_refused_before_anything_starts() -> None:
    app = typer.Typer()
    app.command()(prove_command)
    result = CliRunner().invoke(app, ["--faults", "kill,flood"])
    assert result.exit_code == 2
    assert "flood" in result.output
    assert all(kind in result.output for kind in KINDS[:2])


def test_a_report_warns_about_slow_recovery_and_refusals() -> None:
    late = Resumed("kill", 1.0, 2.5)
    assert complaints("coordinator killed", a_verdict()) == []
    assert complaints("coordinator killed", a_verdict(resumed=[late])) == ["kill: 2.50 s"]
    assert complaints("rolling restart", a_verdict()) == []
    refused = a_verdict(refusals={"events": {"OFFLINE": 2}}, operations={"write": {"unknown": 1}})
    assert len(complaints("pub-sub killed", refused)) == 2


def test_a_network_is_chosen_by_the_capabilities_of_the_machine() -> None:
    assert choose_network("proxy") == ("proxy", "")
    kind, note = choose_network("auto")
    assert (kind == "proxy") == bool(note)
