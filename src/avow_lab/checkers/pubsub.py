"""The checkers of a pub-sub queue: a record for each lane, written by the peer that shows an entry first.

    agreement         two peers show different entries at one position, or differ in the outcome of a metadata entry
    not stored        an entry was shown, accepted or made the lane's end, and no quorum of its voters holds it on disk
    phantom           an entry that no client wrote
    lost              an acknowledged write is not at its acknowledged version, or an end was decided before it
    twice             one write id is readable twice, in one lane or in two
    refused           a client was refused for a reason that its request does not give
    refused happened  the answer to a write was "never in this lane", and it is there
    real time         a reader does not see what it had seen or written before
    monotonic         what one run of a peer shows, or a subscriber's cursor, went back or has a gap
    no progress       after everything was healed, clients wait, lanes without an owner are open, or peers differ

A pub-sub queue promises little order, so the rules are short: a lane is a list, its end is the first one committed, its
voters are those at its opening. They are written here a second time and share no code with the peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from avow.queue import commands
from avow.queue.entry_outcome import Outcome
from avow.wire.batch import Batch, pack_entry
from avow.wire.messages import Entry
from avow_lab.checkers.two_phase import Violation, value_of

Holders: TypeAlias = Callable[[int, int, Entry | None], set[int]]  # lane, position, entry -> peers that have it on disk


class LaneRecord:
    """One lane, as far as any peer has shown it."""

    __slots__ = (
        "committed_to",
        "end",
        "entries",
        "epoch",
        "forgotten",
        "number",
        "run",
        "trimmed_to",
        "versions",
        "voters",
    )

    def __init__(self, number: int, *, run: tuple[int, int], voters: tuple[int, ...], epoch: int) -> None:
        self.number, self.run, self.voters, self.epoch = number, run, voters, epoch
        self.entries: list[Entry] = []
        self.versions = [0]  # by position
        self.committed_to = 0
        self.end = -1
        self.trimmed_to = 0  # version
        self.forgotten = False


class PubSubLedger:
    """The lanes of one pub-sub queue. The ledger of the metadata lane reports what is decided about them."""

    def __init__(self, holders: Holders, *, write_ids: int) -> None:
        self._holders = holders
        self.write_ids = write_ids  # how many a peer remembers of a lane
        self.deleted = False
        self.lanes: dict[int, LaneRecord] = {}
        self.cursors: dict[str, dict[int, int]] = {}  # subscriber -> lane -> version
        self.holds: set[str] = set()
        self.subscribed_at: dict[str, int] = {}  # subscriber -> position of its first cursor in the metadata lane
        self.asked: dict[bytes, int] = {}  # write id -> count
        self.where: dict[bytes, tuple[int, int, int]] = {}  # write id -> lane, first version, last version
        self.acked: dict[bytes, tuple[int, int, int]] = {}  # write id -> lane, first version, last version
        self.acknowledged = 0
        self.refused: set[tuple[int, bytes]] = set()
        self._shown: dict[tuple[int, int], int] = {}  # (peer, lane) -> position, in the peer's current run
        self._cursors: dict[tuple[int, str], dict[int, int]] = {}

    # ------------------------------------------------------------------ decisions of the metadata lane

    def opened(self, number: int, *, run: tuple[int, int], voters: tuple[int, ...], epoch: int) -> None:
        self.lanes[number] = LaneRecord(number, run=run, voters=voters, epoch=epoch)

    def ended(self, command: commands.LaneEndCommand) -> Outcome:
        lane = self.lanes[command.lane]
        if lane.end < 0:
            lane.end = command.end
            shown = max(len(lane.entries), lane.committed_to)
            if shown > lane.end:
                raise Violation("lost", f"lane {lane.number} ends at {lane.end}, but {shown} was committed")
            if lane.end and not self._removed(lane, lane.end):
                self._check_quorum(lane.number, lane.end, None, lane.voters)
        return Outcome("" if command.end == lane.end else "LANE_ENDED", 0, lane.end)

    def trimmed(self, command: commands.LaneTrimCommand) -> Outcome:
        """A trim never names more than exists, because simulated clients name what they have read."""
        lane = self.lanes[command.lane]
        held = min((self.cursors[name].get(lane.number, 0) for name in self.holds), default=command.upto_version)
        before, lane.trimmed_to = lane.trimmed_to, max(lane.trimmed_to, min(command.upto_version, held))
        lane.forgotten = lane.end >= 0 and self._removed(lane, lane.end)
        if lane.forgotten:
            for cursor in self.cursors.values():
                cursor.pop(lane.number, None)
        return Outcome("", before + 1, lane.trimmed_to)

    def moved(self, command: commands.LaneCursorsCommand, position: int) -> None:
        self.subscribed_at.setdefault(command.subscriber, position)
        cursor = self.cursors.setdefault(command.subscriber, {})
        for number, version in command.versions:
            if number in self.lanes and not self.lanes[number].forgotten:
                cursor[number] = max(cursor.get(number, 0), version)
        if command.hold is not None:
            (self.holds.add if command.hold else self.holds.discard)(command.subscriber)

    def passed_by(self, lane: int, *, before: int) -> int:
        """The versions that all subscribers had passed which existed at this position of the metadata lane."""
        known = [name for name, position in self.subscribed_at.items() if position <= before]
        return min((self.cursors[name].get(lane, 0) for name in known), default=self.lanes[lane].versions[-1])

    @staticmethod
    def _removed(lane: LaneRecord, position: int) -> bool:
        return position < len(lane.versions) and lane.versions[position] <= lane.trimmed_to

    # ------------------------------------------------------------------ the lanes

    def started(self, peer: int, number: int, position: int, version: int) -> None:
        """A peer continues from its own snapshot, or after a removed part: its versions must be those of the others."""
        lane = self.lanes[number]
        if position > len(lane.entries) or lane.versions[position] != version:
            raise Violation("agreement", f"peer {peer} starts lane {number} at {position} with version {version}")
        shown = self._shown.get((peer, number))
        if shown is not None and not self._removed(lane, position):
            raise Violation("monotonic", f"peer {peer} showed lane {number} to {shown} and goes on after {position}")
        self._shown[peer, number] = position

    def served(self, number: int, entry: Entry, *, offset: int, first_version: int, count: int) -> None:
        """A reader got this part of an entry."""
        lane = self.lanes[number]
        position = entry.position
        if position > len(lane.entries) or lane.entries[position - 1] != entry:
            raise Violation("phantom", f"lane {number}: a reader got {entry}")
        before = lane.versions[position - 1]
        if first_version != before + offset + 1 or offset + count > entry.count:
            raise Violation("agreement", f"lane {number}: {first_version} is not message {offset} of {entry}")

    def missing(self, number: int, version: int) -> None:
        """A reader got the answer that the version after this one was removed."""
        lane = self.lanes[number]
        if version >= lane.trimmed_to and not lane.forgotten:
            raise Violation(
                "lost", f"a read of lane {number} after version {version} was answered with removed, and it was not"
            )

    def readable(self, peer: int, number: int, after: int, entries: list[Entry]) -> None:
        """From now on a peer shows these entries of a lane."""
        lane = self.lanes[number]
        if self._shown.get((peer, number), 0) != after:
            raise Violation("monotonic", f"peer {peer} shows lane {number} after {after}, not after what it showed")
        known = lane.entries
        for position, entry in enumerate(entries, after + 1):
            if position > len(known):
                self._first_shown(lane, position, entry)
            elif known[position - 1] is not entry and known[position - 1] != entry:
                mine = known[position - 1]
                raise Violation("agreement", f"lane {number} at {position}: peer {peer} shows {entry}, another {mine}")
        to = after + len(entries)
        self._shown[peer, number] = to
        self._committed(lane, to, entries[-1])

    def accepted(self, number: int, to: int) -> None:
        """The owner has committed everything up to `to`."""
        self._committed(self.lanes[number], to, None)

    def _committed(self, lane: LaneRecord, to: int, entry: Entry | None) -> None:
        if to <= lane.committed_to:
            return
        if lane.end < 0:
            self._check_quorum(lane.number, to, entry, lane.voters)
        elif to > lane.end:
            raise Violation("agreement", f"lane {lane.number} ended at {lane.end}, and {to} is committed")
        lane.committed_to = to

    def _check_quorum(self, lane: int, position: int, entry: Entry | None, voters: tuple[int, ...]) -> None:
        if self.deleted:  # peers that know it have removed their copies
            return
        holders = self._holders(lane, position, entry)
        if 2 * len(holders.intersection(voters)) <= len(voters):
            raise Violation("not stored", f"lane {lane} at {position} was committed, and only {holders} hold it")

    def _first_shown(self, lane: LaneRecord, position: int, entry: Entry) -> None:
        first = lane.versions[-1] + 1
        lane.entries.append(entry)
        lane.versions.append(first + entry.count - 1)
        if entry.position != position:
            raise Violation("phantom", f"lane {lane.number} at {position}: {entry}")
        for write_id, count in writes_in(entry):
            self._first_write(lane.number, write_id, first, count)
            first += count
        if first != lane.versions[-1] + 1:
            raise Violation("phantom", f"lane {lane.number} at {position}: some messages of {entry} have no writer")

    def _first_write(self, lane: int, write_id: bytes, first: int, count: int) -> None:
        here = (lane, first, first + count - 1)
        if self.asked.get(write_id) != count:
            raise Violation("phantom", f"{here}: no client wrote {write_id!r} with {count} messages")
        if self.where.setdefault(write_id, here) != here:
            raise Violation("twice", f"{write_id!r} is readable at {self.where[write_id]} and at {here}")
        if (lane, write_id) in self.refused:
            raise Violation("refused happened", f"{write_id!r} at {here}")
        if write_id in self.acked:
            self._check_acked(write_id)

    # ------------------------------------------------------------------ answers to clients

    def ask(self, write_id: bytes, count: int) -> None:
        self.asked[write_id] = count

    def acknowledge(self, write_id: bytes, *, lane: int, first: int, last: int) -> None:
        self.acked[write_id] = (lane, first, last)
        self.acknowledged += 1
        if write_id in self.where:
            self._check_acked(write_id)

    def _check_acked(self, write_id: bytes) -> None:
        found, acknowledged = self.where[write_id], self.acked[write_id]
        if found != acknowledged:
            raise Violation("lost", f"{write_id!r} was acknowledged as {acknowledged}; it is at {found}")

    def beyond_knowing(self, number: int) -> bool:
        """Whether the outcome of a write to this lane may be unknown to all peers for ever."""
        lane = self.lanes[number]
        return self.deleted or lane.forgotten or lane.trimmed_to > 0 or lane.versions[-1] > self.write_ids

    def refuse(self, write_id: bytes, *, lane: int) -> None:
        """The client got the answer that this write is not in the lane and never will be."""
        if self.where.get(write_id, (0,))[0] == lane:
            raise Violation("refused happened", f"{write_id!r} was refused in lane {lane}, which holds it")
        self.refused.add((lane, write_id))

    def read(self, *, level: str, floor: Mapping[int, int], versions: Mapping[int, int]) -> None:
        for lane, version in versions.items():
            if version > self.lanes[lane].versions[-1]:
                raise Violation("phantom", f"a {level} read saw version {version} of lane {lane}")
        for lane, version in floor.items():
            if versions.get(lane, 0) < version and not self.lanes[lane].forgotten:
                raise Violation("real time", f"a {level} read saw {versions}; the reader had been at {floor}")

    def cursor(self, peer: int, name: str, versions: dict[int, int]) -> None:
        """A subscriber's cursor, as one run of a peer shows it."""
        before = self._cursors.get((peer, name), {})
        kept = {lane: version for lane, version in before.items() if not self.lanes[lane].forgotten}
        if any(versions.get(lane, 0) < version for lane, version in kept.items()):
            raise Violation("monotonic", f"cursor {name} at peer {peer} went from {before} back to {versions}")
        self._cursors[peer, name] = versions

    def restarted(self, peer: int) -> None:
        self._shown = {key: to for key, to in self._shown.items() if key[0] != peer}
        self._cursors = {key: versions for key, versions in self._cursors.items() if key[0] != peer}

    def finish(self) -> None:
        """At the end: everything acknowledged is readable, up to the ends that were decided."""
        missing = [write_id for write_id in self.acked if write_id not in self.where]
        if missing:
            raise Violation("lost", f"{missing} were acknowledged and no peer shows them")
        for lane in self.lanes.values():
            if lane.end >= 0 and lane.end != len(lane.entries) and not lane.forgotten:
                raise Violation("lost", f"lane {lane.number} ends at {lane.end}; {len(lane.entries)} are readable")


def writes_in(entry: Entry) -> list[tuple[bytes, int]]:
    """(write id, count) of each write of an entry. Those of a merged one hold what their clients wrote."""
    if entry.write_id:
        return [(entry.write_id, entry.count)]
    batch = Batch(pack_entry(entry))
    values = batch.values()
    for write_id, first, count in batch.writes():
        held = [bytes(value) for value in values[first : first + count]]
        if held != [value_of(write_id, number) for number in range(count)]:
            raise Violation("phantom", f"position {entry.position} holds {held} for {write_id!r}")
    return [(write_id, count) for write_id, _, count in batch.writes()]
