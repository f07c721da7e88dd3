"""A two-phase core asks the role objects it was given."""

from __future__ import annotations

from tests.unit.replication.two_phase_hand import B1, VOTERS, coordinator, core, data, sent_by, sync

from avow.ids import REPAIRING
from avow.replication.two_phase.core import COORDINATOR
from avow.replication.two_phase.follower import Follower
from avow.replication.two_phase.roles import TwoPhaseRoles
from avow.replication.two_phase.rules import Rules
from avow.replication.two_phase.state import LaneLog
from avow.wire.messages import Confirm, Confirmed, Enqueue, Kind, Ready, Snapshot
from avow_lab.mutations.delegate import Delegate


class OneIsEnough(Delegate):
    def quorum(self, n: int) -> int:
        return 1


class SaysNothing(Delegate):
    def on_confirm(self, source: int, message: Confirm) -> None:
        """Silence."""


def test_a_replaced_rule_is_used_and_the_others_are_the_shipped_ones() -> None:
    peer = core(roles=TwoPhaseRoles(rules=lambda: OneIsEnough(Rules())))
    peer.tick(1.0)
    sync(peer)
    assert peer.role == COORDINATOR, "nobody else was asked"
    position = peer.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(peer)
    assert peer.committed == position
    shipped = coordinator()
    shipped.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(shipped)
    assert shipped.committed == 0


def test_a_replaced_follower_passes_on_messages_that_it_does_not_handle() -> None:
    peer = core(3, roles=TwoPhaseRoles(follower=lambda state: SaysNothing(Follower(state))))
    peer.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    assert sent_by(peer, Ready) == [Ready(B1, 1, True)]
    peer.receive(1, Confirm(B1, 1), 0.0)
    assert sent_by(peer, Confirmed) == []


def test_each_rule_refuses_where_it_must() -> None:
    rules, log = Rules(), LaneLog(snapshot=Snapshot(0, 0, VOTERS, (), b""), entries=[data(1, B1)])
    assert [rules.quorum(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert not rules.continues(log, 1, B1 + 1)
    assert not rules.continues(log, 2, B1), "beyond its end"
    assert not rules.may_stamp(matched=2, required=3)
    assert not rules.counts(stamped=False)
    assert rules.end_at_stamp(matched=2, committed=1, end=9) == 2
    assert rules.required(takeover_end=3, match=7) == 7
    assert rules.known_committed(cursor=9, matched=4, persisted=6) == 4
    assert rules.is_damaged(REPAIRING)
    assert not rules.is_damaged(B1)
