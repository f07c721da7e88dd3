"""The constructors of a pub-sub core's parts. A test may replace one by an object with a mistake (`Delegate`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from avow.replication.effect_buffer import EffectBuffer
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.lanes import Lanes
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.retention import Retention
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.settlement import Settlement


class PubSubRoles(Struct, frozen=True):
    """Each takes the arguments of its default."""

    rules: Callable[..., Any] = Rules
    effects: Callable[..., Any] = EffectBuffer
    lanes: Callable[..., Any] = Lanes
    ownership: Callable[..., Any] = Ownership
    retention: Callable[..., Any] = Retention
    repair: Callable[..., Any] = Repair
    copies: Callable[..., Any] = Copies
    settlement: Callable[..., Any] = Settlement
