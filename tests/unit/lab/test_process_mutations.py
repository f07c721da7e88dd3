"""Mutations of real processes: each replaces an object that exists, and a campaign's clients get theirs back."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from avow.channel.protocol.core import Core
from avow.errors import InvalidRequest
from avow_lab.campaigns.harness.peer_program import program
from avow_lab.mutations.peers import PROCESS_MUTATIONS, ProcessMutation, broken_clients

BY_NAME = {mutation.name: mutation for mutation in PROCESS_MUTATIONS}


@pytest.mark.parametrize("mutation", PROCESS_MUTATIONS, ids=BY_NAME)
def test_what_it_replaces_exists_and_the_replacement_is_another_object(mutation: ProcessMutation) -> None:
    module, _, path = mutation.place.partition(":")
    shipped = import_module(module)
    for name in path.split("."):
        shipped = getattr(shipped, name)
    assert mutation.broken(shipped) is not shipped


def test_clients_are_broken_while_the_campaign_runs() -> None:
    shipped = Core._handle_end
    with broken_clients("strangers-end"):
        assert Core._handle_end is not shipped
    assert Core._handle_end is shipped


@pytest.mark.parametrize("name", ["", "no-mark"])
def test_clients_are_not_broken_by_a_mutation_of_peers(name: str) -> None:
    shipped = Core._handle_end
    with broken_clients(name):
        assert Core._handle_end is shipped


def test_a_mutation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no-mark"):
        broken_clients("no-such").__enter__()


@pytest.mark.parametrize("name", ["", "no-age"])
def test_the_program_of_a_campaigns_peers_takes_the_flags_of_serve(name: str) -> None:
    words = [sys.executable, *program(name), "--help"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "--data" in ran.stdout
