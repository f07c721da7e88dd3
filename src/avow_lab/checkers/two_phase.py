"""The checkers of a two-phase lane: one ledger of what the cluster decided, written by the peer that commits first.

    agreement         two peers committed different entries at one position, or have different outcomes of one
    not stored        an entry was committed that a quorum does not hold on disk
    phantom           an entry that no client requested
    lost              an acknowledged write is not in the ledger, or not at its acknowledged version
    twice             one write id took effect twice
    expected          a compare-and-append took effect elsewhere, or was refused with a cursor that was never the end
    reused            a write whose id names another one was answered as done
    refused happened  a write got a definite refusal and took effect
    two outcomes      a transaction is published in one lane, and its batches were dropped in another
    real time         an operation does not see what was acknowledged before it began
    monotonic         a cursor went back
    membership        two successive memberships differ by more than one voter, or a voter was never a learner
    retention         a trim removed what the rules of the queue keep
    deleted           entries of a deleted queue are shown, held or stored after its deletion
    no progress       after everything was healed, clients still wait or peers still differ

Every lane has a ledger of its own, and a write belongs to one of them: in another lane, or in the lanes of a new queue
under the old name, it is a phantom.

The rules of a queue are written here a second time, as plainly as possible and without looking at `avow.queue`, so that
a mistake there shows up as a difference. Everything is checked when it happens, not at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from avow.queue import commands
from avow.queue.entry_outcome import Outcome
from avow.wire.batch import Batch, pack_entry
from avow.wire.messages import Entry, Kind


class Violation(AssertionError):
    """A promise was broken. `kind` is one of the names above."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


class Expectation(Struct):
    """What the answer to a write may be, from its first attempt on."""

    write_id: bytes
    kind: int
    count: int
    expected: int
    floor: int  # the highest version acknowledged to any client before the first attempt
    txn: bytes = b""  # of a publish or discard
    reuses: bool = False  # its id names another write: it may only be refused


class Membership:
    """The committed memberships of a lane: each differs from the last by at most one voter, which was a learner."""

    def __init__(self, lane: str, voters: tuple[int, ...]) -> None:
        self._lane = lane
        self.voters, self.learners = frozenset(voters), frozenset[int]()

    def change(self, entry: Entry) -> None:
        command = commands.decode(entry.kind, entry.control)
        assert isinstance(command, commands.MembersCommand)
        voters, learners = frozenset(command.voters), frozenset(command.learners)
        if len(voters ^ self.voters) > 1:
            raise Violation("membership", f"{self._lane}: {sorted(self.voters)} is followed by {sorted(voters)}")
        if not voters - self.voters <= self.learners:
            raise Violation("membership", f"{self._lane}: {sorted(voters - self.voters)} votes and was never a learner")
        self.voters, self.learners = voters, learners

    @property
    def everyone(self) -> frozenset[int]:
        return self.voters | self.learners


class Rules:
    """The effects of committed entries, computed in the slow and obvious way."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []  # of each version from 1 on: position, number in the batch
        self.outcomes: dict[bytes, Outcome] = {}
        self.staged: dict[bytes, list[tuple[int, int, int]]] = {}  # (part, count, position) of each batch
        self.decided: dict[bytes, Outcome] = {}
        self.opened: dict[bytes, tuple[int, int]] = {}  # bound ones: where it was opened, and last changed
        self.prepared: dict[bytes, dict[int, tuple[tuple[int, int], ...]]] = {}
        self.following: dict[bytes, tuple[tuple[int, int], ...]] = {}
        self.parted: set[bytes] = set()
        self.on_end: Callable[[bytes, bool], None] = lambda _txn, _shown: None  # a bound transaction ended here
        self.cursors: dict[str, int] = {}
        self.holds: set[str] = set()
        self.subscribed_at: dict[str, int] = {}  # subscriber -> position of its first cursor
        self.trimmed_to = 0

    @property
    def end(self) -> int:
        return len(self.places)

    def apply(self, entry: Entry, writes: list[tuple[bytes, int]]) -> Outcome:
        """`writes`: (write id, count) of each client's part."""
        if not entry.write_id and writes:
            return self._merged(entry.position, writes)
        known = self.outcomes.get(entry.write_id) if entry.write_id else None
        if known is not None:
            return known
        outcome = self._take_effect(entry)
        if entry.write_id:
            self.outcomes[entry.write_id] = outcome
        return outcome

    def _merged(self, position: int, writes: list[tuple[bytes, int]]) -> Outcome:
        first, offset = self.end + 1, 0
        for write_id, count in writes:
            if write_id not in self.outcomes:
                self.outcomes[write_id] = self._show(position, count, offset)
            offset += count
        return Outcome("", first, self.end)

    def _take_effect(self, entry: Entry) -> Outcome:
        if entry.kind == Kind.DATA:
            return self._show(entry.position, entry.count)
        if entry.kind in (Kind.STAGE, Kind.PUBLISH, Kind.DISCARD):
            return self._transaction(entry)
        if entry.kind == Kind.CURSOR:
            command = commands.decode(entry.kind, entry.control)
            assert isinstance(command, commands.CursorCommand)
            version = min(command.version, self.end)
            at = self.cursors[command.subscriber] = max(self.cursors.get(command.subscriber, 0), version)
            self.subscribed_at.setdefault(command.subscriber, entry.position)
            if command.hold is not None:
                (self.holds.add if command.hold else self.holds.discard)(command.subscriber)
            return Outcome("", 0, at)
        if entry.kind == Kind.TRIM:
            return self._trim(entry)
        return Outcome()

    def _trim(self, entry: Entry) -> Outcome:
        command = commands.decode(entry.kind, entry.control)
        assert isinstance(command, commands.TrimCommand)
        before = self.trimmed_to
        held = min((self.cursors[name] for name in self.holds), default=self.end)
        self.trimmed_to = max(before, min(command.upto_version, self.end, held))
        return Outcome("", before + 1, self.trimmed_to)

    def _show(self, position: int, count: int, offset: int = 0) -> Outcome:
        first = self.end + 1
        self.places += [(position, offset + number) for number in range(count)]
        return Outcome("", first, self.end)

    def _transaction(self, entry: Entry) -> Outcome:
        command = commands.decode(entry.kind, entry.control)
        txn: bytes = command.txn  # type: ignore[attr-defined]
        decided = self.decided.get(txn)
        if isinstance(command, commands.DecisionCommand):
            return self._step(entry, command)
        if entry.kind == Kind.STAGE:
            part: int = command.part  # type: ignore[attr-defined]
            if decided is None and self.prepared.get(txn) and not part:
                return Outcome("ALREADY_DECIDED")
            if isinstance(command, commands.BoundStageCommand) and decided is None:
                self.opened[txn] = (self.opened.get(txn, (entry.position, 0))[0], entry.position)
                self.parted.update([txn] if part else [])
                self.staged.setdefault(txn, [])
                if not entry.count:
                    return Outcome()
            if decided is not None:
                return Outcome("ALREADY_DECIDED", decided.first_version, decided.last_version)
            batch = (command.part, entry.count, entry.position)  # type: ignore[attr-defined]
            self.staged.setdefault(txn, []).append(batch)
            return Outcome()
        if decided is not None:
            same = (entry.kind == Kind.PUBLISH) == bool(decided.first_version)
            return decided if same else Outcome("ALREADY_DECIDED", decided.first_version, decided.last_version)
        assert isinstance(command, commands.TransactionCommand)
        return self._publish(command) if entry.kind == Kind.PUBLISH else self._discard(command)

    def _step(self, entry: Entry, command: commands.DecisionCommand) -> Outcome:
        """A step of a transaction over several lanes."""
        txn, at = command.txn, command.at
        decided, opened = self.decided.get(txn), self.opened.get(txn)
        if entry.kind == Kind.DISCARD:
            if opened is not None and opened[1] == at:
                self._end(txn, discarded=True)
                if command.reason == "client" or txn not in self.parted:
                    self.decided[txn] = Outcome()
            return Outcome()
        if command.step == "close":
            self.following.pop(txn, None)
            return Outcome()
        if decided is not None:
            shown = decided if decided.first_version and command.step != "prepare" else None
            return shown or Outcome("ALREADY_DECIDED", decided.first_version, decided.last_version)
        if opened is None:
            return Outcome("UNKNOWN_TRANSACTION")
        if command.step == "follow":
            return self._follow(txn, at) if at in self.prepared.get(txn, {}) else Outcome("UNKNOWN_TRANSACTION")
        staged = self.staged[txn]
        if any(count != sum(c for p, c, _ in staged if p == part) for part, count in command.parts):
            return Outcome("INCOMPLETE")
        if command.step == "prepare":
            last = max((position for _, _, position in staged), default=0)
            for known, parts in self.prepared.get(txn, {}).items():
                if parts == command.parts and known > last:
                    return Outcome("", 0, known)
            self.prepared.setdefault(txn, {})[entry.position] = command.parts
            self.opened[txn] = (opened[0], entry.position)
            return Outcome("", 0, entry.position)
        if opened[0] != at:
            return Outcome("UNKNOWN_TRANSACTION")
        if command.lanes:
            self.following[txn] = command.lanes
        chosen = [batch for batch in staged if not command.parts or batch[0] in dict(command.parts)]
        return self._show_transaction(txn, chosen)

    def _follow(self, txn: bytes, at: int) -> Outcome:
        parts = dict(self.prepared[txn][at])
        chosen = [batch for batch in self.staged[txn] if batch[2] < at and (not parts or batch[0] in parts)]
        return self._show_transaction(txn, chosen)

    def _show_transaction(self, txn: bytes, chosen: list[tuple[int, int, int]]) -> Outcome:
        self._end(txn, discarded=False)
        first = self.end + 1
        for _, count, position in chosen:
            self._show(position, count)
        self.decided[txn] = Outcome("", first, self.end)
        return self.decided[txn]

    def _end(self, txn: bytes, *, discarded: bool) -> None:
        if txn in self.opened:
            if self.staged.get(txn):
                self.on_end(txn, not discarded)
            del self.opened[txn]
        self.prepared.pop(txn, None)
        self.staged.pop(txn, None)

    def _publish(self, command: commands.TransactionCommand) -> Outcome:
        if command.txn not in self.staged:
            return Outcome("UNKNOWN_TRANSACTION")
        staged, parts = self.staged[command.txn], dict(command.parts)
        if any(messages != sum(count for at, count, _ in staged if at == part) for part, messages in parts.items()):
            return Outcome("INCOMPLETE")
        del self.staged[command.txn]
        first = self.end + 1
        for part, count, position in staged:
            if not parts or part in parts:
                self._show(position, count)
        self.decided[command.txn] = Outcome("", first, self.end)
        return self.decided[command.txn]

    def _discard(self, command: commands.TransactionCommand) -> Outcome:
        txn, dropped = command.txn, dict(command.parts)
        if txn in self.opened and not dropped:
            self._end(txn, discarded=True)
            if command.reason == "client" or txn not in self.parted:
                self.decided[txn] = Outcome()
            return Outcome()
        staged = self.staged.pop(txn, [])
        if dropped:
            if left := [batch for batch in staged if batch[0] not in dropped]:
                self.staged[txn] = left
        elif command.reason == "client" or (staged and any(part == 0 for part, _, _ in staged)):
            self.decided[txn] = Outcome()
        return Outcome()


class Ledger:
    """Everything committed in one lane, and every promise given about it.

    `base` is the position its founders begin with, `voters` are those. `retention` asks whether a queue's rules allow
    a trim (`stored_by_quorum` and it are asked of the simulation).
    """

    def __init__(
        self,
        stored_by_quorum: Callable[[int, Entry], bool],
        *,
        number: int = 1,
        base: int = 0,
        voters: tuple[int, ...] = (),
        retention: Callable[[commands.TrimCommand, Rules], bool] = lambda _trim, _rules: True,
    ) -> None:
        self._stored_by_quorum, self._retention = stored_by_quorum, retention
        self.number, self.base = number, base
        self.members = Membership(f"lane {number}", voters)
        self.rules = Rules()
        self.entries: list[Entry] = []
        self.outcomes: list[Outcome] = []
        self.asked: dict[bytes, Expectation] = {}
        self.refused: set[bytes] = set()
        self.acked_end = 0
        self.acknowledged = 0
        self._cursors: dict[tuple[int, str], int] = {}

    @property
    def end(self) -> int:
        """The last position that any peer committed."""
        return self.base + len(self.entries)

    def entry(self, position: int) -> Entry:
        return self.entries[position - self.base - 1]

    def ask(self, *, write_id: bytes, kind: int, count: int, expected: int, txn: bytes = b"") -> Expectation:
        before = self.asked.get(write_id)
        reuses = before is not None and before.kind != kind
        asked = Expectation(write_id, kind, count, expected, self.acked_end, txn, reuses)
        if not reuses:
            self.asked[write_id] = asked
        return asked

    def committed(self, peer: int, entry: Entry, outcome: Outcome) -> None:
        """A peer applied this entry with this outcome."""
        position = entry.position
        at = position - self.base - 1
        if 0 <= at < len(self.entries):
            mine = self.entries[at]
            if mine is not entry and mine != entry:
                raise Violation("agreement", f"position {position}: peer {peer} committed {entry}, another {mine}")
            if self.outcomes[at] != outcome:
                other = self.outcomes[at]
                raise Violation(
                    "agreement", f"position {position}: the outcome is {outcome} at peer {peer}, {other} at another"
                )
            return
        if position != self.end + 1:
            raise Violation("agreement", f"peer {peer} committed {position} of lane {self.number} after {self.end}")
        self._first_commit(peer, entry, outcome)

    def _first_commit(self, peer: int, entry: Entry, outcome: Outcome) -> None:
        writes = _writes_in(entry)
        self._check_asked(entry, writes)
        if not self._stored_by_quorum(peer, entry):
            raise Violation("not stored", f"peer {peer} committed {entry.position} without a quorum of durable copies")
        if entry.kind == Kind.MEMBERS:
            self.members.change(entry)
        if entry.kind == Kind.TRIM:
            command = commands.decode(entry.kind, entry.control)
            assert isinstance(command, commands.TrimCommand)
            if command.rule != "asked" and not self._retention(command, self.rules):
                raise Violation("retention", f"lane {self.number}: {command} removes what the rules keep")
        repeated = {write_id for write_id, _ in writes if write_id in self.rules.outcomes}
        before = self.rules.end
        concluded = self.rules.apply(entry, writes)
        if concluded != outcome:
            raise Violation(
                "agreement", f"position {entry.position}: the outcome is {outcome}, by the rules {concluded}"
            )
        if len(repeated) == len(writes) > 0 and self.rules.end != before:
            raise Violation("twice", f"{entry.write_id!r} took effect again at position {entry.position}")
        for write_id, _ in writes:
            if write_id not in repeated:
                self._check_effect(write_id, entry.position, self.rules.outcomes[write_id])
        self.entries.append(entry)
        self.outcomes.append(outcome)

    def _check_asked(self, entry: Entry, writes: list[tuple[bytes, int]]) -> None:
        for write_id, count in writes:
            asked = self.asked.get(write_id)
            if asked is None or (asked.kind, asked.count) != (entry.kind, count):
                raise Violation("phantom", f"position {entry.position} holds {write_id!r}, which no client wrote")
        if entry.kind in (Kind.DATA, Kind.STAGE) and not writes:
            raise Violation("phantom", f"position {entry.position} holds messages without a writer")

    def _check_effect(self, write_id: bytes, position: int, outcome: Outcome) -> None:
        if write_id in self.refused and not outcome.code:
            raise Violation("refused happened", f"{write_id!r} at position {position}")
        expected = self.asked[write_id].expected
        if expected >= 0 and not outcome.code and outcome.first_version != expected + 1:
            raise Violation("expected", f"{write_id!r} expected {expected}, got version {outcome.first_version}")

    # ------------------------------------------------------------------ answers to clients

    def acknowledge(self, asked: Expectation, first: int, last: int) -> None:
        if asked.reuses:
            raise Violation("reused", f"{asked.write_id!r} names another write; this one was done, and stored nowhere")
        outcome = self.rules.outcomes.get(asked.write_id)
        if outcome is None and asked.txn:  # answered from an earlier decision: nothing had to be stored
            outcome = self.rules.decided.get(asked.txn)
        if outcome is None or (outcome.first_version, outcome.last_version) != (first, last) or outcome.code:
            raise Violation("lost", f"{asked.write_id!r} was acknowledged as {first}..{last}; the ledger has {outcome}")
        if asked.kind in (Kind.DATA, Kind.PUBLISH) and last >= first:
            if first <= asked.floor:
                raise Violation(
                    "real time", f"{asked.write_id!r} got {first}, but {asked.floor} was acknowledged before"
                )
            self.acked_end = max(self.acked_end, last)
        self.acknowledged += 1

    def refuse(self, asked: Expectation, code: str, cursor: int) -> None:
        """A definite refusal: this write id must never take effect."""
        if asked.reuses:
            return
        outcome = self.rules.outcomes.get(asked.write_id)
        if outcome is not None and not outcome.code:
            raise Violation("refused happened", f"{asked.write_id!r} was refused with {code} after it took effect")
        if code == "NOT_EQUAL":
            if cursor == asked.expected:
                raise Violation("expected", f"{asked.write_id!r} was refused although the lane ended at {cursor}")
            if not asked.floor <= cursor <= self.rules.end:
                raise Violation(
                    "expected",
                    f"{asked.write_id!r} was refused with {cursor}, which was not the end since its first attempt",
                )
        self.refused.add(asked.write_id)

    def read(self, *, level: str, floor: int, end: int) -> None:
        """A read was answered with everything up to `end` visible."""
        if end > self.rules.end:
            raise Violation("phantom", f"a {level} read saw version {end}; only {self.rules.end} are committed")
        if end < floor:
            raise Violation("real time", f"a {level} read saw {end} after {floor} was acknowledged")

    def served(self, entry: Entry, *, offset: int, first_version: int, count: int) -> None:
        """A reader got this part of an entry."""
        if not self.base < entry.position <= self.end or self.entry(entry.position) != entry:
            raise Violation("phantom", f"lane {self.number}: a reader got {entry}")
        meant = self.rules.places[first_version - 1 : first_version - 1 + count]
        if meant != [(entry.position, offset + number) for number in range(count)]:
            raise Violation("agreement", f"lane {self.number}: {first_version} is not message {offset} of {entry}")

    def missing(self, version: int) -> None:
        """A reader got the answer that the version after this one was removed."""
        if version >= self.rules.trimmed_to:
            raise Violation(
                "lost",
                f"a read of lane {self.number} after version {version} was answered with removed, and it was not",
            )

    def cursor(self, peer: int, name: str, version: int) -> None:
        """A cursor, as one run of a peer shows it."""
        before = self._cursors.get((peer, name), 0)
        if version < before:
            raise Violation("monotonic", f"cursor {name} at peer {peer} went from {before} back to {version}")
        self._cursors[peer, name] = version

    def restarted(self, peer: int) -> None:
        for key in [key for key in self._cursors if key[0] == peer]:
            del self._cursors[key]


def value_of(write_id: bytes, number: int) -> bytes:
    """The value of the message with this number in a mergeable write."""
    return b"%s/%d" % (write_id, number)


def _writes_in(entry: Entry) -> list[tuple[bytes, int]]:
    """(write id, count) of each client's part of an entry. Those of a merged one hold what their clients wrote."""
    if entry.write_id:
        return [(entry.write_id, entry.count)]
    if entry.kind != Kind.DATA:
        return []
    batch = Batch(pack_entry(entry))
    values = batch.values()
    for write_id, first, count in batch.writes():
        held = [bytes(value) for value in values[first : first + count]]
        if held != [value_of(write_id, number) for number in range(count)]:
            raise Violation("phantom", f"position {entry.position} holds {held} for {write_id!r}")
    return [(write_id, count) for write_id, _, count in batch.writes() if write_id]
