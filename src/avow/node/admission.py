"""Admission: whether a message from a link may reach the core that its frame names.

The decoder has verified the layout of a frame. This module verifies its meaning, as far as one message shows it, before
any core sees it. A core may therefore rely on what is listed here. There is no error path in a core, because one that
stopped half-way through a change would have a state that no test has ever seen.

    kind       the lane or queue takes messages of this class
    ballot     of a claimant or coordinator: it names the sender; of an answer: it names this peer; never exhausted
    numbers    positions, cursors and lengths are not negative and not beyond `POSITION_MAX`
    entries    they follow `after` without a gap; a change of members can be decoded and names voters
    snapshot   it can be restored, for the position that the message states
    forwarded  a kind that clients write; a batch that is to be merged can be taken apart
    lane       of a pub-sub queue: it belongs to this queue; nobody reports more of an own lane than this run wrote

What depends on the state of a log is a named branch of its core (`Leadership.on_ready`, `Claim.on_fetched`). A message
that is refused changes nothing. Numbers that are possible and wrong are not detected: the members of a cluster are
authenticated and trusted not to lie to each other (docs/decisions/0029).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from avow.errors import Malformed
from avow.ids import ballot_text, peer_of, round_of
from avow.limits import BALLOT_ROUND_MAX, LANES_COUNT, LANES_PER_QUEUE_MAX, PEER_NUMBER_MAX, PEERS_MAX, POSITION_MAX
from avow.node.backfill import HISTORY
from avow.node.pubsub.lane_index import position_of
from avow.node.pubsub.queue import PubSubQueue
from avow.queue.commands import METADATA_COMMANDS, QUEUE_COMMANDS
from avow.replication.membership import Members, decode_members
from avow.wire import messages as m
from avow.wire.batch import check_mergeable
from avow.wire.messages import Entry, Kind, Message, Snapshot

if TYPE_CHECKING:
    from avow.node.node import Component, Node

_FORWARDED: Final = {
    True: frozenset(METADATA_COMMANDS) - {Kind.MEMBERS},  # of the metadata lane
    False: frozenset({*QUEUE_COMMANDS, Kind.DATA}) - {Kind.MEMBERS},
}


class Admission:
    def __init__(self, node: Node) -> None:
        self._node, self._me = node, node.me
        self._checks: dict[type, Callable[[int, int, Any], str]] = {
            m.Probe: self._from_claimant,
            m.ProbeAnswer: self._of_claim,
            m.Claim: self._from_claimant,
            m.Promise: self._promise,
            m.Nack: self._of_claim,
            m.Fetch: self._fetch,
            m.Fetched: self._fetched,
            m.Enqueue: self._enqueue,
            m.Ready: self._ready,
            m.Reject: self._reject,
            m.Install: self._install,
            m.Heartbeat: self._heartbeat,
            m.Confirm: self._from_claimant,
            m.Confirmed: self._of_claim,
            m.ReadIndexAnswer: lambda _source, _route, message: _numbers(message.cursor, lowest=-1),
            m.Forward: self._forward,
            m.LaneEnqueue: self._lane_entries,
            m.Stored: self._lane_stored,
            m.LaneReject: self._lane_reject,
            m.LaneFetch: self._lane_fetch,
            m.LaneFetched: self._lane_entries,
            m.Fence: self._lane_fence,
            m.Fenced: self._lane_fenced,
            m.Refill: self._lane_entries,
            m.Refilled: self._lane_stored,
            m.LaneHeartbeat: self._lane_heartbeat,
        }

    def objection(self, source: int, route: int, component: Component, message: Message) -> str:
        """Why the message must not reach the component; empty: it may."""
        kind = type(message)
        if kind not in component.takes:
            return "a lane of this kind takes no such message"
        check = self._checks.get(kind)
        return check(source, route, message) if check is not None else ""

    # ------------------------------------------------------------------ ballots

    def _from_claimant(self, source: int, _route: int, message: m.Probe | m.Claim | m.Confirm) -> str:
        return _ballot(message.ballot, of=source)

    def _of_claim(self, _source: int, _route: int, message: m.ProbeAnswer | m.Nack | m.Confirmed) -> str:
        promised = getattr(message, "promised", 0)
        return _ballot(message.ballot, of=self._me) or _round(promised)

    def _promise(self, _source: int, _route: int, message: m.Promise) -> str:
        return _ballot(message.ballot, of=self._me) or _numbers(message.end, message.damaged_from)

    def _fetch(self, source: int, _route: int, message: m.Fetch) -> str:
        objection = _ballot(message.ballot, of=source) if message.ballot else ""
        return objection or _numbers(message.after)

    def _fetched(self, _source: int, _route: int, message: m.Fetched) -> str:
        objection = _ballot(message.ballot, of=self._me) if message.ballot else ""
        return objection or _numbers(message.end, message.cursor) or _entries(message.after, message.entries)

    def _enqueue(self, source: int, _route: int, message: m.Enqueue) -> str:
        return (
            _ballot(message.ballot, of=source)
            or _numbers(message.takeover_end, message.cursor)
            or _entries(message.after, message.entries)
        )

    def _ready(self, _source: int, _route: int, message: m.Ready) -> str:
        return _ballot(message.ballot, of=self._me) or _numbers(message.matched_to)

    def _reject(self, _source: int, _route: int, message: m.Reject) -> str:
        return _ballot(message.ballot, of=self._me) or _numbers(message.committed, message.damaged_from)

    def _heartbeat(self, source: int, _route: int, message: m.Heartbeat) -> str:
        objection = _ballot(message.ballot, of=source) if message.coordinating else _round(message.ballot)
        return objection or _numbers(message.cursor)

    # ------------------------------------------------------------------ snapshots, and writes of other peers' clients

    def _install(self, source: int, route: int, message: m.Install) -> str:
        """The ballot is the coordinator's, or that of the claim or repair (0) which asked for entries."""
        ballot, snapshot = message.ballot, message.snapshot
        objection = _ballot(ballot, of=source) if ballot and peer_of(ballot) != self._me else _round(ballot)
        objection = objection or _numbers(snapshot.position, message.takeover_end, message.cursor)
        objection = objection or _members(Members(snapshot.voters, snapshot.learners))
        return objection or self._restorable(route, snapshot)

    def _restorable(self, route: int, snapshot: Snapshot) -> str:
        lane = self._node.metadata if route == 0 else self._node.lanes[route]
        if snapshot.position <= lane.core.committed:
            return ""  # it is not restored: this peer has applied that much itself
        try:
            position = lane.machine.position_of(snapshot.state)
        except Malformed as error:
            return f"its snapshot cannot be restored: {error}"
        if position != snapshot.position:
            return f"its snapshot for position {snapshot.position} has the state of position {position}"
        return ""

    def _forward(self, _source: int, route: int, message: m.Forward) -> str:
        entry = message.entry
        if entry.kind not in _FORWARDED[route == 0]:
            return f"clients of this lane do not write entries of kind {Kind.NAMES[entry.kind]}"
        try:
            if message.mergeable:
                check_mergeable(entry)
        except Malformed as error:
            return f"its batch cannot be merged: {error}"
        return _numbers(message.expected, lowest=-1) or _numbers(message.age_ms)

    # ------------------------------------------------------------------ pub-sub

    def _lane_entries(self, _source: int, route: int, message: m.LaneEnqueue | m.LaneFetched | m.Refill) -> str:
        last = message.after + len(message.entries)
        reported = max(last, message.cursor) if isinstance(message, m.LaneEnqueue) else last
        return (
            _numbers(getattr(message, "cursor", 0))
            or _entries(message.after, message.entries)
            or self._lane(route, message.lane, reported)
            or (_start(message.entries) if route not in self._node.lanes else "")
        )

    def _lane_stored(self, _source: int, route: int, message: m.Stored | m.Refilled) -> str:
        return _numbers(message.to) or self._lane(route, message.lane, message.to)

    def _lane_reject(self, _source: int, route: int, message: m.LaneReject) -> str:
        return _numbers(message.end) or self._lane(route, message.lane, message.end)

    def _lane_fetch(self, _source: int, route: int, message: m.LaneFetch) -> str:
        return _numbers(message.after) or self._lane(route, message.lane, 0)

    def _lane_fence(self, _source: int, route: int, message: m.Fence) -> str:
        return self._lane(route, message.lane, 0)

    def _lane_fenced(self, _source: int, route: int, message: m.Fenced) -> str:
        return _numbers(message.end, message.damaged_from) or self._lane(route, message.lane, message.end)

    def _lane_heartbeat(self, _source: int, route: int, message: m.LaneHeartbeat) -> str:
        if len(message.lanes) > LANES_PER_QUEUE_MAX:
            return f"it lists {len(message.lanes)} lanes, more than the maximum of {LANES_PER_QUEUE_MAX}"
        for number, to, cursor in message.lanes:
            objection = _numbers(to, cursor) or self._lane(route, number, max(to, cursor))
            if objection:
                return objection
        return ""

    def _lane(self, route: int, number: int, reported: int) -> str:
        """`reported`: how much of the lane the sender says there is."""
        component = self._node.mux.components[route]
        if not isinstance(component, PubSubQueue):  # a two-phase lane whose history is copied
            return "" if number == route else f"it is about lane {number}"
        held = component.core.lanes.by_number.get(number)
        if held is not None and held.mine and held.decided < 0 and reported > held.end:
            return f"this run wrote {held.end} entries to lane {number}, not {reported}"
        state = self._node.metadata.state
        lane = state.lanes.by_number.get(number)
        if lane is not None:
            return "" if lane.queue == component.queue else f"lane {number} belongs to queue {lane.queue!r}"
        if not 0 < number < min(state.lanes.next_number + LANES_COUNT, HISTORY):
            return f"no lane can have the number {number} yet"
        if number in self._node.lanes:
            return f"lane {number} belongs to a two-phase queue"
        return ""


def _ballot(ballot: int, *, of: int) -> str:
    if peer_of(ballot) != of:
        return f"its ballot {ballot_text(ballot)} is not one of peer {of}"
    return _round(ballot) or ("" if round_of(ballot) else "its ballot has no round")


def _round(ballot: int) -> str:
    return "" if round_of(ballot) <= BALLOT_ROUND_MAX else f"no ballot reaches round {round_of(ballot)}"


def _numbers(*numbers: int, lowest: int = 0) -> str:
    for number in numbers:
        if not lowest <= number <= POSITION_MAX:
            return f"{number} is neither a position nor a length"
    return ""


def _entries(after: int, entries: Sequence[Entry]) -> str:
    if not 0 <= after <= POSITION_MAX:
        return f"{after} is not a position"
    for position, entry in enumerate(entries, after + 1):
        if entry.position != position:
            return f"entry {entry.position} stands at the place of {position}"
        if entry.kind == Kind.MEMBERS and (objection := _member_entry(entry)):
            return objection
    return ""


def _start(entries: Sequence[Entry]) -> str:
    """A pub-sub lane's start position stands first, with the state there (`replication.pubsub.retention`)."""
    for number, entry in enumerate(entries):
        if entry.kind != Kind.TRIM:
            continue
        try:
            position = position_of(bytes(entry.batch)) if not number else -1
        except Malformed as error:
            return f"its start position cannot be used: {error}"
        if position != entry.position:
            return f"entry {entry.position} is not the start position of a lane"
    return ""


def _member_entry(entry: Entry) -> str:
    try:
        return _members(decode_members(entry.control))
    except Malformed as error:
        return str(error)


def _members(members: Members) -> str:
    everyone = members.everyone
    if not members.voters or len(everyone) > 2 * PEERS_MAX or len(set(everyone)) < len(everyone):
        return f"these are no members of a lane: voters {members.voters}, learners {members.learners}"
    if not all(0 < peer <= PEER_NUMBER_MAX for peer in everyone):
        return f"no peer can have one of the numbers {everyone}"
    return ""
