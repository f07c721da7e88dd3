"""A two-phase lane on the bench: the commands of a transcript, and what is shown of the lane.

    cluster peers=1,2,3 [learners=4] [spare=5] [piece=N]     voters, learners, machines outside; entries in one message
    claim N [step]                          N's clock jumps past its claim delay; with `step` its first messages only
    enqueue N values=A,B [expected=V] [id=w]                 also stage (txn=, values=, [deadline=ms]), publish, discard
    retry N w                               the write `w` again, same write id, at peer N
    read N [level=local|at_least|linearizable] [version=V]
    peek N position=P                       an entry by its position, committed or not
    members N add-learner|promote|remove P
    disconnect N                            clients of N lose their connections; N's answers are lost
    state [N]                               a table

A peer runs `QueueLane`, as a peer process does. The claim delay is so long that no peer claims without a command.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from avow.ids import ballot_text
from avow.node.answers import Answer, Done
from avow.node.lane.queue_lane import QueueLane
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import StageCommand, TransactionCommand, encode
from avow.replication.durable import Synced
from avow.replication.effects import LaneImage, Persist, SaveSnapshot
from avow.replication.membership import Members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import CLAIMING, COORDINATOR, FOLLOWER, PROBING, ROLES
from avow.wire.messages import Entry, Kind, Snapshot
from avow_lab.transcripts.bench import Bench, Machine
from avow_lab.transcripts.text import (
    TranscriptError,
    Words,
    answer_text,
    batch_of,
    entry_text,
    log_text,
    members_text,
    numbers_text,
    persist_text,
    stamp_text,
    values_of,
    write_id_of,
)

LANE: Final = 1
CLAIM_DELAY_S: Final = 1000.0  # only `claim` moves a clock so far
DEADLINE_MS: Final = 60_000


class Request(Struct):
    """A client's request without an answer. `heard`: the client is still connected."""

    label: str
    peer: int
    reads: bool = False
    heard: bool = True


class Seen(Struct, frozen=True):
    """The state of a peer that was last shown."""

    role: int
    committed: int
    versions: int
    members: Members


class TwoPhaseBench(Bench[QueueLane]):
    def __init__(self, words: Words) -> None:
        super().__init__()
        voters, learners, spare = (
            words.integers("peers", (1, 2, 3)),
            words.integers("learners"),
            words.integers("spare"),
        )
        self._tuning = Tuning(
            claim_delay_s=CLAIM_DELAY_S,
            claim_jitter_s=0.0,
            piece_entries=words.integer("piece", Tuning().piece_entries),
        )
        self._requests: dict[int, Request] = {}
        self._writes: dict[str, Write] = {}
        self._asked = self._reads = 0
        self._seen: dict[int, Seen] = {}
        self.commands |= {
            "claim": self._claim_command,
            "enqueue": self._enqueue_command,
            "stage": self._stage_command,
            "publish": self._decide_command,
            "discard": self._decide_command,
            "retry": self._retry_command,
            "read": self._read_command,
            "peek": self._peek_command,
            "members": self._members_command,
            "disconnect": self._disconnect_command,
            "state": self._state_command,
        }
        for number in sorted((*voters, *learners, *spare)):
            self._add(number, Snapshot(0, 0, voters, learners, b"") if number not in spare else None)

    def _add(self, number: int, founding: Snapshot | None) -> None:
        machine: Machine[QueueLane] = Machine(number)
        self.machines[number] = machine
        if founding is not None:
            machine.store.write([SaveSnapshot(LANE, founding, reset=True)], lambda _receipt: None)
            machine.store.sync()
        machine.replica = self._boot(machine)

    # ------------------------------------------------------------------ called by the bench

    def _boot(self, machine: Machine[QueueLane]) -> QueueLane:
        image = machine.store.load().lanes.get(LANE) or LaneImage(entries=[])
        lane = QueueLane(
            me=machine.number, lane=LANE, image=image, rng=lambda: 0.0, tuning=self._tuning, now=machine.clock_s
        )
        self._seen[machine.number] = self._look(lane)
        return lane

    def _persisted(self, machine: Machine[QueueLane], proof: Synced) -> None:
        machine.process.persisted(proof)

    def _started(self, machine: Machine[QueueLane]) -> None:
        core = machine.process.core
        state = f"promised={ballot_text(core.promised)} stamped={stamp_text(core.state.stamped)} end={core.log.end}"
        self.say(f"{machine.number} starts with {state}" + (", its log is damaged" if core.repairing else ""))

    def _died(self, machine: Machine[QueueLane]) -> None:
        self._disconnect(machine.number)
        self._requests = {n: asked for n, asked in self._requests.items() if asked.peer != machine.number}

    def _stores(self, machine: Machine[QueueLane], operations: list[Persist]) -> None:
        self.detail(f"{machine.number} stores {'; '.join(map(persist_text, operations))}")

    def _tick(self, machine: Machine[QueueLane]) -> None:
        if machine.replica is not None:
            machine.replica.discard_expired(self.wall_ms)
        super()._tick(machine)

    def _observe(self, machine: Machine[QueueLane]) -> None:
        number, lane = machine.number, machine.process
        before, now = self._seen[number], self._look(lane)
        self._seen[number] = now
        if now.role != before.role:
            self.say(f"{number} {self._role_news(before.role, lane)}")
        if now.committed > before.committed:
            visible = f", visible to version {now.versions}" if now.versions > before.versions else ""
            self.say(f"{number} moves its cursor to {now.committed}{visible}")
        if now.members != before.members:
            self.say(f"{number} counts with members {members_text(now.members.voters, now.members.learners)}")
        for request, answer in lane.take_answers():
            self._answered(self._requests.pop(request), answer)

    @staticmethod
    def _look(lane: QueueLane) -> Seen:
        return Seen(lane.core.role, lane.core.committed, lane.state.end, lane.core.members)

    @staticmethod
    def _role_news(before: int, lane: QueueLane) -> str:
        ballot = ballot_text(lane.core.promised)
        match lane.core.role:
            case r if r == COORDINATOR:
                return f"coordinates with ballot {ballot}"
            case r if r == CLAIMING:
                return f"claims with ballot {ballot}"
            case r if r == PROBING:
                return "probes for a coordinator"
            case _:
                return "coordinates no longer" if before == COORDINATOR else "gives up its claim"

    # ------------------------------------------------------------------ clients

    def _ask(self, label: str, peer: int, *, reads: bool = False) -> int:
        self._asked += 1
        self._requests[self._asked] = Request(label, peer, reads)
        return self._asked

    def _answered(self, asked: Request, answer: Answer) -> None:
        text = answer_text(answer)
        if asked.reads and isinstance(answer, Done):
            text = f"read to version {answer.last_version}: {self._readable(asked.peer) or 'nothing'}"
        if asked.heard:
            self.say(f"{asked.label} <- {text}")
        else:
            self.say(f"{asked.peer} answers {text} to {asked.label}, which has disconnected")

    def _readable(self, peer: int) -> str:
        lane = self.machine(peer).process
        shown: list[str] = []
        for part in lane.state.ranges(0, lane.state.end):
            shown += values_of(lane.core.log.entry(part.position))[part.offset : part.offset + part.count]
        return ",".join(shown)

    def _disconnect_command(self, words: Words) -> None:
        self._disconnect(self.machine(words.number("a peer")).number)

    def _disconnect(self, peer: int) -> None:
        for asked in self._requests.values():
            if asked.peer == peer and asked.heard:
                asked.heard = False
                self.say(f"{asked.label} <- unknown (no connection to {peer})")

    def _submit(self, words: Words, write: Write, peer: int) -> None:
        label = words.option("id", f"w{len(self._writes) + 1}")
        if label in self._writes:
            raise TranscriptError(f"`{words.line}`: {label} was written before; say retry")
        self._writes[label] = Write(
            write.kind,
            write_id_of(label),
            write.count,
            words.integer("expected", -1),
            self.wall_ms,
            write.control,
            write.batch,
        )
        self._send_write(label, peer)

    def _send_write(self, label: str, peer: int) -> None:
        machine = self.machine(peer)
        machine.process.write(self._ask(f"client {label}", peer), self._writes[label], machine.clock_s)
        self.carry_out(machine)

    def _enqueue_command(self, words: Words) -> None:
        peer, values = words.number("a peer"), words.values()
        self._submit(words, Write(Kind.DATA, b"", len(values), batch=batch_of(values)), peer)

    def _stage_command(self, words: Words) -> None:
        peer, values = words.number("a peer"), words.values()
        deadline_ms = words.integer("deadline", self.wall_ms + DEADLINE_MS)
        control = encode(StageCommand(self._transaction(words), deadline_ms))
        self._submit(words, Write(Kind.STAGE, b"", len(values), control=control, batch=batch_of(values)), peer)

    def _decide_command(self, words: Words) -> None:
        kind = Kind.PUBLISH if words.name == "publish" else Kind.DISCARD
        peer = words.number("a peer")
        self._submit(words, Write(kind, b"", control=encode(TransactionCommand(self._transaction(words)))), peer)

    @staticmethod
    def _transaction(words: Words) -> bytes:
        return words.option("txn", "t1").encode()

    def _retry_command(self, words: Words) -> None:
        peer, label = words.number("a peer"), words.word("a write's name")
        if label not in self._writes:
            raise TranscriptError(f"`{words.line}`: there is no write {label}")
        self._send_write(label, peer)

    def _read_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        lane, level, version = machine.process, words.option("level", "local"), words.integer("version", 0)
        self._reads += 1
        request = self._ask(f"client r{self._reads}", machine.number, reads=True)
        match level:
            case "local":
                lane.read_local(request)
            case "at_least":
                lane.read_at_least(request, version)
            case "linearizable":
                lane.read(request, machine.clock_s)
            case _:
                raise TranscriptError(f"`{words.line}`: there is no level {level}")
        self.carry_out(machine)

    def _peek_command(self, words: Words) -> None:
        found = self.machine(words.number("a peer")).process.peek(words.required("position"))
        if found is None:
            self.say("nothing is held there")
            return
        entry, committed, holders = found
        self.say(f"{entry_text(entry)} committed={'yes' if committed else 'no'} stored by {numbers_text(holders)}")

    # ------------------------------------------------------------------ operators

    def _claim_command(self, words: Words) -> None:
        machine = self.machine(words.number("a peer"))
        if machine.process.core.role != FOLLOWER:
            raise TranscriptError(f"`{words.line}`: peer {machine.number} is not a follower")
        step = words.flag("step")
        machine.clock_s += CLAIM_DELAY_S
        self._tick(machine)
        self._deliver_beats()  # before anything that is sent later: links keep their order
        if not step:
            self.stabilize(tuple(self.machines))

    def _members_command(self, words: Words) -> None:
        machine, change, peer = self.machine(words.number("a peer")), words.word("a change"), words.number("a peer")
        members = machine.process.core.members
        without = Members(
            tuple(p for p in members.voters if p != peer), tuple(p for p in members.learners if p != peer)
        )
        match change:
            case "add-learner":
                wanted = Members(members.voters, (*members.learners, peer))
            case "promote":
                wanted = Members((*members.voters, peer), without.learners)
            case "remove":
                wanted = without
            case _:
                raise TranscriptError(f"`{words.line}`: add-learner, promote or remove")
        machine.process.change_members(self._ask(f"operator ({change} {peer})", machine.number), wanted)
        self.carry_out(machine)

    # ------------------------------------------------------------------ the table

    def _state_command(self, words: Words) -> None:
        number = words.maybe_number()
        machines = [self.machine(number)] if number else list(self.machines.values())
        form = "{:<5} {:<14} {:<9} {:<10} {:<4} {:<10} {:<9} {}"
        self.say(form.format("peer", "role", "promised", "stamped", "end", "committed", "versions", "log"))
        for machine in machines:
            cells = self._row(machine.replica) if machine.replica is not None else self._row_on_disk(machine)
            self.say(form.format(machine.number, *cells))

    @staticmethod
    def _row(lane: QueueLane) -> tuple[object, ...]:
        core = lane.core
        role = (
            f"follower of {core.state.coordinator}"
            if core.role == FOLLOWER and core.state.coordinator
            else ROLES[core.role]
        )
        log = log_text(core.log.slice(core.log.base, core.log.end), synced_to=core.state.persisted_end)
        promised, stamped = ballot_text(core.promised), stamp_text(core.state.stamped)
        return role, promised, stamped, core.log.end, core.committed, lane.state.end, log

    @staticmethod
    def _row_on_disk(machine: Machine[QueueLane]) -> tuple[object, ...]:
        entries: list[Entry] = []
        while (entry := machine.store.durable(LANE, len(entries) + 1)) is not None:
            entries.append(entry)
        return "down", "", "", len(entries), "", "", log_text(entries, synced_to=len(entries))
