"""Housekeeping: periodic tasks of a peer, a few times a second.

    announce    propose this peer's identity and addresses until the metadata lane contains them
    members     in each lane this peer coordinates: one step towards the members that the peer table asks for
    ready       while this peer is joining: once it holds everything and a linearizable read succeeded, propose "ready"
    gone        metadata coordinator: propose "gone" for a leaving peer that is no longer a member of any lane
    forget      metadata coordinator: end the subscriptions of peers that are gone or silent
    leave       end subscriptions at this peer whose channel does not exist in this run
    deadlines   in each lane this peer coordinates: append a discard for transactions past their deadline
    retention   in each lane this peer coordinates: append the trim that the queue's retention rules ask for

Of the lanes, a round looks only at those that were touched since the last one and those with something left to do.

Nothing here is needed for safety. Each task is repeated until its effect is seen, so a lost answer only costs time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from avow.node.answers import Answer, Done, Refusal
from avow.queue.commands import PeerCommand, RetentionRules, SubscriptionCommand, encode
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.node.lane.queue_lane import QueueLane
    from avow.node.metadata_lane import MetadataLane
    from avow.node.node import Node
    from avow.node.pubsub.queue import PubSubQueue
    from avow.queue.records import Queue

OWN_REQUESTS: Final = 1 << 62  # the peer's own requests are numbered from here, clients' requests below
_LEAVES_AT_ONCE: Final = 64
_NO_RULES: Final = RetentionRules()


class Retention:
    """Proposes the trims that the queues' retention rules ask for."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def trim_lane(self, lane: QueueLane, number: int, rules: RetentionRules) -> None:
        node = self._node
        lane.propose_trim(node.disk.stored_files(number), rules, node.now_ms)

    def trim_queue(self, held: PubSubQueue, queue: Queue) -> None:
        """Also for queues without rules: empty lanes of earlier runs are removed after a while."""
        node = self._node
        cursors = queue.subscribers.values()
        held.propose_trims(queue.retention, node.now_ms, node.disk.stored_files, subscribers=cursors)


class Housekeeping:
    def __init__(self, node: Node) -> None:
        self._node, self._pace = node, node.pace
        self._steps, self._retention = node.roles.membership(node), node.roles.retention(node)
        self.identity = b""  # set by the process before the first tick
        self.link = self.api = ""
        # Channel id -> time until which the channel keeps its subscriptions. It is added before the channel subscribes.
        # None: the process does not track channels.
        self.channels: Mapping[bytes, float] | None = None
        self.refused = ""  # why the cluster rejected this peer; the process exits with this message
        self._due_at = self._retention_at = 0.0
        self._attended: set[int] = set()  # two-phase lanes that the next round looks at
        self._members_wanted: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._trims_at = 0  # position of the last trims in the metadata lane; -1: proposed, position not known yet
        self._coordinating_since = -1.0  # the metadata lane; -1: not now
        self._reading: tuple[int, tuple[int, ...]] = (-1, ())  # (position, peers that have members as of it)
        self._repeat_at: dict[str, float] = {}
        self._announcements: set[int] = set()
        self._confirmation = 0
        self._confirmed = False
        self._bounding = 0  # the confirmation after which the loss of a part of the log is bounded

    def tick(self, now: float) -> None:
        if now < self._due_at:
            return
        self._due_at = now + self._pace.every_s
        self._announce(now)
        self._become_ready(now)
        self._bound_loss(now)
        self._say_gone(now)
        self._forget_silent(now)
        self._leave_for_dead(now)
        self._attend()
        with_retention = now >= self._retention_at
        if with_retention:
            self._retention_at = now + self._pace.retention_every_s
            self._trim_lanes()
        self._trim_pubsub(with_retention=with_retention)

    def on_answer(self, request: int, answer: Answer) -> None:
        if request == self._confirmation:
            self._confirmation, self._confirmed = 0, isinstance(answer, Done)
        elif request == self._bounding:
            self._bounding = 0
            if isinstance(answer, Done) and self._node.loss_is_unbounded:
                self._node.bound_loss()
        elif request in self._announcements:
            self._announcements.discard(request)
            if isinstance(answer, Refusal) and answer.code == "FOLDER_UNUSABLE":
                self.refused = (
                    f"the cluster knows peer {self._node.me} with another identity: this data folder was emptied or "
                    "exchanged, so the peer must not vote. Nothing was changed. Remove the peer from the cluster and "
                    "join a new one with an empty folder"
                )

    # ------------------------------------------------------------------ itself

    def _announce(self, now: float) -> None:
        node = self._node
        known = node.metadata.state.peers.by_number.get(node.me)
        members = node.metadata.core.members.everyone
        if not self.identity or node.me not in members:
            return
        if known is not None and (known.identity, known.link, known.api) == (self.identity, self.link, self.api):
            return
        if self._due("announce", now):
            command = PeerCommand("announce", node.me, self.identity, self.link, self.api)
            self._announcements.add(node.propose(Kind.PEER, encode(command), now))

    def _become_ready(self, now: float) -> None:
        node = self._node
        known = node.metadata.state.peers.by_number.get(node.me)
        if known is None or known.state != "joining" or not self._steps.holds_everything():
            self._confirmed = False
            return
        if not self._confirmed:
            if not self._confirmation or self._due("confirm", now):
                self._confirmation = node.confirm(now)
        elif self._due("ready", now):
            node.propose(Kind.PEER, encode(PeerCommand("ready", node.me)), now)

    def _bound_loss(self, now: float) -> None:
        """Storage that lost a part of its log does not know which lanes it had. Every lane created before a read of the
        metadata lane that began after the start may be one of them, no later one can."""
        node = self._node
        if node.loss_is_unbounded and not node.metadata.core.repairing and self._due("bound", now):
            self._bounding = node.confirm(now)

    # ------------------------------------------------------------------ lanes that this peer coordinates

    def _attend(self) -> None:
        """A lane whose coordinator changes is touched, so only those that this peer coordinates need to be kept."""
        node = self._node
        state = node.metadata.state
        voters, learners = state.peers.wanted(state.voters)
        self._step(node.metadata, voters=voters, learners=(*learners, *state.peers.leaving()), route=0)
        if self._members_wanted != (voters, learners):
            self._members_wanted = (voters, learners)
            self._attended.update(node.lanes)
        self._attended.update(node.mux.active)
        node.mux.active.clear()
        for number in sorted(self._attended):
            lane, queue = node.lanes.get(number), node.queues.by_lane.get(number)
            if lane is None or queue is None or lane.core.role != COORDINATOR:
                self._attended.discard(number)
                continue
            steps = self._step_lane(lane, queue, number)
            staged = self._discard_expired(lane, number)
            if not steps and not staged:
                self._attended.discard(number)

    def _step_lane(self, lane: QueueLane, queue: Queue, number: int) -> bool:
        """False: the lane has the members that it should have."""
        voters, learners = self._members_wanted
        members = lane.core.members
        if queue.peers:
            voters, learners = tuple(peer for peer in voters if peer in queue.peers) or members.voters, ()
        if {*members.voters} == {*voters} and {*members.learners} == {*learners}:
            return False
        self._step(lane, voters=voters, learners=learners, route=number)
        return True

    def _discard_expired(self, lane: QueueLane, number: int) -> bool:
        """False: no transaction is open."""
        if not lane.state.transactions.opened:
            return False
        lane.discard_expired(self._node.now_ms)
        self._node.touch(number)
        return True

    def _step(
        self, lane: MetadataLane | QueueLane, *, voters: tuple[int, ...], learners: tuple[int, ...], route: int
    ) -> None:
        wanted = self._steps.next_step(lane, voters=voters, learners=learners)
        if wanted is not None:
            lane.change_members(OWN_REQUESTS, wanted)
            self._node.touch(route)

    def _say_gone(self, now: float) -> None:
        node = self._node
        if node.metadata.core.role != COORDINATOR:
            return
        for peer in node.metadata.state.peers.by_number.values():
            if peer.state != "leaving" or self._steps.is_member(peer.number):
                continue
            if self._due(f"gone {peer.number}", now):
                node.propose(Kind.PEER, encode(PeerCommand("gone", peer.number)), now)

    # ------------------------------------------------------------------ subscriptions

    def _forget_silent(self, now: float) -> None:
        """One peer at a time. The silence of a peer is counted from when this peer became coordinator at the
        earliest."""
        node = self._node
        if node.metadata.core.role != COORDINATOR:
            self._coordinating_since = -1.0
            return
        if self._coordinating_since < 0:
            self._coordinating_since = now
        for peer in self._reading_peers():
            if self._is_lost(peer, now):
                if self._due("forget", now):
                    command = SubscriptionCommand("", "", "", peer, b"", "forget")
                    node.propose(Kind.SUBSCRIPTION, encode(command), now)
                return

    def _reading_peers(self) -> tuple[int, ...]:
        state = self._node.metadata.state
        if self._reading[0] != state.subscribed_at:
            peers = {member.peer for _, _, member in state.catalog.readers()}
            self._reading = (state.subscribed_at, tuple(sorted(peers)))
        return self._reading[1]

    def _is_lost(self, peer: int, now: float) -> bool:
        metadata = self._node.metadata
        if peer == self._node.me:
            return False
        known = metadata.state.peers.by_number.get(peer)
        if known is not None and known.state == "gone":
            return True
        heard = max(metadata.core.heard.get(peer, 0.0), self._coordinating_since)
        return now - heard >= self._pace.silent_s

    def _leave_for_dead(self, now: float) -> None:
        """End the subscriptions of channels of an earlier run, or that ended while the cluster could not be reached."""
        node, channels = self._node, self.channels
        if channels is None or node.me not in self._reading_peers():
            return
        readers = node.metadata.state.catalog.readers()
        mine = (reader for reader in readers if reader[2].peer == node.me)
        dead = (reader for reader in mine if channels.get(reader[2].channel, 0.0) <= now)
        commands = [
            SubscriptionCommand(queue, subscriber, member.name, node.me, member.channel, "leave")
            for queue, subscriber, member in islice(dead, _LEAVES_AT_ONCE)
        ]
        if commands and self._due("leave", now):
            for command in commands:
                node.propose(Kind.SUBSCRIPTION, encode(command), now)

    # ------------------------------------------------------------------ retention

    def _trim_lanes(self) -> None:
        node = self._node
        for queue in node.metadata.state.queues():
            if queue.retention == _NO_RULES or queue.strategy != "two-phase":
                continue
            for number in range(queue.first_lane, queue.first_lane + queue.lanes):
                lane = node.lanes.get(number)
                if lane is not None and lane.core.role == COORDINATOR:
                    self._retention.trim_lane(lane, number, queue.retention)
                    node.touch(number)

    def _trim_pubsub(self, *, with_retention: bool) -> None:
        node = self._node
        if node.metadata.core.role != COORDINATOR:
            self._trims_at = 0
        elif self._trims_at < 0:
            self._trims_at = node.metadata.core.log.end  # trims proposed in the last round are in the log by now
        elif with_retention and self._trims_at <= node.metadata.applied:
            self._trim_queues()

    def _trim_queues(self) -> None:
        """One set of trims at a time: the next is proposed after the last one was applied."""
        node = self._node
        for held in node.pubsub.values():
            queue = node.metadata.state.queue(held.queue)
            if queue is not None:
                self._retention.trim_queue(held, queue)
                node.serve(held.queue)
        self._trims_at = -1

    def _due(self, what: str, now: float) -> bool:
        if now < self._repeat_at.get(what, 0.0):
            return False
        self._repeat_at[what] = now + self._pace.repeat_s
        return True
