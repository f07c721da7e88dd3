"""The constructors of a two-phase lane's parts; `core` has those of its replication core.

A peer uses the defaults; see `replication.two_phase.roles` for who replaces them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from avow.node.lane.entries import LaneHistory
from avow.node.lane.metadata_machine import MetadataMachine
from avow.node.lane.queue_machine import QueueMachine
from avow.node.lane.reads import LaneReads
from avow.node.lane.writes import LaneWrites
from avow.replication.two_phase.roles import SHIPPED, TwoPhaseRoles


class LaneRoles(Struct, frozen=True):
    core: TwoPhaseRoles = SHIPPED
    reads: Callable[..., Any] = LaneReads
    writes: Callable[..., Any] = LaneWrites
    queue: Callable[..., Any] = QueueMachine  # state machine of a queue's lane
    metadata: Callable[..., Any] = MetadataMachine  # state machine of the metadata lane
    history: Callable[..., Any] = LaneHistory


LANE_SHIPPED: Final = LaneRoles()
