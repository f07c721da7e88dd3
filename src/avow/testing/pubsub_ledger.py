"""The checkers of a pub-sub queue: one record for each lane, written by whichever peer shows an entry first.

    agreement         two peers show different entries at one position, or conclude differently from a metadata entry
    not stored        an entry was shown, accepted or made the lane's end that no quorum of its voters holds on disk
    phantom           an entry nobody wrote
    lost              an acknowledged write is not where the client was told, or an end was decided before it
    twice             one write id is readable twice, in one lane or in two
    refused           a client was refused for a reason that its request does not give
    refused happened  a client was told "never in this lane", and there it is
    real time         a reader does not see what it had seen or written before
    monotonic         what one run of a peer shows, or a subscriber's cursor, went back or skipped something
    membership        a change of voters was stored while a lane from before the last one was open
    no progress       after everything was healed, clients wait, lanes without an owner are open, or peers differ

A pub-sub queue promises little order, so the rules are short: a lane is a list, its end is the first one committed,
its voters are those in force at its opening. They are written here a second time and share no code with the peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from avow.queue import commands
from avow.queue.outcomes import Outcome
from avow.testing.ledger import Violation, value_of
from avow.wire.batch import Batch, pack_entry
from avow.wire.messages import Entry, Kind

Holders = Callable[[int, int, Entry | None], set[int]]  # lane, position, entry -> peers that have it on disk


class LaneRecord:
    """What the whole cluster has shown of one lane."""

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
    def __init__(self, holders: Holders, *, voters: tuple[int, ...], write_ids: int) -> None:
        self._holders = holders
        self.write_ids = write_ids  # as many a peer remembers of a lane
        self.lanes: dict[int, LaneRecord] = {}
        self.asked: dict[bytes, int] = {}  # write id -> count
        self.where: dict[bytes, tuple[int, int, int]] = {}  # write id -> lane, first version, last version
        self.acked: dict[bytes, tuple[int, int, int]] = {}  # write id -> lane, first version, last version
        self.acknowledged = 0
        self.refused: set[tuple[int, bytes]] = set()
        self._metadata: dict[int, tuple[Entry, Outcome]] = {}
        self._metadata_end = 0
        self._voters, self._epoch = voters, 0
        self._last_number = 1  # the queue's own
        self._trims: dict[bytes, Outcome] = {}  # by write id
        self._shown: dict[tuple[int, int], int] = {}  # (peer, lane) -> position, in the peer's present run
        self._cursors: dict[tuple[int, str], dict[int, int]] = {}

    # ------------------------------------------------------------------ the metadata lane

    def metadata(self, peer: int, entry: Entry, outcome: Outcome, *, counted_among: tuple[int, ...]) -> None:
        """A peer applied this entry and drew this conclusion; its log says that these voters count."""
        known = self._metadata.get(entry.position)
        if known is None:
            self._check_quorum(0, entry.position, entry, counted_among)
            self._first_metadata(peer, entry, outcome)
        elif (known[0] is not entry and known[0] != entry) or known[1] != outcome:
            raise Violation("agreement", f"metadata {entry.position}: peer {peer} has {entry}, {outcome}; not {known}")

    def _first_metadata(self, peer: int, entry: Entry, outcome: Outcome) -> None:
        position = entry.position
        if self._metadata and position != self._metadata_end + 1:
            raise Violation("agreement", f"peer {peer} applied metadata {position} after {self._metadata_end}")
        self._metadata[position] = (entry, outcome)
        self._metadata_end = position
        if entry.kind == Kind.NOOP:
            return
        command = commands.decode(entry.kind, entry.control, metadata=True)
        if isinstance(command, commands.LaneOpenCommand):
            self._opened(command, outcome)
        elif isinstance(command, commands.LaneEndCommand):
            self._ended(command, outcome)
        elif isinstance(command, commands.MembersCommand):
            self._members(command, outcome)
        elif isinstance(command, commands.LaneTrimCommand):
            self._trimmed(command, outcome, entry.write_id)
        elif outcome.code:
            raise Violation("agreement", f"metadata {position}: {command} was concluded with {outcome}")

    def _opened(self, command: commands.LaneOpenCommand, outcome: Outcome) -> None:
        run = (command.peer, command.incarnation)
        latest = max((lane.run[1] for lane in self.lanes.values() if lane.run[0] == run[0]), default=0)
        open_lanes = [lane.number for lane in self.lanes.values() if lane.run == run and lane.end < 0]
        if open_lanes:
            expected = Outcome("", open_lanes[0], open_lanes[0])
        elif command.peer not in self._voters or run[1] < latest:
            expected = Outcome("INVALID_REQUEST")
        else:
            self._last_number += 1
            number = self._last_number
            self.lanes[number] = LaneRecord(number, run=run, voters=self._voters, epoch=self._epoch)
            expected = Outcome("", number, number)
        if outcome != expected:
            raise Violation("agreement", f"the opening of {run} was concluded with {outcome}, not {expected}")

    def _ended(self, command: commands.LaneEndCommand, outcome: Outcome) -> None:
        lane = self.lanes[command.lane]
        if lane.forgotten:
            return
        if lane.end < 0:
            lane.end = command.end
            shown = max(len(lane.entries), lane.committed_to)
            if shown > lane.end:
                raise Violation("lost", f"lane {lane.number} ends at {lane.end}, but {shown} was committed")
            if lane.end and not self._removed(lane, lane.end):
                self._check_quorum(lane.number, lane.end, None, lane.voters)
        expected = Outcome("" if command.end == lane.end else "LANE_ENDED", 0, lane.end)
        if outcome != expected:
            raise Violation("agreement", f"the end of lane {lane.number} was concluded {outcome}, not {expected}")

    def _trimmed(self, command: commands.LaneTrimCommand, outcome: Outcome, write_id: bytes) -> None:
        """Simulated clients trim what they were shown, so never more than is there."""
        lane = self.lanes[command.lane]
        expected = self._trims.get(write_id)
        if expected is None and lane.forgotten:
            expected = Outcome("INVALID_REQUEST")
        elif expected is None:
            before, lane.trimmed_to = lane.trimmed_to, max(lane.trimmed_to, command.upto_version)
            lane.forgotten = lane.end >= 0 and self._removed(lane, lane.end)
            expected = Outcome("", before + 1, lane.trimmed_to)
        self._trims[write_id] = expected
        if outcome != expected:
            raise Violation("agreement", f"{command} was concluded with {outcome}, not {expected}")

    @staticmethod
    def _removed(lane: LaneRecord, position: int) -> bool:
        return position < len(lane.versions) and lane.versions[position] <= lane.trimmed_to

    def _members(self, command: commands.MembersCommand, outcome: Outcome) -> None:
        voters = tuple(sorted(command.voters))
        if voters == self._voters:
            return
        older = [
            lane.number
            for lane in self.lanes.values()
            if lane.end < 0 and lane.epoch < self._epoch and not lane.forgotten
        ]
        if older or outcome.code:
            raise Violation("membership", f"{command} was stored while lanes {older} were open: {outcome}")
        self._voters = voters
        self._epoch += 1

    # ------------------------------------------------------------------ the lanes

    def started(self, peer: int, number: int, position: int, version: int) -> None:
        """A peer goes on from a snapshot of its own, or behind what was removed: it must count as the others do."""
        lane = self.lanes[number]
        if position > len(lane.entries) or lane.versions[position] != version:
            raise Violation("agreement", f"peer {peer} starts lane {number} at {position} with version {version}")
        shown = self._shown.get((peer, number))
        if shown is not None and not self._removed(lane, position):
            raise Violation("monotonic", f"peer {peer} showed lane {number} to {shown} and goes on after {position}")
        self._shown[peer, number] = position

    def served(self, number: int, entry: Entry, *, offset: int, first_version: int, count: int) -> None:
        """A reader was given this part of an entry."""
        lane = self.lanes[number]
        position = entry.position
        if position > len(lane.entries) or lane.entries[position - 1] != entry:
            raise Violation("phantom", f"lane {number}: a reader was given {entry}")
        before = lane.versions[position - 1]
        if first_version != before + offset + 1 or offset + count > entry.count:
            raise Violation("agreement", f"lane {number}: {first_version} is not message {offset} of {entry}")

    def missing(self, number: int, position: int) -> None:
        """A reader was told that this entry was removed."""
        if not self._removed(self.lanes[number], position):
            raise Violation("lost", f"lane {number} at {position} cannot be read, and was not removed")

    def readable(self, peer: int, number: int, after: int, entries: list[Entry]) -> None:
        """A peer shows these entries of a lane from now on."""
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
        """The owner counts everything up to `to` as committed."""
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
        holders = self._holders(lane, position, entry)
        if 2 * len(holders.intersection(voters)) <= len(voters):
            raise Violation("not stored", f"lane {lane} at {position} counts as committed; only {holders} hold it")

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
            raise Violation("phantom", f"lane {lane.number} at {position}: some messages of {entry} are nobody's")

    def _first_write(self, lane: int, write_id: bytes, first: int, count: int) -> None:
        here = (lane, first, first + count - 1)
        if self.asked.get(write_id) != count:
            raise Violation("phantom", f"{here}: nobody wrote {write_id!r} with {count} messages")
        if self.where.setdefault(write_id, here) != here:
            raise Violation("twice", f"{write_id!r} is readable at {self.where[write_id]} and at {here}")
        if (lane, write_id) in self.refused:
            raise Violation("refused happened", f"{write_id!r} at {here}")
        if write_id in self.acked:
            self._check_acked(write_id)

    # ------------------------------------------------------------------ what clients were told

    def ask(self, write_id: bytes, count: int) -> None:
        self.asked[write_id] = count

    def acknowledge(self, write_id: bytes, *, lane: int, first: int, last: int) -> None:
        self.acked[write_id] = (lane, first, last)
        self.acknowledged += 1
        if write_id in self.where:
            self._check_acked(write_id)

    def _check_acked(self, write_id: bytes) -> None:
        found, told = self.where[write_id], self.acked[write_id]
        if found != told:
            raise Violation("lost", f"{write_id!r} was acknowledged as {told}; it is at {found}")

    def beyond_knowing(self, number: int) -> bool:
        """What became of a write to this lane may be a question nobody can answer any more."""
        lane = self.lanes[number]
        return lane.forgotten or lane.trimmed_to > 0 or lane.versions[-1] > self.write_ids

    def refuse(self, write_id: bytes, *, lane: int) -> None:
        """The client was told that this write is not in the lane and never will be."""
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
        """A subscriber's cursor as one run of a peer shows it."""
        before = self._cursors.get((peer, name), {})
        kept = {lane: version for lane, version in before.items() if not self.lanes[lane].forgotten}
        if any(versions.get(lane, 0) < version for lane, version in kept.items()):
            raise Violation("monotonic", f"cursor {name} at peer {peer} went from {before} back to {versions}")
        self._cursors[peer, name] = versions

    def restarted(self, peer: int) -> None:
        self._shown = {key: to for key, to in self._shown.items() if key[0] != peer}
        self._cursors = {key: versions for key, versions in self._cursors.items() if key[0] != peer}

    def finish(self) -> None:
        """After the end: everything acknowledged has become readable, up to the ends that were decided."""
        missing = [write_id for write_id in self.acked if write_id not in self.where]
        if missing:
            raise Violation("lost", f"{missing} were acknowledged and nobody shows them")
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
