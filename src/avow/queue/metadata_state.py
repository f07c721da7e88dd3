"""The state of the metadata lane: membership, queues, pub-sub lanes, and the peer table.

Most of what peers do needs agreement only within one lane. A few facts must be the same in the whole cluster: the
voters, the queues, the number of each run's lanes, the end of a dead peer's lane. They change rarely, so they share one
two-phase lane, and this is its state machine. It has the same form as a queue's (entries in, outcomes out, snapshots
equal bit for bit), with other commands.

Membership and pub-sub lanes are connected by one rule. A lane keeps the voters it was opened under. Its quorums overlap
with those of the next membership, because a change adds or removes one voter; they need not overlap with those of the
membership after that, and a fence that counts those could miss entries that the lane's owner acknowledged. So voters
change only after every lane from before the last change has ended; until then the answer to MEMBERS is MEMBERSHIP_BUSY.
`epoch` counts changes of voters. Learners are in no quorum, so changing only learners is always possible.

The replication core acts on a MEMBERS entry when it is appended, before it is committed and applied here. A coordinator
must therefore check `busy_lanes` before it appends one. That is sufficient: an opening in flight belongs to the current
epoch, so no entry in flight can make the lane busy.

The peer table has the identity, addresses and state of each peer. A number votes; the identity, the uuid of a data
folder, says whose votes those are. The table binds the two permanently: a number is never reused, and a peer that
returns with another identity (an emptied folder) is refused, because its promises are lost.

    founder  --announce--> ready                         identity at its first start, addresses at every start
    (new)    --join-----> joining --ready--> ready       a learner until it holds everything, then a voter
                          joining, ready --leave--> leaving --gone--> gone

The voters are changed by MEMBERS entries, one step at a time; the table says which voters are wanted.

`level` is the version of the protocol that the cluster's entries may use. Nothing here reads it: a state machine
performs what is in the log. Peers ask before they append something newer than the first version.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from avow.errors import InvalidRequest, Malformed
from avow.limits import IDENTITY_SIZE_BYTES, PEER_NUMBER_MAX, PEERS_EVER_COUNT, PEERS_MAX
from avow.queue.catalog import Catalog
from avow.queue.commands import (
    Command,
    LaneCursorsCommand,
    LaneEndCommand,
    LaneOpenCommand,
    LaneTrimCommand,
    LevelCommand,
    MembersCommand,
    PeerCommand,
    QueueCommand,
    SubscriptionCommand,
    decode_or_code,
)
from avow.queue.entry_outcome import DONE, Outcome
from avow.queue.lane_table import LaneTable
from avow.queue.records import (
    Lane,
    LeveledMetadataSnapshot,
    MetadataBounds,
    MetadataSnapshot,
    MetadataStatistics,
    PeerInfo,
    PeerState,
    Queue,
)
from avow.queue.snapshots import seal, unseal
from avow.queue.write_ids import Recent
from avow.wire.messages import Entry, Kind
from avow.wire.versions import FIRST

_STAYS: Final = frozenset({"joining", "ready"})


class PeerTable:
    __slots__ = ("by_number",)

    def __init__(self) -> None:
        self.by_number: dict[int, PeerInfo] = {}

    def perform(self, command: PeerCommand, members: tuple[int, ...]) -> Outcome:
        if command.action == "join":
            return self._join(command, members)
        known = self.by_number.get(command.number)
        if command.action == "announce":
            return self._announce(command, known, members)
        if known is None:
            return Outcome("UNKNOWN_PEER")
        return self._move(command, known, members)

    def of_identity(self, identity: bytes) -> PeerInfo | None:
        return next((peer for peer in self.by_number.values() if peer.identity == identity), None)

    def leaving(self) -> tuple[int, ...]:
        """Leaving peers. They stay learners of the metadata lane until they are gone: otherwise they would not learn
        that they leave and would keep coordinating lanes."""
        return tuple(sorted(peer.number for peer in self.by_number.values() if peer.state == "leaving"))

    def wanted(self, voters: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The wanted voters and learners of a lane, given the voters of the cluster."""
        leaving = {peer.number for peer in self.by_number.values() if peer.state not in _STAYS}
        ready = {peer.number for peer in self.by_number.values() if peer.state == "ready"}
        joining = {peer.number for peer in self.by_number.values() if peer.state == "joining"}
        stay = ({*voters} | ready) - leaving - joining
        return tuple(sorted(stay)) or voters, tuple(sorted(joining))

    def _announce(self, command: PeerCommand, known: PeerInfo | None, members: tuple[int, ...]) -> Outcome:
        if len(command.identity) != IDENTITY_SIZE_BYTES or (known is None and command.number not in members):
            return Outcome("INVALID_REQUEST")
        if known is not None and known.identity != command.identity:
            return Outcome("FOLDER_UNUSABLE")
        state: PeerState = "ready" if known is None else known.state
        said = PeerInfo(command.number, command.identity, command.link, command.api, state)
        self.by_number[command.number] = said
        return DONE

    def _join(self, command: PeerCommand, members: tuple[int, ...]) -> Outcome:
        if len(command.identity) != IDENTITY_SIZE_BYTES:
            return Outcome("INVALID_REQUEST")
        known = self.of_identity(command.identity)
        if known is not None:  # a repeated join gets the same answer, unless the peer has left
            return Outcome("", known.number, known.number) if known.state in _STAYS else Outcome("FOLDER_UNUSABLE")
        number = max((*self.by_number, *members), default=0) + 1
        staying = sum(peer.state in _STAYS for peer in self.by_number.values())
        if staying >= PEERS_MAX or len(self.by_number) >= PEERS_EVER_COUNT or number > PEER_NUMBER_MAX:
            return Outcome("TOO_MANY")
        self.by_number[number] = PeerInfo(number, command.identity, command.link, command.api, "joining")
        return Outcome("", number, number)

    def _move(self, command: PeerCommand, known: PeerInfo, members: tuple[int, ...]) -> Outcome:
        before, after = known.state, known.state
        if command.action == "ready" and before == "joining":
            after = "ready"
        elif command.action == "leave" and before in _STAYS:
            others = [peer for peer in self.wanted(members)[0] if peer != known.number]
            if not others:
                return Outcome("INVALID_REQUEST")  # at least one peer must remain
            after = "leaving"
        elif command.action == "gone" and before == "leaving":
            after = "gone"
        self.by_number[known.number] = replace(known, state=after)
        return DONE


MAGIC: Final = b"AVMS"
LAYOUT_VERSION: Final = 1


_encoder: Final = Encoder()
_decoder: Final = Decoder(LeveledMetadataSnapshot)


class MetadataState:
    """`voters` and `learners` are the initial ones of the cluster; MEMBERS entries change them."""

    def __init__(
        self, *, voters: tuple[int, ...] = (), learners: tuple[int, ...] = (), bounds: MetadataBounds | None = None
    ) -> None:
        self.bounds = bounds or MetadataBounds()
        self.position = 0
        self.refused = 0
        self.voters = tuple(sorted(voters))
        self.learners = tuple(sorted(learners))
        self.epoch = 0
        self.level = FIRST  # the version of the protocol that entries may use, see `wire.versions`
        self.lanes = LaneTable(self.bounds.lanes)
        self.catalog = Catalog(
            count_max=self.bounds.queues,
            subscribers_max=self.bounds.subscribers,
            subscriptions_max=self.bounds.subscriptions,
            members_max=self.bounds.members,
        )
        self.subscribed_at = 0  # position of the last change of subscriptions
        self.peers = PeerTable()
        self.write_ids: Recent[Outcome] = Recent(self.bounds.write_ids)

    def apply(self, entry: Entry) -> Outcome:
        """Like `Ledger.apply`: a known write id, and an entry that cannot be decoded or performed, change nothing."""
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
        """A pub-sub lane. Raises InvalidRequest if it was never opened or is forgotten."""
        lane = self.lanes.by_number.get(number)
        if lane is None:
            raise InvalidRequest(
                f"lane {number} was never opened, or was trimmed to its end and removed. Read the queue's list of lanes"
            )
        return lane

    def open_lanes(self) -> list[Lane]:
        """Lanes whose end is not decided, orphaned ones included."""
        return self.lanes.open_lanes()

    def orphans(self) -> list[Lane]:
        """Lanes to which nothing is appended any more and which must be settled."""
        return [lane for lane in self.lanes.open_lanes() if lane.orphaned]

    def busy_lanes(self) -> list[int]:
        """Lanes that must end before the voters may change again; see the module's docstring."""
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
        kind = MetadataSnapshot if self.level == FIRST else partial(LeveledMetadataSnapshot, level=self.level)
        body = kind(
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
        state.position, state.refused, state.epoch, state.level = body.position, body.refused, body.epoch, body.level
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
            case LevelCommand(level):
                self.level = max(self.level, level)
                return DONE
            case LaneOpenCommand():
                refusal = self.catalog.open_refusal(command.queue, command.route)
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
