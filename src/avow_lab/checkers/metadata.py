"""The checkers of the metadata lane: peers, members, queues and the lanes of pub-sub queues.

    agreement     two peers applied different entries at one position, or had another outcome than the rules here
    not stored    an entry was committed that a quorum does not hold on disk
    membership    voters changed by more than one, or while a lane from before the last change was open; a peer became
                  ready before it held all lanes, or gone while it was a member of one
    retention     a trim removed what the rules of the queue keep
    lost          a command was acknowledged and is not in the ledger

Each queue is an incarnation: a name may be deleted and created again, and then has new lanes and new ledgers. Lane
numbers are never reused, so a lane's number identifies its ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from avow.limits import PEERS_MAX
from avow.queue import commands
from avow.queue.entry_outcome import DONE, Outcome
from avow.wire.messages import Entry, Kind
from avow_lab.checkers.pubsub import Holders, PubSubLedger
from avow_lab.checkers.two_phase import Ledger, Membership, Rules, Violation

RECENT_ENTRIES: Final = (
    64  # at most in flight before a proposal: a subscriber among them was not known when it was made
)


class Incarnation:
    """One queue from its creation to its deletion."""

    __slots__ = ("command", "deleted", "ends", "first_lane", "founders", "lanes", "pubsub", "retention")

    def __init__(self, command: commands.QueueCommand, first_lane: int, founders: tuple[int, ...]) -> None:
        self.command, self.first_lane, self.founders = command, first_lane, founders
        self.lanes: dict[int, Ledger] = {}  # of a two-phase queue, by number
        self.pubsub: PubSubLedger | None = None
        self.retention = [command.retention]  # and all later rules
        self.deleted = False
        self.ends: dict[bytes, dict[int, bool]] = {}  # of transactions over several lanes: published, or dropped

    def transaction_ended(self, lane: int, txn: bytes, shown: bool) -> None:
        """A lane with batches of the transaction has shown or dropped them."""
        ends = self.ends.setdefault(txn, {})
        ends[lane] = shown
        if len(set(ends.values())) > 1:
            raise Violation("two outcomes", f"{txn!r} of queue {self.name}: shown by lane {ends}")

    @property
    def undecided(self) -> list[bytes]:
        """Transactions over several lanes that have not come to their end in one of them."""
        return [txn for ledger in self.lanes.values() for txn in (*ledger.rules.opened, *ledger.rules.following)]

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def strategy(self) -> str:
        return self.command.strategy

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.command.peers)))

    @property
    def acknowledged(self) -> int:
        return sum(ledger.acknowledged for ledger in self.lanes.values()) + (
            self.pubsub.acknowledged if self.pubsub is not None else 0
        )


class MetadataLedger:
    def __init__(
        self,
        *,
        voters: tuple[int, ...],
        base: int,
        holders: Holders,
        stored: Callable[[int, int, Entry], bool],
        is_held: Callable[[int, int], bool],
        write_ids: int,
    ) -> None:
        """`stored` (peer, lane, entry): a quorum of the lane's members, as that peer knows them, has it on disk.
        `is_held` (peer, lane): that peer's disk has anything of the lane."""
        self._holders, self._stored, self._is_held, self._write_ids = holders, stored, is_held, write_ids
        self.members = Membership("the metadata lane", voters)
        self.voters, self.epoch = voters, 0
        self.learners: tuple[int, ...] = ()
        self.next_number = 1
        self.queues: list[Incarnation] = []
        self.current: dict[str, Incarnation] = {}
        self.by_lane: dict[int, Incarnation] = {}  # by every lane number so far, and by those of pub-sub queues
        self.peers: dict[int, str] = {}  # number -> joining, ready, leaving, gone
        self.identities: dict[int, bytes] = {}
        self.joined_after: dict[int, int] = {}  # peer -> next_number when it was admitted
        self.on_gone: Callable[[int], None] = lambda _peer: None
        self.counts: dict[str, int] = {}  # for the report
        self._open_runs: dict[tuple[int, int, str], int] = {}
        self._runs: dict[int, int] = {}  # peer -> its latest run that opened a lane
        self._outcomes: dict[bytes, Outcome] = {}
        self._entries: dict[int, tuple[Entry, Outcome]] = {}
        self.base = self.end = base

    # ------------------------------------------------------------------ entries

    def applied(self, peer: int, entry: Entry, outcome: Outcome, *, counted_among: tuple[int, ...]) -> None:
        """A peer applied this entry with this outcome. By its log, these voters count."""
        known = self._entries.get(entry.position)
        if known is None:
            holders = self._holders(0, entry.position, entry)
            if 2 * len(holders.intersection(counted_among)) <= len(counted_among):
                raise Violation("not stored", f"metadata {entry.position} was committed, and only {holders} hold it")
            self._first(peer, entry, outcome)
        elif (known[0] is not entry and known[0] != entry) or known[1] != outcome:
            raise Violation("agreement", f"metadata {entry.position}: peer {peer} has {entry}, {outcome}; not {known}")

    def _first(self, peer: int, entry: Entry, outcome: Outcome) -> None:
        if entry.position != self.end + 1:
            raise Violation("agreement", f"peer {peer} applied metadata {entry.position} after {self.end}")
        self._entries[entry.position] = (entry, outcome)
        self.end = entry.position
        expected = self._outcomes.get(entry.write_id) if entry.write_id else None
        if expected is None:
            expected = self._perform(entry)
        if entry.write_id:
            self._outcomes[entry.write_id] = expected
        if outcome != expected:
            difference = f"{Kind.NAMES[entry.kind]} was concluded with {outcome}, not {expected}"
            raise Violation("agreement", f"metadata {entry.position}: {difference}")

    def _perform(self, entry: Entry) -> Outcome:
        if entry.kind == Kind.NOOP:
            return DONE
        if entry.kind == Kind.MEMBERS:
            self.members.change(entry)
        command = commands.decode(entry.kind, entry.control, metadata=True)
        match command:
            case commands.MembersCommand():
                return self._change_members(command)
            case commands.QueueCommand():
                return self._change_queue(command)
            case commands.PeerCommand():
                return self._change_peer(command)
            case commands.LaneOpenCommand():
                return self._open_lane(command)
            case commands.LaneEndCommand():
                lanes = self._lanes_of(command.lane)
                return lanes.ended(command) if lanes is not None else Outcome("INVALID_REQUEST")
            case commands.LaneTrimCommand():
                return self._trim(command)
            case commands.LaneCursorsCommand():
                return self._move_cursor(command)
        raise Violation("phantom", f"metadata {entry.position}: {command} was never requested")

    # ------------------------------------------------------------------ queues and their lanes

    def add_initial_queue(self, command: commands.QueueCommand) -> None:
        """A queue that exists from the start."""
        self._create(command)

    def _change_queue(self, command: commands.QueueCommand) -> Outcome:
        queue = self.current.get(command.name)
        if command.action == "create" and queue is None:
            if not {*command.peers} <= {*self.voters}:
                return Outcome("INVALID_REQUEST")
            self._count("queues created")
            return self._create(command)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        if command.action == "create":
            asked = (command.strategy, command.lanes, command.retention, tuple(sorted(set(command.peers))))
            same = asked == (queue.strategy, queue.command.lanes, queue.retention[-1], queue.peers)
            last = queue.first_lane + queue.command.lanes - 1
            return Outcome("", queue.first_lane, last) if same else Outcome("ALREADY_EXISTS")
        if command.action == "change":
            queue.retention.append(command.retention)
            return DONE
        self._delete(queue)
        self._count("queues deleted")
        return DONE

    def _create(self, command: commands.QueueCommand) -> Outcome:
        first, self.next_number = self.next_number, self.next_number + command.lanes
        founders = tuple(sorted(set(command.peers))) or self.voters
        queue = Incarnation(command, first, founders)
        numbers = range(first, first + command.lanes)
        if command.strategy == "pub-sub":
            queue.pubsub = PubSubLedger(self._holders, write_ids=self._write_ids)
        else:
            queue.lanes = {number: self._new_ledger(queue, number) for number in numbers}
        self.by_lane.update(dict.fromkeys(numbers, queue))
        self.current[command.name] = queue
        self.queues.append(queue)
        return Outcome("", first, first + command.lanes - 1)

    def _new_ledger(self, queue: Incarnation, number: int) -> Ledger:
        def stored(peer: int, entry: Entry) -> bool:
            return queue.deleted or self._stored(peer, number, entry)

        def allowed(trim: commands.TrimCommand, rules: Rules) -> bool:
            self._count("trims by rule")
            return _allows(queue, trim, rules, ledger.end)

        ledger = Ledger(stored, number=number, base=1, voters=queue.founders, retention=allowed)
        ledger.rules.on_end = partial(queue.transaction_ended, number)
        return ledger

    def _delete(self, queue: Incarnation) -> None:
        del self.current[queue.name]
        queue.deleted = True
        if queue.pubsub is not None:
            queue.pubsub.deleted = True
            for lane in queue.pubsub.lanes.values():
                lane.forgotten = True
            self._open_runs = {run: number for run, number in self._open_runs.items() if run[2] != queue.name}

    def lane(self, number: int) -> Ledger:
        """Of a two-phase lane."""
        queue = self.by_lane.get(number)
        if queue is None or number not in queue.lanes:
            raise Violation("phantom", f"a peer holds two-phase lane {number}, which does not exist")
        return queue.lanes[number]

    def _lanes_of(self, number: int) -> PubSubLedger | None:
        """The ledger of a pub-sub lane that is not forgotten."""
        queue = self.by_lane.get(number)
        if queue is None or queue.pubsub is None or number not in queue.pubsub.lanes:
            return None
        return None if queue.pubsub.lanes[number].forgotten else queue.pubsub

    def _open_lane(self, command: commands.LaneOpenCommand) -> Outcome:
        queue = self.current.get(command.queue)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        if queue.pubsub is None:
            return Outcome("INVALID_REQUEST")
        run = (command.peer, command.incarnation, command.queue)
        number = self._open_runs.get(run)
        if number is not None and queue.pubsub.lanes[number].end < 0:
            return Outcome("", number, number)
        if command.peer not in self.voters or command.incarnation < self._runs.get(command.peer, 0):
            return Outcome("INVALID_REQUEST")
        number, self.next_number = self.next_number, self.next_number + 1
        self._runs[command.peer] = command.incarnation
        self._open_runs[run] = number
        self.by_lane[number] = queue
        queue.pubsub.opened(number, run=run[:2], voters=self.voters, epoch=self.epoch)
        return Outcome("", number, number)

    def _trim(self, command: commands.LaneTrimCommand) -> Outcome:
        lanes = self._lanes_of(command.lane)
        if lanes is None:
            return Outcome("INVALID_REQUEST")
        queue, lane = self.by_lane[command.lane], lanes.lanes[command.lane]
        if command.rule != "asked" and lane.versions[-1] and not _gives_up(queue, lanes, command, self.end):
            raise Violation("retention", f"{command} removes what the rules of {queue.name} keep")
        if command.rule != "asked":
            self._count("trims by rule")
        return lanes.trimmed(command)

    def _move_cursor(self, command: commands.LaneCursorsCommand) -> Outcome:
        queue = self.current.get(command.queue)
        if queue is None:
            return Outcome("UNKNOWN_QUEUE")
        if queue.pubsub is None:
            return Outcome("INVALID_REQUEST")
        for number, _ in command.versions:
            other = self.by_lane.get(number)
            if other is not queue and other is not None and self._lanes_of(number) is not None:
                return Outcome("INVALID_REQUEST")
        queue.pubsub.moved(command, self.end)
        return DONE

    # ------------------------------------------------------------------ members and peers

    def _change_members(self, command: commands.MembersCommand) -> Outcome:
        voters = tuple(sorted(command.voters))
        if voters != self.voters:
            older = [
                lane.number
                for queue in self.current.values()
                if queue.pubsub is not None
                for lane in queue.pubsub.lanes.values()
                if lane.end < 0 and lane.epoch < self.epoch and not lane.forgotten
            ]
            if older:
                raise Violation("membership", f"{command} was stored while lanes {older} were open")
            self.voters, self.epoch = voters, self.epoch + 1
        self.learners = tuple(sorted(command.learners))
        return DONE

    def _change_peer(self, command: commands.PeerCommand) -> Outcome:
        if command.action == "join":
            return self._join(command)
        state = self.peers.get(command.number)
        if command.action == "announce":
            if state is None and command.number not in (*self.voters, *self.learners):
                return Outcome("INVALID_REQUEST")
            if self.identities.setdefault(command.number, command.identity) != command.identity:
                return Outcome("FOLDER_UNUSABLE")
            self.peers.setdefault(command.number, "ready")
            return DONE
        if state is None:
            return Outcome("UNKNOWN_PEER")
        return self._move(command.number, command.action, state)

    def _join(self, command: commands.PeerCommand) -> Outcome:
        for number, identity in self.identities.items():
            if identity == command.identity:
                stays = self.peers[number] in ("joining", "ready")
                return Outcome("", number, number) if stays else Outcome("FOLDER_UNUSABLE")
        if sum(state in ("joining", "ready") for state in self.peers.values()) >= PEERS_MAX:
            return Outcome("TOO_MANY")
        number = max((*self.peers, *self.voters, *self.learners)) + 1
        self.peers[number], self.identities[number] = "joining", command.identity
        self.joined_after[number] = self.next_number
        return Outcome("", number, number)

    def _move(self, number: int, action: str, state: str) -> Outcome:
        if action == "ready" and state == "joining":
            self._check_ready(number)
            self.peers[number] = "ready"
            self._count("peers joined")
        elif action == "leave" and state in ("joining", "ready"):
            members = (*self.voters, *self.learners)
            stay = [peer for peer in {*self.peers, *members} if self._stays(peer, members)]
            if stay in ([], [number]):
                return Outcome("INVALID_REQUEST")
            self.peers[number] = "leaving"
        elif action == "gone" and state == "leaving":
            self._check_gone(number)
            self.peers[number] = "gone"
            self._count("peers gone")
            self.on_gone(number)
        return DONE

    def _stays(self, peer: int, members: tuple[int, ...]) -> bool:
        state = self.peers.get(peer)
        return state == "ready" or (state is None and peer in members)

    def _check_ready(self, number: int) -> None:
        """It holds something of every lane that existed when it was admitted."""
        for queue in self.current.values():
            for lane in queue.lanes:
                expected = lane < self.joined_after.get(number, 0) and not queue.peers
                if expected and not self._is_held(number, lane):
                    raise Violation("membership", f"peer {number} became ready and holds nothing of lane {lane}")

    def _check_gone(self, number: int) -> None:
        """It is a voter of no lane. A lane whose coordinator lags in the metadata lane may still have it as a learner;
        `convergence` checks that none has when the cluster is idle."""
        lanes = {lane: ledger for queue in self.current.values() for lane, ledger in queue.lanes.items()}
        left = [lane for lane, ledger in lanes.items() if number in ledger.members.voters]
        if left or number in self.voters:
            raise Violation("membership", f"peer {number} is gone and still a voter of {left or 'the cluster'}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ------------------------------------------------------------------ answers to clients

    def acknowledge(self, write_id: bytes, first: int, last: int) -> None:
        outcome = self._outcomes.get(write_id)
        if outcome is None or outcome.code or (outcome.first_version, outcome.last_version) != (first, last):
            raise Violation("lost", f"command {write_id!r} was acknowledged as {first}..{last}, not {outcome}")

    def refuse(self, write_id: bytes, code: str) -> None:
        outcome = self._outcomes.get(write_id)
        if outcome is not None and outcome.code != code:
            raise Violation(
                "refused happened", f"command {write_id!r} was refused with {code}; its outcome is {outcome}"
            )

    def restarted(self, peer: int) -> None:
        for queue in self.queues:
            for ledger in queue.lanes.values():
                ledger.restarted(peer)
            if queue.pubsub is not None:
                queue.pubsub.restarted(peer)

    @property
    def acknowledged(self) -> int:
        return sum(queue.acknowledged for queue in self.queues)


def _allows(queue: Incarnation, trim: commands.TrimCommand, rules: Rules, end: int) -> bool:
    """A trim of a two-phase lane: some rules of the queue have this reason, and what they keep is kept."""
    if trim.rule == "age":
        return any(rule.age_s is not None for rule in queue.retention)
    if trim.rule == "size":
        return any(rule.size_bytes is not None for rule in queue.retention)
    known = [name for name, position in rules.subscribed_at.items() if position <= end - RECENT_ENTRIES]
    lowest = min((rules.cursors[name] for name in known), default=rules.end)
    return any(rule.passed for rule in queue.retention) and bool(rules.cursors) and trim.upto_version <= lowest


def _gives_up(queue: Incarnation, lanes: PubSubLedger, trim: commands.LaneTrimCommand, end: int) -> bool:
    """The same for a lane of a pub-sub queue, whose cursors are in the metadata lane."""
    if trim.rule == "age":
        return any(rule.age_s is not None for rule in queue.retention)
    if trim.rule == "size":
        return any(rule.size_bytes is not None for rule in queue.retention)
    passed = lanes.passed_by(trim.lane, before=end - RECENT_ENTRIES)
    return any(rule.passed for rule in queue.retention) and trim.upto_version <= passed
