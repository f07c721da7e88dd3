"""Branches that are messages of a queue of this cluster: written through the node, each exactly once.

The write id is made of the pledge and the branch, so a lane recognizes a repetition, as long as it remembers the id. It
remembers the last tens of thousands. A repetition may come much later: a queue was missing for an hour, a peer was
down. So every write says since when its id may have been used, and a lane that cannot know any more says so. Then the
lane itself is read, from its end back to that time: the id is in it, or it is not.

Pub-sub queues have no such memory over all their lanes and are refused, as are queues that this peer does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from crc32c import crc32c

from avow.errors import InvalidRequest, NotCoordinator, Offline, Unknown, UnknownQueue
from avow.limits import INTERNAL_QUEUE_PREFIX, MERGEABLE_SIZE_BYTES_MAX, MIB
from avow.peer.answers import Answer, Done, Lost
from avow.peer.http.errors import error_of_answer
from avow.peer.lane import Write
from avow.peer.pledges.host import PAUSE_S, PAUSE_S_MAX, Host, ask, is_passing
from avow.queue.catalog import Queue
from avow.queue.lanes import lane_for
from avow.wire.batch import encode_batch
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry, Kind
from avow.wire.record import unpack_entry

CLOCKS_MS: Final = 600_000  # by so much a client's clock may be ahead of or behind this one
LOOK_COUNT: Final = 4_000  # versions looked at before others get their turn


class QueueBranches:
    """What `queue://` branches are done with: see `avow.pledge.branches.queues.Enqueue`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def check(self, name: str) -> Queue:
        """Raises UnknownQueue, InvalidRequest, NotCoordinator; Offline while this peer may not know of it yet."""
        if name.startswith(INTERNAL_QUEUE_PREFIX):
            raise InvalidRequest(f"queue {name!r} is the cluster's own: nothing is written to it by a branch")
        metadata = self._host.node.metadata
        queue = metadata.state.catalog.by_name.get(name)
        if queue is None:
            metadata.check_current(self._host.now())
            raise UnknownQueue(f"there is no queue {name!r}; create it, and the branch is delivered")
        if queue.strategy != "two-phase":
            raise InvalidRequest(f"queue {name!r} is pub-sub; a branch is delivered exactly once to two-phase queues")
        if queue.peers and self._host.number not in queue.peers:
            raise NotCoordinator(f"queue {name!r} is held by peers {list(queue.peers)} only, not by this one")
        return queue

    async def __call__(
        self, *, queue: str, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes, since_ms: int
    ) -> None:
        """Until it is there; whoever waits for it sets a limit. Raises what `check` does, Offline, Unknown."""
        found = self.check(queue)
        lane = lane_for(key, found.lanes) if key else crc32c(write_id) % found.lanes
        number, entry = found.first_lane + lane, self._entry(value, key, headers, write_id)
        host, pause_s, used_since_ms = self._host, PAUSE_S, since_ms
        while True:
            age_ms = max(1, host.now_ms() - used_since_ms) if used_since_ms else 0
            answer = await self._write(number, entry, age_ms)
            if isinstance(answer, Done):
                return
            if not is_passing(answer):
                raise error_of_answer(answer)
            if isinstance(answer, Lost):
                with suppress(Offline):
                    if await self._is_there(number, write_id, since_ms):
                        return
                    used_since_ms = 0  # it is not: what this call itself has on its way the lane remembers
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _entry(self, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes) -> Entry:
        record = encode_batch(
            [value],
            keys=[key] if key else None,
            headers=[[(name, text.encode()) for name, text in headers.items()]] if headers else None,
            write_id=write_id,
            created_ms=self._host.now_ms(),
        )
        return unpack_entry(bytes(record), verify=False)

    async def _write(self, number: int, entry: Entry, age_ms: int) -> Answer:
        host = self._host
        write = Write(
            Kind.DATA,
            entry.write_id,
            entry.count,
            created_ms=entry.created_ms,
            batch=entry.batch,
            mergeable=len(entry.batch) <= MERGEABLE_SIZE_BYTES_MAX,
            age_ms=age_ms,
        )
        return await ask(host, lambda request: host.node.write(request, number, write, host.now()))

    # ------------------------------------------------------------------ a lane that has forgotten

    async def _is_there(self, number: int, write_id: bytes, since_ms: int) -> bool:
        """Raises Unknown where that cannot be found out any more, Offline where it cannot now."""
        host = self._host
        answer = await ask(
            host,
            lambda request: host.node.reach(request, number, level="linearizable", version=0, now=host.now()),
            lane=number,
        )
        if not isinstance(answer, Done):
            raise Offline("no quorum confirms the queue's lane; it is asked again")
        lane = host.node.lanes[number]
        known = lane.state.outcome_of(write_id)
        if known is not None:
            return not known.code
        if lane.state.write_ids.whole:
            return False
        return await self._is_in(number, answer.last_version, write_id, since_ms)

    async def _is_in(self, number: int, end: int, write_id: bytes, since_ms: int) -> bool:
        node = self._host.node
        while end > (trimmed_to := node.lanes[number].state.trimmed_to):
            after = max(trimmed_to, end - LOOK_COUNT)
            youngest_ms = 0
            at = after
            while at < end:
                served = node.read(number, after=at, max_count=end - at, max_bytes=4 * MIB)
                for item in served:
                    if item.entry.write_id == write_id or any(w[0] == write_id for w in merged_writes(item.entry)):
                        return True
                    youngest_ms = max(youngest_ms, item.entry.created_ms)
                at = served[-1].first_version + served[-1].count - 1 if served else end
                await asyncio.sleep(0)
            if youngest_ms < since_ms - CLOCKS_MS:
                return False
            end = after
        if trimmed_to:
            raise Unknown("what the queue was given at that time was removed from it; whether this was is not known")
        return False
