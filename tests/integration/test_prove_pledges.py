"""`avow prove --pledges` in its short form: on every store, and on every database of a service."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from avow_lab.campaigns.harness.campaign import prove
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import PEER
from avow_lab.campaigns.pledges import testbed as pledge_testbed
from avow_lab.campaigns.pledges.campaign import Options, PledgeCampaign
from avow_lab.campaigns.pledges.runs import DATABASES, STORES, DatabaseKind, Point, Run, StoreKind

MISTAKEN = str(Path(__file__).with_name("mistaken_services.py"))


@pytest.mark.parametrize(
    ("stores", "databases"), [(STORES, ("sqlite",)), (("sqlite",), DATABASES)], ids=["stores", "databases"]
)
def test_pledges_are_delivered_if_and_only_if_they_commit_whoever_is_killed(
    stores: tuple[StoreKind, ...], databases: tuple[DatabaseKind, ...]
) -> None:
    options = Options(runs=2 * len(stores) * len(databases), seed=20261115, stores=stores, databases=databases)
    verdict = prove(PledgeCampaign, options)
    assert verdict.clean, (verdict.findings, verdict.stuck)
    assert verdict.runs == 2 * len(stores) * len(databases)
    assert verdict.kills["service"]
    assert verdict.kills["coordinator"]
    assert verdict.committed


@pytest.mark.parametrize(
    ("mistake", "point", "anomaly"),
    [
        ("branches without the barrier", "branch-committed", "duplicated"),
        ("a checkback that presumes", "in-work", "phantom"),
        ("work in another transaction", "before-prepare", "lost"),
    ],
)
def test_a_faulty_service_is_detected(tmp_path: Path, mistake: str, point: Point, anomaly: str) -> None:
    database, store = f"sqlite:{tmp_path / 'works.db'}", f"sqlite:{tmp_path / 'store.db'}"
    with ForkServer(MISTAKEN, PEER) as fork_server:
        testbed = pledge_testbed.Testbed(
            "mistaken",
            fork_server=fork_server,
            database=database,
            settings={"pledge_store": store},
            peers=1,
            folder=tmp_path,
            seed=1,
            service=(MISTAKEN, "--mistake", mistake),
        )
        with closing(testbed):
            testbed.start()
            testbed.run(Run(0, "sqlite", "sqlite", point, "service", (True,), 0.0))
            found = testbed.judge()
    assert testbed.reached == {(point, "service"): 1}
    assert anomaly in {one.anomaly for one in found}, found


def test_the_command_prints_its_verdict_as_json_and_its_seed() -> None:
    flags = ["--runs", "2", "--store", "sqlite", "--database", "sqlite", "--seed", "6", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "avow.cli", "prove", "--pledges", *flags], capture_output=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    verdict = json.loads(ran.stdout)
    assert verdict["seed"] == 6
    assert verdict["runs"] == 2
    assert verdict["violations"] == {}


def test_a_store_that_does_not_exist_is_refused() -> None:
    flags = ["--store", "paper", "--runs", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "avow.cli", "prove", "--pledges", *flags], capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert b"paper" in ran.stderr
