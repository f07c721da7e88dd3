"""What the doctor finds, and what it says to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.cli.doctor import healthy
from avow.cli.doctor_machine import Finding, check_clock, check_folder, check_libraries, check_limits, check_python
from avow.cli.doctor_network import check_access, check_cluster_view
from avow.cli.view import Said, compose
from avow.peer.settings import Settings


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def test_this_machine_can_run_a_peer() -> None:
    findings = [check_python(), *check_libraries(), check_limits(connections=10), check_clock(over_s=0.01)]
    assert healthy(findings)
    assert all(finding.found for finding in findings)


def test_a_new_folder_is_fine_and_its_disk_is_measured(tmp_path: Path) -> None:
    findings = check_folder(tmp_path / "not" / "yet")
    found = {finding.check: finding for finding in findings}
    assert found["folder"].verdict == "ok"
    assert "fdatasync of 4 KiB: median" in found["sync"].found
    assert "free" in found["space"].found
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    (finding,) = check_folder(tmp_path / "data")
    assert (finding.verdict, finding.advice) == ("fail", "choose another one with --data")


def test_a_folder_with_something_else_in_it_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    assert verdicts(check_folder(tmp_path))["folder"] == "warn"


def test_more_connections_than_files_allowed_is_pointed_out() -> None:
    finding = check_limits(connections=10**9)
    assert finding.verdict in ("ok", "warn", "fail")
    assert finding.verdict == "ok" or "--connections-max" in finding.advice


def test_a_peer_that_would_let_strangers_in_fails() -> None:
    (finding,) = check_access(Settings(listen="0.0.0.0:7400"))
    assert finding.verdict == "fail"
    assert "tokens" in finding.found


def test_loopback_without_tokens_says_who_may_come_in() -> None:
    (finding,) = check_access(Settings())
    assert (finding.verdict, "anybody on this machine" in finding.found) == ("ok", True)


# ---------------------------------------------------------------------- the cluster


def peers(*up: bool) -> list[Finding]:
    listed = [{"number": n, "api": "", "state": "ready", "voter": True} for n, _ in enumerate(up, 1)]
    return check_cluster_view(compose(listed, {n: Said(up=one, ready=one) for n, one in enumerate(up, 1)}))


@pytest.mark.parametrize(
    ("up", "verdict"),
    [
        ((True, True, True), "ok"),
        ((True, True, False), "warn"),
        ((True, False, False), "fail"),
        ((True, True), "warn"),
        ((True, False), "fail"),
        ((True,), "ok"),
    ],
)
def test_a_cluster_is_judged_by_its_quorum(up: tuple[bool, ...], verdict: str) -> None:
    assert verdicts(peers(*up))["cluster"] == verdict


def test_a_lane_nobody_coordinates_fails_and_a_peer_far_behind_is_pointed_out() -> None:
    def said(end: int) -> Said:
        lane = {"lane": 0, "number": 1, "end": end, "trimmed_to": 0, "coordinator": None, "voters": [1, 2]}
        return Said(up=True, ready=True, queues=({"name": "q", "strategy": "two-phase", "lanes": [lane]},))

    listed = [{"number": n, "api": "", "state": "ready", "voter": True} for n in (1, 2)]
    found = verdicts(check_cluster_view(compose(listed, {1: said(1_000_000), 2: said(0)})))
    assert (found["lanes"], found["lag"]) == ("fail", "warn")
