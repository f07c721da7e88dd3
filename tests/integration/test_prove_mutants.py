"""A rule of the product is broken in real peers: the campaign must find it. `make mutants` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from avow_lab.campaigns.peers.mutants import HUNTS, Hunt
from avow_lab.mutations.peers import MUTATION_NAMES

QUICK = ("expires-alone", "founds-alone")


@pytest.mark.parametrize("hunt", [hunt for hunt in HUNTS if hunt.mutation in QUICK], ids=QUICK)
def test_a_broken_rule_is_found(hunt: Hunt, tmp_path: Path) -> None:
    verdict = hunt.run(tmp_path)
    assert hunt.found(verdict), (verdict.violations, verdict.stuck, verdict.faults)


def test_every_mutation_has_a_campaign_that_must_find_it() -> None:
    assert {hunt.mutation for hunt in HUNTS} == set(MUTATION_NAMES)
