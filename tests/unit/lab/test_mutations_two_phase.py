"""Properties of the list of two-phase mutations."""

from __future__ import annotations

import inspect

from avow.node.lane.roles import LaneRoles
from avow_lab.mutations import two_phase
from avow_lab.mutations.delegate import Delegate
from avow_lab.mutations.two_phase import TWO_PHASE_MUTATIONS, TWO_PHASE_ROLES, RoleMutation
from avow_lab.simulator.world import World


def test_a_mutation_replaces_a_role_object_and_subclasses_no_shipped_class() -> None:
    here = [
        found
        for _, found in inspect.getmembers(two_phase, inspect.isclass)
        if found.__module__ == two_phase.__name__ and not issubclass(found, RoleMutation | World)
    ]
    assert len(here) > 20
    for found in here:
        assert issubclass(found, Delegate), found
        shipped = [base for base in found.__mro__ if not base.__module__.startswith(("avow_lab.", "builtins"))]
        assert not shipped, f"{found.__name__} subclasses {shipped}"


def test_each_mutation_has_a_unique_name_and_changes_something() -> None:
    names = [mutation.name for mutation in TWO_PHASE_ROLES]
    assert len(set(names)) == len(names)
    assert names == [mutation.name for mutation in TWO_PHASE_MUTATIONS]
    shipped = LaneRoles()
    assert all(mutation.variant or mutation.roles != shipped for mutation in TWO_PHASE_ROLES)
