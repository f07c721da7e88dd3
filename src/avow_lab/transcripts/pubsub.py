"""Pub-sub lanes on the bench. The author of the transcript plays the metadata lane, which opens and ends lanes.

    cluster strategy=pub-sub peers=1,2,3
    open lane=7 owner=1 run=1 [voters=1,2,3] [at=1,2]     the metadata lane opened lane 7 for run 1 of peer 1
    decide lane=7 end=3 [at=1,2]                          it committed an end; only the first one counts
    tell N                                                peer N applies the entries of the metadata lane since the last
    enqueue N values=A,B [id=w]                           into the own lane of peer N
    get N lane=7                                          what is readable at peer N
    peek N lane=7 position=P                              an entry by its id, committed or not
    settle N lane=7      new-run N      close N           begin to end a lane; next incarnation; end the own lane
    state [N]                                             a table: one row for each copy of a lane

With `at=` an entry reaches only some peers, as it does while the others lag in the metadata lane. A write is answered
twice: when its peer has stored it (the answer is the id for a later lookup), and when a quorum has.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from avow.errors import Refused
from avow.replication.durable import LaneImages, Synced
from avow.replication.effects import Persist, SaveRun
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.state import LaneState
from avow.replication.tuning import Tuning
from avow.wire.messages import Kind
from avow_lab.transcripts.bench import Bench, Machine
from avow_lab.transcripts.text import (
    TranscriptError,
    Words,
    batch_of,
    entry_text,
    log_text,
    numbers_text,
    persist_text,
    values_of,
    write_id_of,
)

UNDECIDED: Final = -1


class Fact(Struct, frozen=True):
    """One committed entry of the metadata lane: a lane opened, or (end >= 0) ended."""

    lane: int
    owner: int = 0
    run: int = 0
    voters: tuple[int, ...] = ()
    end: int = UNDECIDED


class Waiting(Struct):
    """A write without an answer."""

    label: str
    lane: int
    position: int
    told_stored: bool = False


class PubSubBench(Bench[PubSubCore]):
    def __init__(self, words: Words) -> None:
        super().__init__()
        self._voters = words.integers("peers", (1, 2, 3))
        # The jitter makes the peers' claim delays differ by 100 ms each, lowest number first.
        self._tuning = Tuning(claim_jitter_s=1.0, piece_entries=words.integer("piece", Tuning().piece_entries))
        self._facts: list[Fact] = []
        self._facts_read: dict[int, int] = {}
        self._waiting: dict[int, list[Waiting]] = {}
        self._written = 0
        self.commands |= {
            "open": self._open_command,
            "decide": self._decide_command,
            "tell": self._tell_command,
            "enqueue": self._enqueue_command,
            "get": self._get_command,
            "peek": self._peek_command,
            "settle": self._settle_command,
            "new-run": self._new_run_command,
            "close": self._close_command,
            "state": self._state_command,
        }
        for number in self._voters:
            machine: Machine[PubSubCore] = Machine(number)
            self.machines[number] = machine
            machine.replica = self._boot(machine)

    # ------------------------------------------------------------------ called by the bench

    def _boot(self, machine: Machine[PubSubCore]) -> PubSubCore:
        image = machine.store.load()
        run = self._next_run(machine, image.incarnation)
        core = PubSubCore(
            me=machine.number,
            incarnation=run,
            images=LaneImages(image.lanes),
            rng=lambda: (machine.number - 1) / 10,
            tuning=self._tuning,
            now=machine.clock_s,
        )
        core.members(self._voters, ())
        self._facts_read[machine.number] = 0
        self._waiting[machine.number] = []
        return core

    @staticmethod
    def _next_run(machine: Machine[PubSubCore], last: int) -> int:
        """Durable before the new run does anything."""
        machine.store.write([SaveRun(last + 1)], lambda _receipt: None)
        machine.store.sync()
        return last + 1

    def _persisted(self, machine: Machine[PubSubCore], proof: Synced) -> None:
        machine.process.persisted(proof, machine.clock_s)

    def _started(self, machine: Machine[PubSubCore]) -> None:
        self.say(f"{machine.number} starts run {machine.store.incarnation}")
        self._read_facts(machine)

    def _died(self, machine: Machine[PubSubCore]) -> None:
        for waiting in self._waiting.pop(machine.number, []):
            self.say(f"client {waiting.label} <- unknown (no connection to {machine.number})")

    def _stores(self, machine: Machine[PubSubCore], operations: list[Persist]) -> None:
        texts = [persist_text(operation, lane=f"lane {getattr(operation, 'lane', 0)} ") for operation in operations]
        self.detail(f"{machine.number} stores {'; '.join(texts)}")

    def _observe(self, machine: Machine[PubSubCore]) -> None:
        number, core = machine.number, machine.process
        self._tell_stored(machine)
        for lane, _, to in core.notifications.take_committed():
            self.say(f"{number} lets lane {lane} be read to {to}")
        for lane, to, peers in core.notifications.take_accepted():
            self._answer(number, lane, to, f"accepted by {numbers_text(peers)}")
        for lane, _, to in core.notifications.take_refused():
            self._answer(number, lane, to, "refused LANE_ENDED")
        for lane in core.notifications.take_lost():
            self.say(f"{number} has lost lane {lane}")
        for lane, end in core.notifications.take_settled():
            self.say(f"{number} proposes that lane {lane} ends at {end}")

    def _tell_stored(self, machine: Machine[PubSubCore]) -> None:
        for waiting in self._waiting[machine.number]:
            if not waiting.told_stored and machine.process.lookup(waiting.lane, waiting.position)[0]:
                waiting.told_stored = True
                place = f"{waiting.lane}:{waiting.position}"
                self.say(f"client {waiting.label} <- stored by {machine.number} as {place}")

    def _answer(self, peer: int, lane: int, to: int, text: str) -> None:
        """Entries of the lane up to `to` have an outcome; earlier ones had theirs already."""
        done = [w for w in self._waiting[peer] if w.lane == lane and w.position <= to]
        self._waiting[peer] = [w for w in self._waiting[peer] if w not in done]
        for waiting in done:
            self.say(f"client {waiting.label} <- {text} as {lane}:{waiting.position}")

    # ------------------------------------------------------------------ the metadata lane

    def _open_command(self, words: Words) -> None:
        voters = words.integers("voters", self._voters)
        fact = Fact(words.required("lane"), words.required("owner"), words.required("run"), voters)
        self._commit(fact, words.integers("at"))

    def _decide_command(self, words: Words) -> None:
        fact, at = Fact(words.required("lane"), end=words.required("end")), words.integers("at")
        for earlier in self._facts:
            if earlier.lane == fact.lane and earlier.end >= 0:
                self.say(f"lane {fact.lane} was ended at {earlier.end} before; this changes nothing")
                return
        self._commit(fact, at)

    def _commit(self, fact: Fact, at: tuple[int, ...]) -> None:
        self._facts.append(fact)
        for machine in self.up():
            if not at or machine.number in at:
                self._read_facts(machine)

    def _tell_command(self, words: Words) -> None:
        self._read_facts(self.machine(words.number("a peer")))

    def _read_facts(self, machine: Machine[PubSubCore]) -> None:
        core = machine.process
        for fact in self._facts[self._facts_read[machine.number] :]:
            if fact.end >= 0:
                core.lane_end_decided(fact.lane, fact.end, machine.clock_s)
            else:
                core.lane_opened(fact.lane, fact.owner, fact.run, fact.voters, machine.clock_s)
        self._facts_read[machine.number] = len(self._facts)
        self.carry_out(machine)

    # ------------------------------------------------------------------ clients

    def _enqueue_command(self, words: Words) -> None:
        machine, values = self.machine(words.number("a peer")), words.values()
        self._written += 1
        label = words.option("id", f"w{self._written}")
        core = machine.process
        try:
            position = core.enqueue(
                Kind.DATA,
                count=len(values),
                write_id=write_id_of(label),
                now=machine.clock_s,
                created_ms=self.wall_ms,
                batch=batch_of(values),
            )
        except Refused as error:
            self.say(f"client {label} <- refused {error.code}")
            return
        assert core.own_lane is not None, "it has just been written to"
        self._waiting[machine.number].append(Waiting(label, core.own_lane, position))
        self.carry_out(machine)

    def _get_command(self, words: Words) -> None:
        core, lane = self.machine(words.number("a peer")).process, words.required("lane")
        readable = core.readable_to(lane)
        entries = core.retention.entries(lane, after=0, limit=readable)
        values = [value for entry in entries for value in values_of(entry)]
        self.say(f"client <- lane {lane} to {readable}: {','.join(values) or 'nothing'}")

    def _peek_command(self, words: Words) -> None:
        core = self.machine(words.number("a peer")).process
        lane, position = words.required("lane"), words.required("position")
        entry = core.retention.entry(lane, position)
        if entry is None:
            self.say("nothing is stored there")
            return
        _, committed, holders = core.lookup(lane, position)
        self.say(f"{entry_text(entry)} committed={'yes' if committed else 'no'} stored by {numbers_text(holders)}")

    # ------------------------------------------------------------------ owners and settlers

    def _settle_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        machine.process.settle(words.required("lane"), machine.clock_s)
        self.carry_out(machine)

    def _new_run_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        if machine.unsynced:
            raise TranscriptError(
                f"`{words.line}`: sync {machine.number} first, so that the next run is durable after it"
            )
        machine.process.new_run(self._next_run(machine, machine.store.incarnation))
        self.say(f"{machine.number} begins run {machine.store.incarnation}")
        self.carry_out(machine)

    def _close_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        machine.process.close_own_lane()
        self.carry_out(machine)

    # ------------------------------------------------------------------ the table

    def _state_command(self, words: Words) -> None:
        number = words.maybe_number()
        form = "{:<5} {:<5} {:<6} {:<7} {:<9} {:<12} {}"
        self.say(form.format("peer", "lane", "owner", "cursor", "readable", "fence", "copy"))
        for machine in [self.machine(number)] if number else self.up():
            for _, lane in sorted(machine.process.lanes.by_number.items()):
                self.say(form.format(machine.number, *self._row(lane)))

    @staticmethod
    def _row(lane: LaneState) -> tuple[object, ...]:
        fence = f"ends at {lane.decided}" if lane.decided >= 0 else "fenced" if lane.fenced else "-"
        log = log_text(lane.entries, synced_to=lane.durable)
        return lane.number, f"{lane.incarnation}.{lane.owner}", lane.cursor, lane.readable, fence, log
