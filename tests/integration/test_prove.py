"""Real peers, broken on purpose: a minute of every fault, and five situations that must go well."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from avow.testing.prove.scenarios import SCENARIOS, complaints, late, play

PLAYS = 3


def test_a_minute_of_every_fault_breaks_no_promise(tmp_path: Path) -> None:
    plot = tmp_path / "campaign.html"
    command = [
        sys.executable,
        "-m",
        "avow.cli",
        "prove",
        "--minutes",
        "1",
        "--seed",
        "1",
        "--json",
        "--plot",
        str(plot),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert run.stdout, run.stderr
    verdict = json.loads(run.stdout)
    said = json.dumps({name: verdict[name] for name in ("violations", "findings", "troubles", "stuck", "folder")})
    assert run.returncode == 0, said
    assert verdict["violations"] == {}
    assert all(verdict["checked"].values()), verdict["checked"]
    assert verdict["acknowledged"] > 1000
    assert len({fault["kind"] for fault in verdict["faults"]}) >= 5
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_goes_well(scenario: str) -> None:
    for _ in range(PLAYS):  # a busy machine may be late twice; no promise may be broken once
        verdict = asyncio.run(play(scenario))
        found = complaints(scenario, verdict)
        if not found or found != late(verdict):
            break
    assert found == []
    assert verdict.faults
    assert verdict.acknowledged > 100
