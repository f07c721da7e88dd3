"""Readers of one subscriber at peers that learn of changes late: commands cross, are lost, and arrive in any order.

The world holds the logs; peers hold copies of the metadata state that lag behind. A reader follows the rules at the
head of `avow.queue.subscriptions` and knows only what its peer knows. What the world asserts at each entry:

    one reader for each lane and epoch     no two readers' moves are taken under one epoch
    epochs only grow                       among the moves that are taken in one lane
    cursors only grow
    nothing is committed twice             a version one reader has passed is never passed by another
"""

from __future__ import annotations

from dataclasses import dataclass, field

from avow.queue.commands import (
    CursorCommand,
    LaneCursorsCommand,
    LaneOpenCommand,
    QueueCommand,
    Strategy,
    SubscriptionAction,
    SubscriptionCommand,
    encode,
)
from avow.queue.entry_outcome import Outcome
from avow.queue.ledger import Ledger
from avow.queue.metadata_state import MetadataState
from avow.queue.state import QueueState
from avow.queue.subscriptions import Member, Subscription, kept, lanes_of, reader_of
from avow.wire.messages import Entry, Kind

PEERS = (1, 2, 3)
NAMES = ("a", "b", "c")
MESSAGES = 1000
JUMP = 64  # entries a peer applies at once, at most


@dataclass(slots=True)
class Hold:
    """A reader's hold of one lane: it was delivered the versions after `start`, up to `at`."""

    epoch: int
    start: int
    at: int
    seen: Subscription  # pub-sub: as of which it knows that the lane is its own


@dataclass(slots=True, eq=False)
class Reader:
    name: str
    peer: int
    channel: bytes
    holds: dict[int, Hold] = field(default_factory=dict)
    waits: set[int] = field(default_factory=set)  # lanes whose fence is under way


@dataclass(slots=True)
class Sent:
    reader: Reader | None  # None: a person
    lane: int
    version: int
    epoch: int
    start: int = 0


class World:
    strategy: Strategy

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.state = MetadataState(voters=PEERS)
        self.views = {peer: MetadataState(voters=PEERS) for peer in PEERS}
        self.readers: list[Reader] = []
        self.under_way: list[Sent] = []
        self.owners: dict[tuple[int, int], Reader] = {}  # (lane, epoch) -> whose moves were taken
        self.passed: dict[tuple[int, int], Reader] = {}  # (lane, version) -> who committed it
        self.latest: dict[int, int] = {}  # lane -> the last epoch taken
        self.append(Kind.QUEUE, encode(QueueCommand("create", "q", self.strategy, lanes=self.lanes_created)))

    lanes_created = 2

    # ------------------------------------------------------------------ logs

    def append(self, kind: int, control: bytes) -> Outcome:
        entry = Entry(len(self.log) + 1, 1, kind, control=control)
        self.log.append(entry)
        outcome = self.state.apply(entry)
        present = subscription_of(self.state)
        if present is not None:
            lanes = self.lanes()
            read = [lane for member in present.members for lane in lanes_of(present, member.name, lanes)]
            assert sorted(read) == lanes, "every lane has one reader"
        return outcome

    def lanes(self) -> list[int]:
        return list(range(self.lanes_created))

    def cursor(self, lane: int) -> int:
        raise NotImplementedError

    def take(self, sent: Sent) -> Outcome:
        raise NotImplementedError

    # ------------------------------------------------------------------ events

    def join(self, peer: int, name: int, _: int) -> None:
        self.enter(peer, NAMES[name % len(NAMES)])

    def takeover(self, peer: int, _b: int, _c: int) -> None:
        self.enter(peer, "")

    def enter(self, peer: int, name: str) -> None:
        reader = Reader(name, PEERS[peer % len(PEERS)], len(self.readers).to_bytes(16, "big"))
        self.readers.append(reader)
        self.change(reader, "join")

    def leave(self, number: int, _b: int, _c: int) -> None:
        present = subscription_of(self.state)
        members = present.members if present is not None else ()
        staying = [reader for reader in self.readers if any(is_reader(member, reader) for member in members)]
        if staying:
            self.change(staying[number % len(staying)], "leave")

    def forget(self, peer: int, _b: int, _c: int) -> None:
        self.append(Kind.SUBSCRIPTION, encode(SubscriptionCommand("", "", "", PEERS[peer % 3], b"", "forget")))

    def change(self, reader: Reader, action: SubscriptionAction) -> None:
        command = SubscriptionCommand("q", "x", reader.name, reader.peer, reader.channel, action)
        self.append(Kind.SUBSCRIPTION, encode(command))

    def learn(self, peer: int, count: int, _: int) -> None:
        """A peer applies some of the entries it has not applied yet; it may apply several before it looks."""
        view = self.views[PEERS[peer % len(PEERS)]]
        for entry in self.log[view.position : view.position + 1 + count % JUMP]:
            view.apply(entry)

    def read(self, number: int, lane: int, count: int) -> None:
        """A reader that believes to own the lane continues."""
        lanes = self.lanes()
        lane = lanes[lane % len(lanes)]
        believers = [reader for reader in self.readers if self.own(reader, lane) or lane in reader.holds]
        if believers:
            self.step(believers[number % len(believers)], lane, count % 4)

    def person(self, lane: int, count: int, _: int) -> None:
        lanes = self.lanes()
        lane = lanes[lane % len(lanes)]
        self.under_way.append(Sent(None, lane, min(MESSAGES, self.cursor(lane) + count % 3), 0))

    def arrive(self, which: int, lost: int, _: int) -> None:
        """One command reaches its log; in one case of four the answer is lost."""
        if not self.under_way:
            return
        sent = self.under_way.pop(which % len(self.under_way))
        before = self.cursor(sent.lane)
        outcome = self.take(sent)
        assert self.cursor(sent.lane) >= before, "a cursor went back"
        if sent.reader is not None and sent.version and not outcome.code:
            self.check_taken(sent, sent.reader)
        if sent.reader is not None:
            self.hear(sent, sent.reader, None if lost % 4 == 0 else outcome)

    def check_taken(self, sent: Sent, reader: Reader) -> None:
        assert self.owners.setdefault((sent.lane, sent.epoch), reader) is reader, "two readers under one epoch"
        assert sent.epoch >= self.latest.get(sent.lane, 0), "an epoch came back"
        self.latest[sent.lane] = sent.epoch
        for version in range(sent.start + 1, sent.version + 1):
            assert self.passed.setdefault((sent.lane, version), reader) is reader, "committed by two readers"

    # ------------------------------------------------------------------ what a reader does

    def own(self, reader: Reader, lane: int) -> Subscription | None:
        """The subscription as its peer knows it, if the lane is this reader's in it."""
        present = subscription_of(self.views[reader.peer])
        member = reader_of(present, lane) if present is not None else None
        return present if is_reader(member, reader) else None

    def step(self, reader: Reader, lane: int, count: int) -> None:
        raise NotImplementedError

    def hear(self, sent: Sent, reader: Reader, outcome: Outcome | None) -> None:
        raise NotImplementedError

    def deliver(self, reader: Reader, lane: int, hold: Hold, count: int) -> None:
        """The application is given some more, and commits."""
        hold.at = min(MESSAGES, hold.at + count)
        if hold.at > hold.start:
            self.under_way.append(Sent(reader, lane, hold.at, hold.epoch, hold.start))


class TwoPhaseWorld(World):
    strategy = "two-phase"

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Ledger] = [QueueState() for _ in self.lanes()]
        for state in self.states:
            state.apply(Entry(1, 1, Kind.DATA, MESSAGES))

    def cursor(self, lane: int) -> int:
        found = self.states[lane].subscribers.by_name.get("x")
        return found.version if found is not None else 0

    def take(self, sent: Sent) -> Outcome:
        state = self.states[sent.lane]
        control = encode(CursorCommand("x", sent.version, epoch=sent.epoch))
        return state.apply(Entry(state.position + 1, 1, Kind.CURSOR, control=control))

    def step(self, reader: Reader, lane: int, count: int) -> None:
        present = self.own(reader, lane)
        if present is None:
            reader.holds.pop(lane, None)
        elif lane in reader.holds:
            self.deliver(reader, lane, reader.holds[lane], count)
        elif lane not in reader.waits:
            reader.waits.add(lane)
            self.under_way.append(Sent(reader, lane, 0, present.epoch))

    def hear(self, sent: Sent, reader: Reader, outcome: Outcome | None) -> None:
        hold = reader.holds.get(sent.lane)
        if not sent.version:
            reader.waits.discard(sent.lane)
            present = self.own(reader, sent.lane)
            if outcome is not None and not outcome.code and present is not None:
                at = outcome.last_version
                reader.holds[sent.lane] = Hold(sent.epoch, at, at, present)
        elif outcome is not None and outcome.code and hold is not None and hold.epoch == sent.epoch:
            del reader.holds[sent.lane]


class PubSubWorld(World):
    strategy = "pub-sub"
    lanes_created = 1

    def __init__(self) -> None:
        super().__init__()
        for peer in PEERS[:2]:
            self.append(Kind.LANE_OPEN, encode(LaneOpenCommand(peer, 1, "q")))

    def lanes(self) -> list[int]:
        return list(self.state.lanes.by_number)

    def cursor(self, lane: int) -> int:
        return cursor_of(self.state, lane)

    def take(self, sent: Sent) -> Outcome:
        member = sent.reader.name if sent.reader is not None else ""
        command = LaneCursorsCommand("q", "x", ((sent.lane, sent.version),), epoch=sent.epoch, member=member)
        return self.append(Kind.CURSOR, encode(command))

    def step(self, reader: Reader, lane: int, count: int) -> None:
        present = self.own(reader, lane)
        hold = reader.holds.get(lane)
        if present is None or (hold is not None and not self.keeps(hold, present, lane)):
            reader.holds.pop(lane, None)
        if present is None:
            return
        if lane not in reader.holds:
            at = cursor_of(self.views[reader.peer], lane)
            reader.holds[lane] = Hold(present.epoch, at, at, present)
        hold = reader.holds[lane]
        hold.epoch, hold.seen = present.epoch, present
        self.deliver(reader, lane, hold, count)

    def keeps(self, hold: Hold, present: Subscription, lane: int) -> bool:
        return kept(hold.seen, present, lane)

    def hear(self, sent: Sent, reader: Reader, outcome: Outcome | None) -> None:
        """Nothing to do: FENCED means that its peer has something to learn first."""


def subscription_of(state: MetadataState) -> Subscription | None:
    queue = state.queue("q")
    return queue.subscriptions.get("x") if queue is not None else None


def cursor_of(state: MetadataState, lane: int) -> int:
    queue = state.queue("q")
    cursor = queue.subscribers.get("x") if queue is not None else None
    return cursor.versions.get(lane, 0) if cursor is not None else 0


def is_reader(member: Member | None, reader: Reader) -> bool:
    return member is not None and (member.name, member.peer, member.channel) == (
        reader.name,
        reader.peer,
        reader.channel,
    )
