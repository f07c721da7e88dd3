"""The state of the metadata lane: membership, queues, and the pub-sub lanes.

Most of what peers do needs no agreement beyond the lane it happens in. A few facts must be the same for everybody
before anything else can be: who votes, which queues there are, which number belongs to which run of which peer, where
the lane of a dead peer ends. They change rarely, so they share one two-phase lane, and this is its state machine: the
same shape as a queue's (entries in, outcomes out, snapshots equal bit for bit), with other commands.

Membership and pub-sub lanes touch in one rule. A lane keeps the voters it was opened under. Its quorums and those of
the next membership meet, because a change adds or removes one voter; those of the membership after that need not, and a
fence that counts them could miss what the lane's owner had acknowledged. So voters change only once every lane from
before the last change has ended: until then MEMBERS is answered MEMBERSHIP_BUSY. `epoch` counts changes of voters;
learners are in no quorum, and changing only them is always possible.

The replication core acts on a MEMBERS entry when it is appended, before it is committed and applied here. A coordinator
must therefore ask `busy_lanes` before it appends one. That is enough: an opening in flight belongs to the current
epoch, so nothing that is still in flight can make the lane busy.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from avow import limits
from avow.errors import InvalidRequest, Malformed
from avow.queue.catalog import Catalog, Queue
from avow.queue.commands import (
    Command,
    LaneCursorsCommand,
    LaneEndCommand,
    LaneOpenCommand,
    LaneTrimCommand,
    MembersCommand,
    PeerCommand,
    QueueCommand,
    SubscriptionCommand,
    decode_or_code,
)
from avow.queue.lane_table import Lane, LaneTable
from avow.queue.outcomes import DONE, Outcome
from avow.queue.peer_table import PeerInfo, PeerTable
from avow.queue.snapshots import seal, unseal
from avow.queue.write_ids import Recent
from avow.wire.messages import Entry, Kind

MAGIC: Final = b"AVMS"
LAYOUT_VERSION: Final = 1


class MetadataBounds(Struct, frozen=True, array_like=True, gc=False):
    """As `ledger.Bounds`: they decide outcomes, so snapshots carry them."""

    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    queues: int = limits.QUEUES_COUNT
    lanes: int = limits.LANES_COUNT
    subscribers: int = limits.SUBSCRIBERS_COUNT  # of one queue
    subscriptions: int = limits.SUBSCRIPTIONS_COUNT  # of one queue
    members: int = limits.MEMBERS_COUNT  # of one subscription


class MetadataStatistics(Struct, frozen=True, gc=False):
    position: int
    epoch: int
    voters: int
    learners: int
    queues: int
    lanes: int
    open_lanes: int
    orphaned_lanes: int
    write_ids: int
    refused_entries: int
    readers: int  # members of all subscriptions


class _Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    position: int
    refused: int
    bounds: MetadataBounds
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    epoch: int
    next_number: int
    lanes: list[Lane]
    open_lanes: list[int]
    incarnations: dict[int, int]
    queues: list[Queue]
    write_ids: tuple[list[bytes], list[Outcome]]
    peers: list[PeerInfo] = []


_encoder: Final = Encoder()
_decoder: Final = Decoder(_Body)


class MetadataState:
    """`voters` and `learners` are those the cluster was founded with; MEMBERS entries change them."""

    def __init__(
        self, *, voters: tuple[int, ...] = (), learners: tuple[int, ...] = (), bounds: MetadataBounds | None = None
    ) -> None:
        self.bounds = bounds or MetadataBounds()
        self.position = 0
        self.refused = 0
        self.voters = tuple(sorted(voters))
        self.learners = tuple(sorted(learners))
        self.epoch = 0
        self.lanes = LaneTable(self.bounds.lanes)
        self.catalog = Catalog(
            count_max=self.bounds.queues,
            subscribers_max=self.bounds.subscribers,
            subscriptions_max=self.bounds.subscriptions,
            members_max=self.bounds.members,
        )
        self.subscribed_at = 0  # for whoever watches: after this position no subscription has changed
        self.peers = PeerTable()
        self.write_ids: Recent[Outcome] = Recent(self.bounds.write_ids)

    def apply(self, entry: Entry) -> Outcome:
        """As `Ledger.apply`: a known write id has no effect; what cannot be understood or performed changes nothing."""
        assert entry.position == self.position + 1, f"entry {entry.position} cannot follow {self.position}"
        self.position = entry.position
        known = self.write_ids.get(entry.write_id) if entry.write_id else None
        if known is not None:
            return known
        outcome = self._perform(entry)
        if outcome.code:
            self.refused += 1
        if entry.write_id:
            self.write_ids.remember(entry.write_id, outcome)
        return outcome

    def outcome_of(self, write_id: bytes) -> Outcome | None:
        return self.write_ids.get(write_id)

    def queue(self, name: str) -> Queue | None:
        return self.catalog.by_name.get(name)

    def queues(self) -> list[Queue]:
        """In the order they were created."""
        return list(self.catalog.by_name.values())

    def lane(self, number: int) -> Lane:
        """A pub-sub lane that is not forgotten, else InvalidRequest."""
        lane = self.lanes.by_number.get(number)
        if lane is None:
            raise InvalidRequest(f"lane {number} was never opened, or it was trimmed to its end and forgotten")
        return lane

    def open_lanes(self) -> list[Lane]:
        """Lanes whose end is not decided, orphaned ones included."""
        return self.lanes.open_lanes()

    def orphans(self) -> list[Lane]:
        """Lanes nobody appends to any more and whose end somebody must settle."""
        return [lane for lane in self.lanes.open_lanes() if lane.orphaned]

    def busy_lanes(self) -> list[int]:
        """Lanes that must end before the voters may change again; see the head of the module."""
        return [lane.number for lane in self.lanes.open_lanes() if lane.epoch < self.epoch]

    def statistics(self) -> MetadataStatistics:
        return MetadataStatistics(
            position=self.position,
            epoch=self.epoch,
            voters=len(self.voters),
            learners=len(self.learners),
            queues=len(self.catalog.by_name),
            lanes=len(self.lanes.by_number),
            open_lanes=len(self.open_lanes()),
            orphaned_lanes=len(self.orphans()),
            write_ids=len(self.write_ids),
            refused_entries=self.refused,
            readers=sum(1 for _ in self.catalog.readers()),
        )

    def snapshot(self) -> bytes:
        body = _Body(
            position=self.position,
            refused=self.refused,
            bounds=self.bounds,
            voters=self.voters,
            learners=self.learners,
            epoch=self.epoch,
            next_number=self.lanes.next_number,
            lanes=list(self.lanes.by_number.values()),
            open_lanes=list(self.lanes.open_runs.values()),
            incarnations=self.lanes.incarnations,
            queues=self.queues(),
            write_ids=self.write_ids.columns(),
            peers=list(self.peers.by_number.values()),
        )
        return seal(_encoder.encode(body), magic=MAGIC, version=LAYOUT_VERSION)

    @classmethod
    def restore(cls, snapshot: bytes) -> MetadataState:
        """The state that gave this snapshot. Raises Malformed (or a class below it)."""
        body = unseal(snapshot, _decoder, magic=MAGIC, version=LAYOUT_VERSION)
        if body.bounds.write_ids < 1:
            raise Malformed("snapshot bounds", expected="at least one write id", found=body.bounds.write_ids)
        state = cls(voters=body.voters, learners=body.learners, bounds=body.bounds)
        state.position, state.refused, state.epoch = body.position, body.refused, body.epoch
        state.write_ids = Recent.from_columns(body.bounds.write_ids, *body.write_ids)
        state.catalog.by_name.update((queue.name, queue) for queue in body.queues)
        state.subscribed_at = body.position
        state.lanes.next_number = body.next_number
        state.lanes.incarnations.update(body.incarnations)
        state.lanes.fill(body.lanes, serving=body.open_lanes)
        state.peers.by_number.update((peer.number, peer) for peer in body.peers)
        return state

    def _perform(self, entry: Entry) -> Outcome:
        if entry.kind == Kind.NOOP:
            return DONE
        command = decode_or_code(entry.kind, entry.control, metadata=True)
        return Outcome(command) if isinstance(command, str) else self._perform_command(command)

    def _perform_command(self, command: Command) -> Outcome:
        match command:
            case MembersCommand():
                return self._change_members(tuple(sorted(command.voters)), tuple(sorted(command.learners)))
            case QueueCommand():
                self.subscribed_at = self.position
                return self.catalog.perform(command, self.lanes, self.voters)
            case SubscriptionCommand():
                self.subscribed_at = self.position
                return self.catalog.subscribe(command, epoch=self.position)
            case PeerCommand():
                return self.peers.perform(command, (*self.voters, *self.learners))
            case LaneOpenCommand():
                refusal = self.catalog.settled_open(command.queue, command.route)
                return refusal or self.lanes.open(command, voters=self.voters, epoch=self.epoch)
            case LaneEndCommand():
                return self.lanes.end(command)
            case LaneCursorsCommand():
                return self.catalog.move_cursor(command, self.lanes)
            case LaneTrimCommand(lane, upto_version):
                return self._trim(lane, upto_version)
        raise AssertionError(f"{type(command).__name__} is in the metadata table and not performed")

    def _change_members(self, voters: tuple[int, ...], learners: tuple[int, ...]) -> Outcome:
        if len({*voters, *learners}) != len(voters) + len(learners):
            return Outcome("INVALID_REQUEST")  # a peer named twice
        if voters != self.voters:
            if self.busy_lanes():
                return Outcome("MEMBERSHIP_BUSY")
            self.voters = voters
            self.epoch += 1
            self.lanes.orphan(lambda lane: lane.peer not in voters)
        self.learners = learners
        return DONE

    def _trim(self, number: int, upto: int) -> Outcome:
        lane = self.lanes.by_number.get(number)
        if lane is None:
            return Outcome("INVALID_REQUEST")
        held = self.catalog.held_at(lane)
        outcome, forgotten = self.lanes.trim(lane, upto if held is None else min(upto, held))
        if forgotten:
            self.catalog.forget_lane(lane)
        return outcome
