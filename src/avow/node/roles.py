"""The constructors of a node's parts, as one value. A peer uses the defaults.

A test replaces a part by an object with a deliberate mistake (`avow_lab.mutations.delegate`), and the simulator gives
lanes small memory limits. Therefore every rule that a test may break is a method of a separate object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from avow.node.admission import Admission
from avow.node.housekeeping import Housekeeping, Retention
from avow.node.lane.queue_lane import QueueLane
from avow.node.lane.roles import LANE_SHIPPED, LaneRoles
from avow.node.lane_set import LaneSet, RunNumbers, founding_lane_snapshot
from avow.node.membership_steps import MembershipSteps
from avow.node.metadata_lane import MetadataLane
from avow.node.node import Collect, EffectMux, Node
from avow.node.pubsub.queue import PubSubQueue
from avow.node.pubsub.roles import QUEUE_SHIPPED, QueueRoles
from avow.node.transactions import TransactionDriver
from avow.replication.durable import LaneImages
from avow.replication.peers import Peers
from avow.wire.messages import Snapshot


@dataclass(frozen=True, slots=True)
class NodeRoles:
    """Constructors. Those of lanes and queues take the keywords that `lane_set` passes. `lane` and `queue` are the
    constructors of the parts of lanes and queues."""

    effect_mux: Callable[[Collect], EffectMux] = EffectMux
    peers: Callable[[], Peers] = Peers
    lane_set: Callable[[Node, LaneImages], LaneSet] = LaneSet
    admission: Callable[[Node], Admission] = Admission
    run_numbers: Callable[[int], RunNumbers] = RunNumbers
    housekeeping: Callable[[Node], Housekeeping] = Housekeeping
    membership: Callable[[Node], MembershipSteps] = MembershipSteps
    retention: Callable[[Node], Retention] = Retention
    transactions: Callable[[Node], TransactionDriver] = TransactionDriver
    lane: LaneRoles = LANE_SHIPPED
    queue: QueueRoles = QUEUE_SHIPPED
    metadata_lane: Callable[..., MetadataLane] = MetadataLane
    queue_lane: Callable[..., QueueLane] = QueueLane
    pubsub_queue: Callable[..., PubSubQueue] = PubSubQueue
    founding_lane: Callable[[tuple[int, ...]], Snapshot] = founding_lane_snapshot


SHIPPED: Final = NodeRoles()
