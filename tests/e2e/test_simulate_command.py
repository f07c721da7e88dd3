"""The installed `avow simulate`, with text and JSON output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

AVOW = Path(sys.executable).with_name("avow")


def avow(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(AVOW), *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub"])
def test_a_campaign_ends_with_a_readable_verdict(strategy: str) -> None:
    run = avow("simulate", "--strategy", strategy, "--seeds", "20")
    assert run.returncode == 0, run.stdout + run.stderr
    for word in (
        "All promises held",
        "0 violations",
        "acknowledged writes",
        "crashes",
        "partitions",
        "3 peers",
        "5 peers",
    ):
        assert word in run.stdout


def test_json_is_one_object_with_the_counts() -> None:
    run = avow("simulate", "--seeds", "30", "--json")
    result = json.loads(run.stdout)
    assert result["violations"] == 0
    assert result["seeds"] == 30
    assert result["events"] > 1000
    assert result["acknowledged"] > 100
    assert result["repeated"] == 1
    assert result["unstable"] == []


def test_two_campaigns_over_the_same_seeds_give_the_same_hash_on_any_number_of_processes() -> None:
    hashes = {
        json.loads(avow("simulate", "--seeds", "12", "--jobs", jobs, "--json").stdout)["hash"] for jobs in ("1", "2")
    }
    assert len(hashes) == 1


def test_one_seed_shows_its_trace() -> None:
    run = avow("simulate", "--seed", "5", "--trace")
    assert run.returncode == 0
    assert "Enqueue" in run.stdout
    assert "peer 1 starts" in run.stdout


def test_bad_arguments_are_named() -> None:
    run = avow("simulate", "--strategy", "three-phase")
    assert run.returncode == 2
    assert "three-phase" in run.stderr


def test_help_lists_what_is_checked() -> None:
    run = avow("simulate", "--help")
    assert run.returncode == 0
    assert "--mutations" in run.stdout
    assert "--json" in run.stdout
