"""The objects that all roles of one pub-sub core share. The core creates them once; they are never replaced."""

from __future__ import annotations

from avow.replication.effect_buffer import EffectBuffer
from avow.replication.pubsub.journal import Journal, Mark
from avow.replication.pubsub.lanes import Lanes
from avow.replication.pubsub.liveness import Liveness
from avow.replication.pubsub.notifications import Notifications
from avow.replication.pubsub.rules import Rules
from avow.replication.tuning import Tuning


class Context:
    __slots__ = ("effects", "journal", "lanes", "liveness", "me", "notifications", "rules", "tuning")

    def __init__(
        self,
        *,
        me: int,
        tuning: Tuning,
        rules: Rules,
        effects: EffectBuffer[Mark],
        journal: Journal,
        notifications: Notifications,
        lanes: Lanes,
        liveness: Liveness,
    ) -> None:
        self.me, self.tuning, self.rules = me, tuning, rules
        self.effects, self.journal, self.notifications = effects, journal, notifications
        self.lanes, self.liveness = lanes, liveness
