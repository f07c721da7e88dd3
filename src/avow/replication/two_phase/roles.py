"""The constructors of a two-phase core's parts.

A peer uses the defaults. A test passes an object that breaks one rule and delegates the rest to the shipped one; it is
not a subclass, so the constructors' results have no declared type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from avow.replication.effect_buffer import EffectBuffer
from avow.replication.two_phase.claim import Claim
from avow.replication.two_phase.follower import Follower
from avow.replication.two_phase.leadership import Leadership
from avow.replication.two_phase.rules import Rules


class TwoPhaseRoles(Struct, frozen=True):
    rules: Callable[[], Any] = Rules
    effects: Callable[[], Any] = EffectBuffer
    follower: Callable[..., Any] = Follower  # of the LaneState, as are the others
    claim: Callable[..., Any] = Claim
    leadership: Callable[..., Any] = Leadership


SHIPPED: Final = TwoPhaseRoles()
