"""What became of the records that a failed channel was carrying: each is found or made done, in its order.

A channel that is over leaves records that may be in the queue. Each has a write id, so the ways of single writes apply:

    two-phase   It is written again, through whichever peer answers, with the same id and with its age. A known id is
                answered with its outcome; an unknown one is stored now. One after the other in each lane, since two
                that are on their way together could change places.
    pub-sub     It may be in the lane it was bound to. It is repeated there, or asked about, until it is known to be
                there or never to be. In the second case it is free: `maybe` no more, it waits for the next channel.

Records that never left are not touched. New ones wait until all is settled: that is the price of keeping their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from avow.client.batching import Batch, Room
from avow.client.outcomes import Done, Span, final
from avow.client.pubsub_settling import what_became
from avow.client.sending import LaneSender
from avow.errors import AvowError

if TYPE_CHECKING:
    from avow.client.cluster import Cluster
    from avow.client.outbox import Outbox
    from avow.client.window import Sent


class Settling:
    """`on_done` is called for each record that is in the queue. `coordinators`, by lane, are kept up to date."""

    def __init__(
        self, cluster: Cluster, outbox: Outbox, *, coordinators: dict[int, int], on_done: Callable[[Sent], None]
    ) -> None:
        self._cluster, self._outbox, self._on_done = cluster, outbox, on_done
        self.coordinators = coordinators

    async def settle(self, records: Sequence[Sent]) -> None:
        """Those of them that are `maybe`. Raises when the time of one is over, or it is refused; others may be done."""
        maybes = [sent for sent in records if sent.maybe]
        if not maybes:
            return
        info = await self._outbox.known()
        if info.pubsub:
            await self._settle_bound(maybes)
            return
        by_lane: dict[int, list[Sent]] = {}
        for sent in maybes:
            by_lane.setdefault(sent.lane, []).append(sent)
        ended = await asyncio.gather(
            *(self._settle_lane(lane, found) for lane, found in by_lane.items()), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    def _batch(self, sent: Sent) -> Batch:
        deadline = monotonic() + self._cluster.timeout_s
        batch = Batch.of_record(sent.record, count=sent.count, write_id=sent.write_id, deadline=deadline)
        batch.maybe, batch.sent_at, batch.since = True, sent.sent_at, sent.since
        return batch

    # ----------------------------------------------------------------- two-phase

    async def _settle_lane(self, lane: int, records: Sequence[Sent]) -> None:
        loop = asyncio.get_running_loop()

        def wake(sender: LaneSender) -> None:
            loop.call_soon(sender.pump)

        sender = LaneSender(
            self._cluster,
            queue=self._outbox.queue,
            lane=lane,
            coordinator=self.coordinators.get(lane, 0),
            room=Room(),
            seen=self._outbox.seen,
            wake=wake,
        )
        try:
            for sent in records:
                await self._write(sender, sent)
                self._on_done(sent)
        finally:
            sender.close()
            self.coordinators[lane] = sender.coordinator

    async def _write(self, sender: LaneSender, sent: Sent) -> Done:
        batch = self._batch(sent)
        assert batch.whole is not None
        sender.pending.add(batch)
        return await batch.whole

    # ------------------------------------------------------------------- pub-sub

    async def _settle_bound(self, records: Sequence[Sent]) -> None:
        owners = await self._owners()
        for sent in records:
            batch = self._batch(sent)
            owner = self._cluster.by_number(owners.get(sent.lane, 0))
            found = await what_became(self._cluster, batch, queue=self._outbox.queue, lane=sent.lane, owner=owner)
            if isinstance(found, Span):
                self._outbox.seen[found.lane] = max(found.last_version, self._outbox.seen.get(found.lane, 0))
                self._on_done(sent)
            elif found is not None:
                sent.maybe, sent.sent_at = False, 0.0
            else:
                error: AvowError = batch.error or batch.never_sent(self._cluster.timeout_s)
                raise final(error, maybe=True, write_id=sent.write_id, lane=sent.lane)

    async def _owners(self) -> dict[int, int]:
        """By lane, as any peer knows them."""
        info = await self._outbox.asked()
        return {lane.lane: lane.owner for lane in info.lanes if lane.owner is not None}
