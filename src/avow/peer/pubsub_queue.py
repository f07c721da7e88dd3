"""A pub-sub queue as the clients of one peer see it: writes, lookups, reads, subscriber cursors.

What a client may conclude. A write is bound to one lane, by the client (`lane=`) or by where it arrived. `Stored` names
the lane at once, `Done` says committed. LANE_ENDED is definite for that lane: the write is not in it and never will be,
so it may be sent elsewhere. After an answer that did not come, the client asks this run again with the same lane and
write id, or asks any peer with `lookup` once the owner is gone; while nobody can know yet that answers OFFLINE. Writing
to another lane before one of these was definite is how a message gets in twice, and no peer could notice.

    write     own lane holds the write id          wait for it, or its outcome at once
              bound to a lane of an earlier run    as `lookup`
              bound to a lane closed in this run   LANE_ENDED: only this process could have put it there
    lookup    readable here                        Done
              lane ended, held to its end          Done or LANE_ENDED
              anything else                        OFFLINE: ask again, or ask another peer

Order is per lane and versions are vectors {lane: version}. There is no common end, so `expected` and linearizable reads
are refused with a reason; a reader who must see its own writes names them (`read_at_least`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from avow.errors import InvalidRequest, LaneEnded, Offline, Refused, TooMany
from avow.limits import WAITING_REQUESTS_MAX
from avow.peer.answers import Answer, Done, Reached, Refusal, Stored
from avow.peer.lane import Write
from avow.peer.pubsub_run import PubSubRun
from avow.queue.commands import LaneCursorsCommand, encode
from avow.replication.membership import Members
from avow.replication.pubsub.lane import Read
from avow.replication.tuning import Tuning
from avow.storage.store import StoreImage
from avow.wire.messages import Kind


class PubSubPeer(PubSubRun):
    def __init__(
        self,
        *,
        me: int,
        queue: str,
        image: StoreImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        snapshot_every: int = 0,
        read: Read | None = None,
    ) -> None:
        super().__init__(
            me=me,
            queue=queue,
            image=image,
            rng=rng,
            tuning=tuning,
            now=now,
            snapshot_every=snapshot_every,
            read=read,
        )
        self._waiting: dict[int, dict[int, list[int]]] = {}  # own lane -> position -> requests
        self._at_least: list[tuple[int, dict[int, int]]] = []

    # ------------------------------------------------------------------ writes

    def write(self, request: int, write: Write, now: float, *, lane: int = 0) -> None:
        """Append to the own lane; `lane` other than 0 binds the write to that one, which is what a retry needs."""
        self._now = now
        if write.expected >= 0:
            reason = "a pub-sub queue has no single end to compare with; nothing was stored. Leave `expected` out"
            self.answers.append((request, Refusal(InvalidRequest.code, reason=reason)))
            return
        held_in = self._find_mine(lane, write.write_id)
        if held_in:
            self._join(request, held_in, self.core.find(held_in, write.write_id))
        elif lane and lane not in self._mine:
            self.lookup(request, lane, write.write_id)
        elif lane and lane != self.core.own_lane:
            self.answers.append((request, Refusal(LaneEnded.code)))  # only this process could have put it there
        else:
            self._enqueue(request, write, now)
        if self.core.has_news:
            self._take_news()

    def _find_mine(self, lane: int, write_id: bytes) -> int:
        """The lane of this process that holds the write; 0: none. Without a lane, all of them are searched."""
        for number in (lane,) if lane else reversed(self._mine):
            if number in self._waiting and self.core.find(number, write_id) is not None:
                return number
        return 0

    def _enqueue(self, request: int, write: Write, now: float) -> None:
        core = self.core
        lane = core.own_lane
        if lane is None or not self.running or len(self._waiting[lane]) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Refusal(Offline.code)))
            return
        try:
            position = core.enqueue(
                write.kind,
                count=write.count,
                write_id=write.write_id,
                now=now,
                created_ms=write.created_ms,
                control=write.control,
                batch=write.batch,
            )
        except Refused as error:
            self.answers.append((request, Refusal(error.code, reason=str(error))))
            return
        self._join(request, lane, position)

    def _join(self, request: int, lane: int, position: int | None) -> None:
        """Wait for what is on its way, or hear the outcome if it is known."""
        assert position is not None
        first, last = self._versions_at(lane, position)
        if self.core.lookup(lane, position)[1]:
            self.answers.append((request, Done(first, last)))
            return
        self.answers.append((request, Stored(lane, first)))
        self._waiting[lane].setdefault(position, []).append(request)

    def lookup(self, request: int, lane: int, write_id: bytes) -> None:
        """What became of a write whose owner may be gone: Done, LANE_ENDED, or OFFLINE while that is open."""
        answer: Answer = Refusal(Offline.code, reason=f"what became of lane {lane} is not known here yet; ask again")
        if lane in self._versions:
            position = self.core.find(lane, write_id)
            if position is not None and position <= self.core.readable_to(lane):
                answer = Done(*self._versions_at(lane, position))
            elif position is None and self.core.ended_here(lane):
                answer = Refusal(LaneEnded.code)
        self.answers.append((request, answer))

    # ------------------------------------------------------------------ reads, cursors, membership

    def read_local(self, request: int) -> None:
        """What this peer shows of each lane; may lag."""
        self.answers.append((request, Reached(dict(self.readable))))

    def read_at_least(self, request: int, versions: Mapping[int, int]) -> None:
        """Answered once this peer shows that much of each lane: the reader's own writes, and never less than before."""
        if self._reached(versions):
            self.read_local(request)
        elif len(self._at_least) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Refusal(TooMany.code)))
        elif beyond := [lane for lane, version in versions.items() if self._ends_below(lane, version)]:
            reason = f"lanes {beyond} ended before the versions asked for, which were never committed"
            self.answers.append((request, Refusal(InvalidRequest.code, reason=reason)))
        else:
            self._at_least.append((request, dict(versions)))

    def read(self, request: int, now: float) -> None:  # noqa: ARG002
        reason = "lanes of a pub-sub queue have no common order; read `local`, or `at_least` a cursor"
        self.answers.append((request, Refusal(InvalidRequest.code, reason=reason)))

    def move_cursor(
        self, request: int, subscriber: str, versions: Mapping[int, int], *, write_id: bytes, now: float
    ) -> None:
        """A subscriber has dealt with everything up to these versions: an entry of the metadata lane."""
        command = LaneCursorsCommand(self.queue, subscriber, tuple(sorted(versions.items())))
        self._write_metadata(request, Write(Kind.CURSOR, write_id, control=encode(command)), now)

    def cursor(self, subscriber: str) -> dict[int, int]:
        queue = self.metadata.state.queue(self.queue)
        found = queue.subscribers.get(subscriber) if queue is not None else None
        return dict(found.versions) if found is not None else {}

    def change_members(self, request: int, wanted: Members) -> None:
        self.metadata.change_members(request, wanted)
        self._follow_metadata()

    def _write_metadata(self, request: int, write: Write, now: float) -> None:
        self._now = now
        if not self.running:
            self.answers.append((request, Refusal(Offline.code)))
            return
        self.metadata.write(request, write, now)
        self._follow_metadata()

    def _reached(self, versions: Mapping[int, int]) -> bool:
        readable = self.readable
        return all(readable.get(lane, 0) >= version for lane, version in versions.items())

    def _ends_below(self, lane: int, version: int) -> bool:
        return self.core.ended_here(lane) and self.readable.get(lane, 0) < version

    # ------------------------------------------------------------------ what the lanes say

    def _own_opened(self, lane: int) -> None:
        self._waiting[lane] = {}

    def _accepted(self, lane: int, to: int) -> None:
        if self.on_accepted is not None:
            self.on_accepted(lane, to)
        waiting = self._waiting[lane]  # in the order of positions: whoever joins later joins one that is there
        while waiting and (position := next(iter(waiting))) <= to:
            done = Done(*self._versions_at(lane, position))
            self.answers += [(request, done) for request in waiting.pop(position)]

    def _refused_beyond(self, lane: int, end: int) -> None:
        waiting = self._waiting[lane]
        for position in [position for position in waiting if position > end]:
            self.answers += [(request, Refusal(LaneEnded.code)) for request in waiting.pop(position)]

    def _shown(self) -> None:
        if self._at_least:
            ready = [request for request, versions in self._at_least if self._reached(versions)]
            self._at_least = [item for item in self._at_least if item[0] not in ready]
            for request in ready:
                self.read_local(request)

    # ------------------------------------------------------------------ what others may ask

    @property
    def open_lane(self) -> int:
        """The lane a write would go to now; 0: none. A client binds its write to it before it sends."""
        lane = self.core.own_lane
        return lane if lane is not None and self.core.open_voters() else 0

    def statistics(self) -> dict[str, object]:
        return {
            "incarnation": self.incarnation,
            "running": self.running,
            "waiting_writes": sum(map(len, self._waiting.values())),
            "waiting_reads": len(self._at_least),
            "proposals": [(Kind.NAMES[kind], number) for kind, number in self._proposals],
            **self.core.statistics(),
        }
