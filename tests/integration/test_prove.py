"""Real peers, broken on purpose: twenty seconds of faults of every kind, and five situations that must go well.

How soon writes resume is measured by `avow prove`, and not asserted: it depends on what else the machine does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from avow_lab.campaigns.peers.scripts import SCRIPTS, complaints, late, play


def test_no_fault_breaks_a_promise(tmp_path: Path) -> None:
    plot = tmp_path / "campaign.html"
    command = [
        sys.executable,
        "-m",
        "avow.cli",
        "prove",
        "--minutes",
        "0.34",
        "--seed",
        "1",
        "--json",
        "--plot",
        str(plot),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert run.stdout, run.stderr
    verdict = json.loads(run.stdout)
    summary = json.dumps({name: verdict[name] for name in ("violations", "findings", "troubles", "stuck", "folder")})
    assert run.returncode == 0, summary
    assert verdict["violations"] == {}
    assert all(verdict["checked"].values()), verdict["checked"]
    assert verdict["acknowledged"]  # how many, and how many faults, depends on what else the machine does
    assert verdict["faults"]
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_goes_well(name: str) -> None:
    verdict = play(name)
    assert [one for one in complaints(name, verdict) if one not in late(verdict)] == []
    assert verdict.faults
    assert verdict.acknowledged
