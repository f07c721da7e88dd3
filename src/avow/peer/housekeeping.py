"""What a peer does of its own accord, a few times a second: say who it is, follow the membership, keep lanes tidy.

    announce    who I am and where I am reached, until the metadata lane says the same
    members     in each lane I coordinate: one step towards the members the peer table asks for
    ready       while I am joining: once I hold everything and a linearizable read went through, say so
    gone        metadata coordinator: a peer that left and is a member of nothing here is done with
    forget      metadata coordinator: a peer that is gone or silent reads for no subscriber any more
    leave       what reads for a subscriber at this peer, and is no channel of this run, does not read any more
    deadlines   in each lane I coordinate: transactions past their deadline are discarded by an entry
    retention   in each lane I coordinate: what the queue's rules give up is trimmed by an entry

Nothing here is needed for safety. Each of these is repeated until its effect is seen, so a lost answer costs a moment.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice
from typing import TYPE_CHECKING, Final

from avow.limits import SUBSCRIPTION_SILENT_S
from avow.peer.answers import Answer, Done, Refusal
from avow.peer.membership_steps import next_members
from avow.queue.commands import PeerCommand, RetentionRules, SubscriptionCommand, encode
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.peer.lane import TwoPhaseLane
    from avow.peer.node import Node
    from avow.peer.queue_lane import QueueLane

OWN_REQUESTS: Final = 1 << 62  # requests of the peer itself are numbered from here; clients' are below
EVERY_S: Final = 0.2
RETENTION_EVERY_S: Final = 5.0
_REPEAT_S: Final = 1.0  # a proposal whose effect was not seen
_BEHIND_ENTRIES_MAX: Final = 256  # a learner so close to the end may vote: it is fed as fast as the others
_LEAVES_AT_ONCE: Final = 64
_NO_RULES: Final = RetentionRules()


class Housekeeping:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.seen_position = -1  # of the metadata lane, by the node
        self.identity = b""  # set by the process before the first tick
        self.link = self.api = ""
        # Ids of the channels that are open here, each before it joins anything. None: nobody serves any, or says so.
        self.channels: Container[bytes] | None = None
        self.refused = ""  # why this peer may not take part; the process ends with it
        self._due_at = self._retention_at = 0.0
        self._coordinating_since = -1.0  # the metadata lane; -1: not now
        self._reading: tuple[int, tuple[int, ...]] = (-1, ())  # peers that have members, as of a position
        self._repeat_at: dict[str, float] = {}
        self._announcements: set[int] = set()
        self._confirmation = 0
        self._confirmed = False

    def tick(self, now: float) -> None:
        if now < self._due_at:
            return
        self._due_at = now + EVERY_S
        self._announce(now)
        self._become_ready(now)
        self._say_gone(now)
        self._forget_silent(now)
        self._leave_for_dead(now)
        self._step_members()
        with_retention = now >= self._retention_at
        if with_retention:
            self._retention_at = now + RETENTION_EVERY_S
        self._tidy(with_retention=with_retention)

    def hear(self, request: int, answer: Answer) -> None:
        if request == self._confirmation:
            self._confirmation, self._confirmed = 0, isinstance(answer, Done)
        elif request in self._announcements:
            self._announcements.discard(request)
            if isinstance(answer, Refusal) and answer.code == "FOLDER_UNUSABLE":
                self.refused = (
                    f"the cluster knows peer {self._node.me} by another identity: this folder was emptied or "
                    "exchanged, so it may not vote as that peer. Remove it and let it join anew with an empty folder"
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
        if known is None or known.state != "joining" or not self._holds_everything():
            self._confirmed = False
            return
        if not self._confirmed:
            if not self._confirmation or self._due("confirm", now):
                self._confirmation = node.confirm(now)
        elif self._due("ready", now):
            node.propose(Kind.PEER, encode(PeerCommand("ready", node.me)), now)

    def _holds_everything(self) -> bool:
        """A learner of every lane it should hold, with all that was committed, also before its first snapshot."""
        node = self._node
        lanes: list[TwoPhaseLane] = [node.metadata, *node.lanes.values()]
        for lane in lanes:
            core = lane.core
            if node.me not in core.members.everyone or core.repairing:
                return False
            if lane.applied < core.cursor_seen - _BEHIND_ENTRIES_MAX or not core.cursor_seen:
                return False
        return all(lane.whole for lane in node.lanes.values()) and all(held.caught_up for held in node.pubsub.values())

    # ------------------------------------------------------------------ members

    def _step_members(self) -> None:
        node = self._node
        state = node.metadata.state
        voters, learners = state.peers.wanted(state.voters)
        self._step(node.metadata, voters=voters, learners=(*learners, *state.peers.leaving()), route=0)
        by_lane = state.catalog.by_lane()
        for number, lane in node.lanes.items():
            queue = by_lane.get(number)
            if queue is None:
                continue
            if queue.peers:
                chosen = tuple(peer for peer in voters if peer in queue.peers) or lane.core.members.voters
                self._step(lane, voters=chosen, learners=(), route=number)
            else:
                self._step(lane, voters=voters, learners=learners, route=number)

    def _step(self, lane: TwoPhaseLane, *, voters: tuple[int, ...], learners: tuple[int, ...], route: int) -> None:
        core = lane.core
        if core.role != COORDINATOR or not core.settled or core.log.members_at > core.committed:
            return

        def caught_up(peer: int) -> bool:
            progress = core.progress.get(peer)
            return progress is not None and progress.stamped and core.log.end - progress.match <= _BEHIND_ENTRIES_MAX

        wanted = next_members(core.members, voters=voters, learners=learners, me=core.me, caught_up=caught_up)
        if wanted is not None:
            lane.change_members(OWN_REQUESTS, wanted)
            self._node.touch(route)

    def _say_gone(self, now: float) -> None:
        node = self._node
        if node.metadata.core.role != COORDINATOR:
            return
        members = [node.metadata.core.members.voters]  # it may go on listening to the metadata lane until it is gone
        members += [lane.core.members.everyone for lane in node.lanes.values()]
        for peer in node.metadata.state.peers.by_number.values():
            if peer.state != "leaving" or any(peer.number in everyone for everyone in members):
                continue
            if self._due(f"gone {peer.number}", now):
                node.propose(Kind.PEER, encode(PeerCommand("gone", peer.number)), now)

    # ------------------------------------------------------------------ subscriptions

    def _forget_silent(self, now: float) -> None:
        """One peer at a time. Who was never heard is given as long as this peer has coordinated."""
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
        return now - heard >= SUBSCRIPTION_SILENT_S

    def _leave_for_dead(self, now: float) -> None:
        """Channels of an earlier run, or some that ended while nobody could be told."""
        node, channels = self._node, self.channels
        if channels is None or node.me not in self._reading_peers():
            return
        readers = node.metadata.state.catalog.readers()
        dead = (reader for reader in readers if reader[2].peer == node.me and reader[2].channel not in channels)
        commands = [
            SubscriptionCommand(queue, subscriber, member.name, node.me, member.channel, "leave")
            for queue, subscriber, member in islice(dead, _LEAVES_AT_ONCE)
        ]
        if commands and self._due("leave", now):
            for command in commands:
                node.propose(Kind.SUBSCRIPTION, encode(command), now)

    # ------------------------------------------------------------------ lanes

    def _tidy(self, *, with_retention: bool) -> None:
        node = self._node
        queues = node.metadata.state.catalog.by_lane() if with_retention else {}
        for number, lane in node.lanes.items():
            if lane.core.role != COORDINATOR:
                continue
            if lane.state.transactions.opened:
                lane.discard_expired(node.now_ms)
                node.touch(number)
            if number in queues and queues[number].retention != _NO_RULES:
                self._retain(lane, number, queues[number].retention)
        if with_retention and node.metadata.core.role == COORDINATOR:
            self._retain_pubsub()

    def _retain(self, lane: QueueLane, number: int, rules: RetentionRules) -> None:
        lane.propose_trim(self._node.stored_files(number), rules, self._node.now_ms)
        self._node.touch(number)

    def _retain_pubsub(self) -> None:
        node = self._node
        for held in node.pubsub.values():
            queue = node.metadata.state.queue(held.queue)
            if queue is not None:  # also without rules: empty lanes of peers' earlier runs are forgotten in time
                cursors = queue.subscribers.values()
                held.propose_trims(queue.retention, node.now_ms, node.stored_files, subscribers=cursors)
                node.touch(held.route)

    def _due(self, what: str, now: float) -> bool:
        if now < self._repeat_at.get(what, 0.0):
            return False
        self._repeat_at[what] = now + _REPEAT_S
        return True
