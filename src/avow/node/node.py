"""All of one peer that is not IO: the metadata lane, the two-phase lanes and the pub-sub queues as one state machine.

    frames ──► receive(source, route, ...) ──┐                        ┌──► drain(): send, persist
    clients ─► write, command, reach, ... ───┼──► metadata, lanes, ───┤
    time ────► tick(now) ────────────────────┤    pub-sub queues      └──► answers
    disk ────► persisted(proof) ─────────────┘

A route is a lane's number (two-phase), or the number of a pub-sub queue; 0 is the metadata lane. The node carries out
what the metadata lane decides: it opens the lanes of a created queue, drops those of a deleted one, and changes the
members of every lane that this peer coordinates, one step at a time.

The caller makes the number of this run (`incarnation`) durable before it creates the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import to_builtins

from avow.errors import InvalidRequest, Offline, StorageDamaged, UnknownQueue
from avow.limits import WOKEN_PER_S
from avow.node.answers import Answer, Done, Reached, Refusal
from avow.node.due_times import DueTimes
from avow.node.housekeeping import OWN_REQUESTS
from avow.node.lane.two_phase_lane import Write
from avow.node.metadata_lane import METADATA_LANE
from avow.node.pubsub.queue import PubSubQueue
from avow.node.pubsub.writes import UNKNOWN
from avow.node.queue_follower import QueueFollower
from avow.node.range_reads import place_ranges, read_ranges
from avow.node.records import LaneView, NodeEffects, Pace, Served
from avow.node.views import heard_ms, lane_view, lane_views, metadata_view
from avow.queue.records import StoredFile, VisibleRange
from avow.replication.durable import LaneImages, Place, StoreImage, Synced
from avow.replication.effects import Effects, Persist, SaveRun
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Message
from avow.wire.versions import NEWEST

if TYPE_CHECKING:
    from avow.node.admission import Admission
    from avow.node.roles import NodeRoles

_PACE: Final = Pace()

Collect: TypeAlias = Callable[[list[tuple[int, Answer]]], None]


class Disk(Protocol):
    """What a node reads from storage while it runs; writes go through effects."""

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]: ...

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]: ...

    def stored_files(self, lane: int) -> list[StoredFile]: ...


class Component(Protocol):
    """A lane or a pub-sub queue, as the node drives it."""

    @property
    def takes(self) -> Collection[type]:
        """The classes of messages that `receive` handles."""

    def receive(self, source: int, message: Message, now: float) -> None: ...
    def tick(self, now: float) -> None:
        """Calling it before `wake_at()` does nothing."""
        ...

    def wake_at(self) -> float:
        """When it must be ticked next, if it gets no other input until then."""
        ...

    def persisted(self, proof: Synced) -> None: ...
    def drain(self) -> Effects | None: ...
    def take_answers(self) -> list[tuple[int, Answer]]: ...
    def disk_full(self, *, full: bool) -> None: ...
    def cancel(self, request: int) -> None: ...


class EffectMux:
    """A node's lanes and queues share one disk and the links, with one drain and one sync.

    The effects of all components are joined into one record. For each record that persists something the mux remembers
    the components it came from, and passes the proof of its sync to each of them. Components that were not touched
    since the last drain are skipped, and only those that are due are ticked (`due_times`). The mux does not decide when
    a message leaves (`replication.effect_buffer` does).

    Components are known by their route. `collect` is called with the answers of a component that has some.
    """

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self.components: dict[int, Component] = {}
        self.find = self.components.get  # the component for messages of a route; None: not on this peer
        self.touched: dict[int, Component] = {}  # what the next drain looks at
        self.outstanding: deque[tuple[list[tuple[int, Component]], int]] = deque()  # (components, run number)
        self.saves: list[Persist] = []  # of the node itself; written before those of its components
        self.due = DueTimes()
        self.active: set[int] = set()  # routes that were touched, until housekeeping looks at them
        self.full = False

    def add(self, route: int, component: Component) -> None:
        component.disk_full(full=self.full)
        self.components[route] = self.touched[route] = component
        self.due.note(route, -inf)

    def remove(self, route: int) -> None:
        """Remove a component. It gets no proofs for its outstanding records."""
        component = self.components.pop(route)
        self.touched.pop(route, None)
        self.due.forget(route)
        for inner, _ in self.outstanding:
            inner[:] = [item for item in inner if item[1] is not component]

    def touch(self, route: int) -> None:
        self.touched[route] = self.components[route]

    def tick(self, now: float) -> None:
        for route in self.due.take(now):
            component = self.components[route]
            component.tick(now)
            self.touched[route] = component

    def disk_full(self, *, full: bool) -> None:
        if full != self.full:
            self.full = full
            for component in self.components.values():
                component.disk_full(full=full)
            self.wake_all(-inf)

    def wake_all(self, now: float) -> None:
        """Tick every component soon. All at once, thousands of them would delay the heartbeats of this peer."""
        for number, route in enumerate(self.components):
            self.due.note(route, now + number / WOKEN_PER_S)

    def persisted(self, proof: Synced) -> int:
        """The oldest outstanding effects are synced: pass the proof to each component that contributed to them.

        Returns the run number that is now durable; 0: the record had none.
        """
        inner, run = self.outstanding.popleft()
        for route, component in inner:
            component.persisted(proof)
            self.touched[route] = component
        return run

    def drain(self) -> NodeEffects | None:
        touched, persist = self.touched, self.saves
        if not touched and not persist:
            return None
        self.touched = {}
        self.active.update(touched)
        run = 0
        if persist:
            self.saves = []
            run = next((operation.incarnation for operation in persist if isinstance(operation, SaveRun)), 0)
        sends: list[tuple[int, int, Message]] = []
        inner: list[tuple[int, Component]] = []
        note = self.due.note
        for route, component in touched.items():
            drained = component.drain()
            note(route, component.wake_at())
            answers = component.take_answers()
            if answers:
                self._collect(answers)
            if drained is None:
                continue
            for peer, message in drained.sends:
                sends.append((peer, route, message))
            if drained.persist:
                persist = persist + drained.persist if persist else drained.persist
                inner.append((route, component))
        if persist:
            self.outstanding.append((inner, run))
        return NodeEffects(sends, persist) if persist or sends else None


class Node:
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        image: StoreImage,
        founders: tuple[int, ...],
        level: int = NEWEST,
        disk: Disk,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        roles: NodeRoles,
        pace: Pace = _PACE,
    ) -> None:
        """`founders`: the initial voters of the cluster, whose initial level is `level`; empty on a peer that joined
        later. `roles`: a peer has those of `node.roles.SHIPPED`."""
        self.me, self.disk, self.rng, self.tuning, self.pace, self.roles = me, disk, rng, tuning, pace, roles
        self.now = now  # as of the last input
        self.now_ms = 0  # wall clock, as of the last tick: for deadlines and retention
        self.answers: list[tuple[int, Answer]] = []
        self.peers = roles.peers()
        self.heard = self.peers.heard  # peer -> time of its last message
        self.not_understood: dict[int, str] = {}  # route -> why messages for it were skipped, for people
        self._runs = roles.run_numbers(incarnation)
        self._proposals: dict[int, tuple[str, int]] = {}  # metadata request -> (pub-sub queue, its own request)
        self._request = OWN_REQUESTS  # number of the last own request (proposals, confirmations)
        self._reaching: dict[int, int] = {}  # request -> the pub-sub lane it asked about
        self._followed_to = -1  # position of the metadata lane
        self.mux = roles.effect_mux(self.collect)
        self.drain: Callable[[], NodeEffects | None] = self.mux.drain  # what is to be done since the last call, or None
        self._admission: Admission = roles.admission(self)
        self.lane_set = roles.lane_set(
            self, LaneImages(image.lanes, lost_below=image.lost_below, lost_promised=image.lost_promised)
        )
        self.lanes, self.pubsub = self.lane_set.lanes, self.lane_set.pubsub
        self.metadata = self.lane_set.open_metadata(founders, level)
        self.housekeeping = roles.housekeeping(self)
        self.queues = QueueFollower(self)
        self.transactions = roles.transactions(self)
        self._follow_metadata()
        self.queues.open_all()

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, route: int, message: Message, now: float) -> str:
        """Returns why the message was refused, for people; empty: it was not. A refused message changes nothing."""
        self.now = self.heard[source] = now
        component = self.mux.find(route)
        if component is None:
            return ""  # a queue that this peer does not hold or does not know yet; the sender repeats the message
        objection = self._admission.objection(source, route, component, message)
        if objection:
            return objection
        component.receive(source, message, now)
        self.mux.touched[route] = component
        if route == METADATA_LANE:
            self._follow_metadata()
        return ""

    def tick(self, now: float, now_ms: int) -> None:
        self.now, self.now_ms = now, now_ms
        if self.peers.refresh(now, fresh_s=self.tuning.heartbeat_fresh_s):
            self.mux.wake_all(now)
        self.mux.tick(now)
        self.queues.open_some()
        self._follow_metadata()
        self.housekeeping.tick(now)
        self.transactions.tick(now, now_ms)

    def met(self, peer: int, *, run: int, version: int) -> None:
        """A link to this run of a peer was established; `version`: of the frames to send it, see `wire.versions`."""
        if self.peers.met(peer, run=run, version=version):
            for core in (self.metadata.core, *(lane.core for lane in self.lanes.values())):
                core.peer_restarted(peer, self.now)
        self.mux.wake_all(self.now)

    def persisted(self, proof: Synced) -> None:
        """The oldest drained effects with something to persist are synced."""
        run = self.mux.persisted(proof)
        if run:
            self._run_is_durable(run)
        self._follow_metadata()

    def disk_full(self, *, full: bool) -> None:
        self.mux.disk_full(full=full)

    @property
    def reaching(self) -> int:
        """Reads of pub-sub lanes that have no answer yet."""
        return len(self._reaching)

    @property
    def incarnation(self) -> int:
        return self._runs.current

    # ------------------------------------------------------------------ clients

    def write(self, request: int, number: int, write: Write, now: float) -> None:
        """Write to a two-phase lane. Answers Done, Refusal or Lost."""
        self.now = now
        lane = self.lanes.get(number)
        if lane is None:
            reason = f"this peer does not hold lane {number} yet; nothing was stored. Retry, or use another peer"
            self._refuse(request, Offline.code, reason)
            return
        lane.write(request, write, now)
        self.mux.touched[number] = lane

    def write_pubsub(
        self, request: int, queue: str, write: Write, now: float, *, lane: int = 0, since: int = UNKNOWN
    ) -> None:
        """Answers Stored first (the version id for a later lookup), then Done, Refusal or Lost. `since`: as in
        `lookup`."""
        self.now = now
        held = self.pubsub.get(queue)
        if held is None:
            self._refuse(request, UnknownQueue.code, f"this peer knows no pub-sub queue {queue!r}; nothing was stored")
            return
        held.write(request, write, now, lane=lane, since=since)
        self._touch(queue)

    def lookup(self, request: int, queue: str, lane: int, write_id: bytes, *, since: int = 0) -> None:
        """The outcome of a pub-sub write; `since` is a version its lane had reached before it was first sent."""
        held = self.pubsub.get(queue)
        if held is None:
            self._refuse(request, UnknownQueue.code, f"this peer knows no pub-sub queue {queue!r}; nothing was changed")
            return
        held.lookup(request, lane, write_id, since=since)
        self._touch(queue)

    def command(self, request: int, kind: int, control: bytes, *, write_id: bytes, now: float) -> None:
        """Write an entry of the metadata lane; it is forwarded to the coordinator."""
        self.now = now
        self.metadata.write(request, Write(kind, write_id, control=control), now)
        self.mux.touched[METADATA_LANE] = self.metadata
        self._follow_metadata()

    def reach(self, request: int, number: int, *, level: str, version: int, now: float) -> None:
        """Answers Done(1, the lane's end here) once this peer may serve the lane at that read level."""
        self.now = now
        lane = self.lanes.get(number)
        if lane is None:
            self._reach_pubsub(request, number, level=level, version=version)
            return
        if self.mux.full and level != "local":
            self._refuse(request, Offline.code, "this peer's disk is full, so its copy lags; read from another peer")
        elif level == "linearizable":
            lane.read(request, now)
        elif level == "at_least" and lane.state.end < version and not lane.core.online(now):
            reason = "this peer cannot reach a quorum of the lane's voters, so its copy lags; read from another peer"
            self._refuse(request, Offline.code, reason)
        elif level == "at_least":
            lane.read_at_least(request, version)
        else:
            lane.read_local(request)
        self.mux.touched[number] = lane

    def _reach_pubsub(self, request: int, number: int, *, level: str, version: int) -> None:
        held = self.queue_of(number)
        if held is None:
            self._refuse(request, Offline.code, f"this peer does not hold lane {number}; read from another peer")
        elif level == "linearizable":
            reason = "the lanes of a pub-sub queue have no common order; read `local`, or `at_least` a version"
            self._refuse(request, InvalidRequest.code, reason)
        else:
            self._reaching[request] = number
            held.read_at_least(request, {number: version if level == "at_least" else 0})
            self._touch(held.queue)

    def cancel(self, request: int, *, lane: int | None = None) -> None:
        """The client does not wait for the answer any more. A write may still happen. `lane`: of the request, if
        known."""
        self._reaching.pop(request, None)
        asked = self.lanes.get(lane) or self.queue_of(lane) if lane is not None else None
        for component in (asked,) if asked is not None else self.mux.components.values():
            component.cancel(request)

    # ------------------------------------------------------------------ what clients read

    def read(self, number: int, *, after: int, max_count: int, max_bytes: int) -> list[Served]:
        """Visible messages after a version. Raises Trimmed, InvalidRequest, Offline, StorageDamaged.

        A read that finds damaged entries starts to copy them again from other peers.
        """
        lane, held = self.lanes.get(number), self.queue_of(number)
        try:
            if lane is not None:
                after = min(after, lane.state.end)
                return read_ranges(lane.state.ranges(after, max_count), lane.entries, max_bytes=max_bytes)
            if held is not None:
                return read_ranges(held.ranges(number, after, max_count), held.reader(number), max_bytes=max_bytes)
        except StorageDamaged as damage:
            if len(self.metadata.state.voters) == 1:
                raise
            raise Offline(f"{damage}. This peer is copying it again; read from another peer") from damage
        raise Offline(f"this peer does not hold lane {number}; read from another peer")

    def places(self, number: int, *, after: int, max_count: int) -> list[tuple[VisibleRange, Place]]:
        """Like `read`, but returns where in the files the messages are; empty: use `read`. For two-phase queues only,
        whose files contain exactly what the lane shows. Raises Trimmed."""
        lane = self.lanes.get(number)
        if lane is None:
            return []
        find = partial(self.disk.places, number)
        return place_ranges(lane.state.ranges(min(after, lane.state.end), max_count), find)

    def peek(self, number: int, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """A message by its version id, committed or not: (entry, offset in it, committed, peers that stored it)."""
        lane = self.lanes.get(number)
        if lane is not None:
            return lane.peek_version(version)
        held = self.queue_of(number)
        return held.peek(number, version) if held is not None else None

    def queue_of(self, number: int) -> PubSubQueue | None:
        """The pub-sub queue that a lane belongs to."""
        lane = self.metadata.state.lanes.by_number.get(number)
        return self.pubsub.get(lane.queue) if lane is not None else None

    # ------------------------------------------------------------------ answers

    def collect(self, answers: list[tuple[int, Answer]]) -> None:
        """Hand on the answers of a component."""
        for request, answer in answers:
            if request < OWN_REQUESTS:
                lane = self._reaching.pop(request, 0) if self._reaching else 0
                if isinstance(answer, Reached):
                    answer = Done(1, answer.versions.get(lane, 0))
                self.answers.append((request, answer))
            elif self.transactions.takes(request):
                self.transactions.on_answer(request, answer)
            elif request in self._proposals:
                name, proposal = self._proposals.pop(request)
                if name in self.pubsub:
                    self.pubsub[name].on_answer(proposal, answer, self.now)
                    self.mux.touch(self.pubsub[name].route)
            else:
                self.housekeeping.on_answer(request, answer)

    # ------------------------------------------------------------------ following the metadata lane

    def _follow_metadata(self) -> None:
        """Open queues before the facts are passed on: a fact is about a lane of a queue."""
        metadata = self.metadata
        if metadata.applied != self._followed_to:
            self._followed_to = metadata.applied
            self.peers.raise_to(metadata.state.level)
            self.queues.follow(metadata)
        if metadata.facts:
            facts = metadata.take_facts()
            for held in self.pubsub.values():
                held.learn(facts, metadata.state.voters, self.now)
                self.mux.touched[held.route] = held
        if self.pubsub:
            served = self.lane_set.queues_by_route
            for route in [route for route in self.mux.touched if route in served]:
                self._serve_queue(served[route])

    def _serve_queue(self, held: PubSubQueue) -> None:
        """Write the queue's proposals to the metadata lane, and begin the next run if it needs one."""
        for proposal, kind, control in held.take_proposals():
            self._request += 1
            self._proposals[self._request] = (held.queue, proposal)
            self.metadata.write(self._request, Write(kind, b"", control=control), self.now)
            self.mux.touched[METADATA_LANE] = self.metadata
        if held.wants_run and not self._runs.starting:
            self.mux.saves.append(SaveRun(self._runs.begin()))

    def _run_is_durable(self, run: int) -> None:
        self._runs.durable(run)
        for held in self.pubsub.values():
            held.new_run(run)
            self.mux.touched[held.route] = held

    # ------------------------------------------------------------------ for housekeeping

    def propose(self, kind: int, control: bytes, now: float) -> int:
        """Write a command of this peer to the metadata lane; returns its request number."""
        self._request += 1
        self.command(self._request, kind, control, write_id=b"", now=now)
        return self._request

    def confirm(self, now: float) -> int:
        """Begin a linearizable read of the metadata lane; returns its request number."""
        self._request += 1
        self.metadata.read(self._request, now)
        self.mux.touched[METADATA_LANE] = self.metadata
        return self._request

    @property
    def loss_is_unbounded(self) -> bool:
        return self.lane_set.loss_is_unbounded

    def bound_loss(self) -> None:
        self.lane_set.bound_loss()

    def next_request(self) -> int:
        """The number of another request of this peer's own."""
        self._request += 1
        return self._request

    def touch(self, number: int) -> None:
        self.mux.touch(number)

    def serve(self, queue: str) -> None:
        """A pub-sub queue has something to propose."""
        self._touch(queue)

    # ------------------------------------------------------------------ internal

    def _touch(self, queue: str) -> None:
        held = self.pubsub[queue]
        self.mux.touched[held.route] = held
        self._serve_queue(held)

    def _refuse(self, request: int, code: str, reason: str) -> None:
        self.answers.append((request, Refusal(code, reason=reason)))

    def lane_view(self, number: int) -> LaneView | None:
        return lane_view(self, number, self.now)

    def status(self) -> dict[str, Any]:
        """This peer's view of the cluster, for people and programs."""
        now, state = self.now, self.metadata.state
        return {
            "peer": self.me,
            "incarnation": self.incarnation,
            "metadata": metadata_view(self.metadata, now),
            "peers": [
                {
                    "number": info.number,
                    "identity": info.identity.hex(),
                    "link": info.link,
                    "api": info.api,
                    "state": info.state,
                    "voter": info.number in state.voters,
                    "heard_ms": 0 if info.number == self.me else heard_ms(self, info.number, now),
                }
                for info in state.peers.by_number.values()
            ],
            "lanes": [to_builtins(view) for view in lane_views(self, now)],
            "disk_full": self.mux.full,
            "level": state.level,
            "not_understood": [{"lane": lane, "reason": why} for lane, why in sorted(self.not_understood.items())],
        }

    def statistics(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "lanes": len(self.lanes),
            "pubsub_queues": len(self.pubsub),
            "ticked": self.mux.due.taken,
            "claiming": len(self.peers.claiming),
            "waiting_syncs": len(self.mux.outstanding),
            "disk_full": self.mux.full,
        }
