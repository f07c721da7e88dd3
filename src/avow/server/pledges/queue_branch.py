"""Branches that write a message to a queue of this cluster, through the node and exactly once.

The write id is made from the pledge and the branch, so a lane recognizes a repeated write as long as it remembers the
id. It remembers the last tens of thousands. A repetition may come much later, for example when a queue did not exist or
a peer was down for an hour. So every write says since when its id may have been in use, and a lane that does not
remember back to that time says so. Then the lane is searched for the id, from its end back to that time.

Pub-sub queues do not remember ids over all their lanes and are refused, as are queues that this peer does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from crc32c import crc32c

from avow.errors import InvalidRequest, NotCoordinator, Offline, Unknown, UnknownQueue
from avow.limits import INTERNAL_QUEUE_PREFIX, MERGEABLE_SIZE_BYTES_MAX, MIB
from avow.node.answers import Answer, Done, Lost, error_of_answer
from avow.node.lane.two_phase_lane import Write
from avow.node_client import Host, ask, decided, step_of_answer
from avow.queue.key_to_lane import lane_for
from avow.queue.records import Queue
from avow.wire.batch import encode_batch
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry, Kind
from avow.wire.record import unpack_entry
from avow.writer.steps import Step, Verdict

CLOCK_SKEW_MS: Final = 600_000  # tolerated difference between a client's clock and this one
SEARCH_COUNT: Final = 4_000  # versions searched in one step, from the end backwards


class QueueBranches:
    """Implements `avow.pledge.branches.queue.Enqueue` for `queue://` branches."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def check(self, name: str) -> Queue:
        """Raises UnknownQueue, InvalidRequest, NotCoordinator; Offline while this peer's catalog may be out of date."""
        if name.startswith(INTERNAL_QUEUE_PREFIX):
            raise InvalidRequest(f"queue {name!r} belongs to the cluster; a branch cannot write to it")
        metadata = self._host.node.metadata
        queue = metadata.state.catalog.by_name.get(name)
        if queue is None:
            metadata.check_current(self._host.now())
            raise UnknownQueue(f"there is no queue {name!r}; the branch is delivered when it is created")
        if queue.strategy != "two-phase":
            raise InvalidRequest(f"queue {name!r} is pub-sub; branches can write to two-phase queues only")
        if queue.peers and self._host.number not in queue.peers:
            raise NotCoordinator(
                f"queue {name!r} is held by peers {list(queue.peers)}, not by this one; use one of them"
            )
        return queue

    async def __call__(
        self, *, queue: str, value: bytes, key: bytes, headers: Mapping[str, str], write_id: bytes, since_ms: int
    ) -> None:
        """Writes the message; the caller sets the time limit. Raises what `check` does, Offline, Unknown."""
        found = self.check(queue)
        lane = lane_for(key, found.lanes) if key else crc32c(write_id) % found.lanes
        number, entry = found.first_lane + lane, self._entry(value, key, headers, write_id)
        host, used_since_ms = self._host, since_ms

        async def attempt() -> tuple[Answer, bool]:
            """The answer, and whether a search found the message in the lane."""
            nonlocal used_since_ms
            age_ms = max(1, host.now_ms() - used_since_ms) if used_since_ms else 0
            answer = await self._write(number, entry, age_ms)
            if isinstance(answer, Lost):
                with suppress(Offline):
                    if await self._is_there(number, write_id, since_ms):
                        return answer, True
                    used_since_ms = 0  # not found; the lane remembers the writes of this call itself
            return answer, False

        def judge(found: tuple[Answer, bool]) -> Step:
            return Step.DONE if found[1] else step_of_answer(found[0])

        (answer, _), verdict = await decided(host, attempt, judge)
        if verdict is not Verdict.DONE:
            raise error_of_answer(answer)

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

    # ------------------------------------------------------------------ search in the lane

    async def _is_there(self, number: int, write_id: bytes, since_ms: int) -> bool:
        """Raises Unknown when it can no longer be determined, Offline when it cannot be at present."""
        host = self._host
        answer = await ask(
            host,
            lambda request: host.node.reach(request, number, level="linearizable", version=0, now=host.now()),
            lane=number,
        )
        if not isinstance(answer, Done):
            raise Offline("no quorum confirms the state of the queue's lane; the branch will be retried")
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
            after = max(trimmed_to, end - SEARCH_COUNT)
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
            if youngest_ms < since_ms - CLOCK_SKEW_MS:
                return False
            end = after
        if trimmed_to:
            raise Unknown(
                "the queue's messages of that time were trimmed, so it is unknown whether this one was written"
            )
        return False
