"""The report of a violation."""

from __future__ import annotations

import io

from rich.console import Console

from avow_lab.mutations.hunt import Caught
from avow_lab.simulator.command import _print_campaign, _print_mutations
from avow_lab.simulator.runner import Campaign, Sum


def shown(campaign: Campaign) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False, record=True)
    _print_campaign(console, campaign)
    return console.export_text()


def test_a_violation_is_shown_with_its_trace_and_a_command_to_reproduce_it() -> None:
    campaign = Campaign("two-phase", 0, by_peers={3: Sum(10, 1000, 50, 0.1, {"crashes": 2})}, failed=1)
    campaign.failures = [(7, "agreement: position 3")]
    text = shown(campaign)
    assert "avow simulate --strategy two-phase --seed 7 --trace" in text
    assert "agreement: position 3" in text
    assert "all faults are healed" in text or "Heartbeat" in text
    assert "1 of 10 runs broke a promise" in text
    assert "All promises held" not in text


def test_the_command_to_reproduce_it_names_the_cluster_size() -> None:
    campaign = Campaign("pub-sub", 0, 5, by_peers={5: Sum(1, 1000, 50, 0.1, {})}, failed=1)
    campaign.failures = [(3, "lost: something")]
    assert "avow simulate --strategy pub-sub --peers 5 --seed 3 --trace" in shown(campaign)


def test_a_seed_with_two_different_results_fails_the_campaign() -> None:
    campaign = Campaign("two-phase", 0, by_peers={3: Sum(10, 1000, 50, 0.1, {})}, repeated=1, unstable=[4])
    assert not campaign.held
    assert "seed 4 has two different traces" in shown(campaign)


def test_a_surviving_mutation_is_named() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    survivor = Caught("made up", "nothing is broken", "two-phase", listed=False, seeds=0, violation="")
    _print_mutations(console, [survivor], [survivor])
    text = console.export_text()
    assert "survived" in text
    assert "1 of 1" in text
