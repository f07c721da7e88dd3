"""Every mistake of the list is noticed by a walk, within seconds; the seed that shows it is part of the verdict."""

from __future__ import annotations

import pytest

from avow.channel.protocol.core import Core
from avow_lab.channel_machine.mutants import MUTANTS, SEEDS_MAX, hunt_mutant
from avow_lab.channel_machine.walk import walk


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_the_channel_machine_detects(mutant: str) -> None:
    caught = hunt_mutant(mutant)
    assert caught.seeds, f"{mutant} survived {SEEDS_MAX} seeds: the machine is blind there"
    assert f"(seed {caught.seeds - 1}, step " in caught.violation


def test_the_seed_in_a_verdict_reproduces_the_error_and_the_correct_core_passes() -> None:
    mutant = next(one for one in MUTANTS if one.name == "commit not resent")
    seed = hunt_mutant(mutant.name).seeds - 1
    assert walk(seed, core_class=mutant.core_class).violation == hunt_mutant(mutant.name).violation
    assert not walk(seed, core_class=Core).violation


def test_every_mutation_that_the_design_lists_exists() -> None:
    assert sum(mutant.listed for mutant in MUTANTS) == 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
