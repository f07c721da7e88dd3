"""The constructors of a pub-sub queue's parts. A test may replace one by an object with a deliberate mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from avow.node.pubsub.history_repair import HistoryRepair
from avow.node.pubsub.reads import Reads
from avow.node.pubsub.retention import QueueRetention
from avow.node.pubsub.rules import QueueRules
from avow.node.pubsub.writes import Writes
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.roles import PubSubRoles


class QueueRoles(Struct, frozen=True):
    """Each takes the arguments of its default. `pubsub`: the constructors of the core's parts."""

    pubsub: PubSubRoles = PubSubRoles()
    core: Callable[..., Any] = PubSubCore
    rules: Callable[..., Any] = QueueRules
    writes: Callable[..., Any] = Writes
    reads: Callable[..., Any] = Reads
    retention: Callable[..., Any] = QueueRetention
    history: Callable[..., Any] = HistoryRepair


QUEUE_SHIPPED: Final = QueueRoles()
