"""The findings of the doctor on this machine, and their advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow.cli.doctor.command import healthy
from avow.cli.doctor.finding import Finding
from avow.cli.doctor.host import (
    check_clock,
    check_folder,
    check_limits,
    judge_filesystem,
    judge_limits,
    judge_space,
    judge_syncs,
    mount_of,
)
from avow.cli.doctor.install import check_environment, check_libraries, check_python
from avow.cli.doctor.network import check_access, check_cluster_view, judge_clocks, judge_versions
from avow.cli.status import PeerAnswers, compose
from avow.server.settings import Settings

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
server:/export /mnt/my\\040share nfs4 rw 0 0
"""


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def test_this_machine_can_run_a_peer() -> None:
    installed = [check_python(), check_environment({}), *check_libraries()]
    findings = [*installed, check_limits(connections=10), check_clock(over_s=0.01)]
    assert healthy(findings)
    assert all(finding.found for finding in findings)


# ---------------------------------------------------------------------- the data folder


def test_a_new_folder_is_fine_and_its_disk_is_measured(tmp_path: Path) -> None:
    findings = check_folder(tmp_path / "not" / "yet")
    found = {finding.check: finding for finding in findings}
    assert found["folder"].verdict == "ok"
    assert "fdatasync of 4 KiB: median" in found["sync"].found
    assert "free" in found["space"].found
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    (finding,) = check_folder(tmp_path / "data")
    assert (finding.verdict, finding.advice) == ("fail", "choose a folder with --data")


def test_a_folder_that_cannot_be_written_to_fails() -> None:
    """/proc is not writable for any user, root included."""
    (finding,) = check_folder(Path("/proc/self/avow-data"))
    assert (finding.verdict, "is not writable" in finding.found) == ("fail", True)


def test_a_folder_with_other_files_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("")
    assert verdicts(check_folder(tmp_path))["folder"] == "warn"


@pytest.mark.parametrize(("free", "verdict"), [(10**12, "ok"), (2 * 10**9, "warn"), (10**6, "fail")])
def test_free_space_on_the_disk_is_judged(free: int, verdict: str) -> None:
    finding = judge_space(free)
    assert (finding.verdict, bool(finding.advice)) == (verdict, verdict != "ok")


@pytest.mark.parametrize(
    ("place", "kind", "verdict"),
    [("/var/lib/avow", "ext4", "ok"), ("/run/avow", "tmpfs", "warn"), ("/mnt/my share/avow", "nfs4", "warn")],
)
def test_memory_and_network_file_systems_are_not_a_disk(place: str, kind: str, verdict: str) -> None:
    found = mount_of(Path(place), MOUNTS)
    assert found[0] == kind
    assert judge_filesystem(*found).verdict == verdict


@pytest.mark.parametrize(("took_ms", "verdict"), [(0.3, "ok"), (25.0, "warn"), (0.001, "warn")])
def test_a_slow_or_implausibly_fast_sync_is_a_warning(took_ms: float, verdict: str) -> None:
    assert judge_syncs([took_ms] * 9).verdict == verdict


# ---------------------------------------------------------------------- limits, clocks, access


@pytest.mark.parametrize(("hard", "verdict"), [(65_536, "ok"), (1024, "warn"), (256, "fail")])
def test_too_few_open_files_are_a_warning(hard: int, verdict: str) -> None:
    finding = judge_limits(256, hard, connections=1024)
    assert finding.verdict == verdict
    assert finding.verdict == "ok" or "--connections-max" in finding.advice


def test_a_peer_with_a_wrong_clock_is_named() -> None:
    (finding,) = judge_clocks({1: 0.4, 2: -90.0})
    assert (finding.verdict, finding.found) == ("warn", "clocks differ from this machine (peer 2: -90 s)")
    assert judge_clocks({1: 0.4, 2: 1.0})[0].verdict == "ok"
    assert judge_clocks({}) == []


def test_a_peer_open_to_everybody_fails() -> None:
    (finding,) = check_access(Settings(listen="0.0.0.0:7400"))
    assert finding.verdict == "fail"
    assert "tokens" in finding.found


def test_loopback_without_tokens_reports_who_has_access() -> None:
    (finding,) = check_access(Settings())
    assert (finding.verdict, "anyone on this machine" in finding.found) == ("ok", True)


# ---------------------------------------------------------------------- the cluster


def peers(*up: bool) -> list[Finding]:
    listed = [{"number": n, "api": "", "state": "ready", "voter": True} for n, _ in enumerate(up, 1)]
    return check_cluster_view(compose(listed, {n: PeerAnswers(up=one, ready=one) for n, one in enumerate(up, 1)}))


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


def test_a_lane_without_a_coordinator_fails_and_a_lagging_peer_is_a_warning() -> None:
    def answers_of(end: int) -> PeerAnswers:
        lane = {"lane": 0, "number": 1, "end": end, "trimmed_to": 0, "coordinator": None, "voters": [1, 2]}
        return PeerAnswers(up=True, ready=True, queues=({"name": "q", "strategy": "two-phase", "lanes": [lane]},))

    listed = [{"number": n, "api": "", "state": "ready", "voter": True} for n in (1, 2)]
    found = verdicts(check_cluster_view(compose(listed, {1: answers_of(1_000_000), 2: answers_of(0)})))
    assert (found["lanes"], found["lag"]) == ("fail", "warn")


def test_peers_of_different_versions_are_named() -> None:
    (finding,) = judge_versions({1: "1.0", 2: "1.1", 3: "1.0"}, here="1.0")
    assert (finding.verdict, finding.found) == ("warn", "peers differ (1.0: peer 1 3, 1.1: peer 2)")


def test_peers_of_another_version_than_the_command_are_a_warning() -> None:
    (finding,) = judge_versions({1: "1.0", 2: "1.0"}, here="1.1")
    assert (finding.verdict, finding.advice.startswith("pip install avow==1.0")) == ("warn", True)
    assert judge_versions({1: "1.0"}, here="1.0")[0].verdict == "ok"
