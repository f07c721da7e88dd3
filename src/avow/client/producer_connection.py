"""Sends a producer's records over a channel, and replaces a failed channel by one to another peer.

    connect ───► connected: give waiting records, issue commits, release acknowledged records
       ▲            │ the channel ends: the peer died or shuts down, lost its quorum, its lane ended, ...
       └─ resolve ◄─┘ find the outcome of records that may be stored, in order

Choice of the peer: for a two-phase queue the one that coordinates most of its lanes, as far as known; for a pub-sub
queue any that has an open lane, to which records are bound when they are given. A peer that keeps the socket open but
acknowledges nothing counts as failed after a few seconds; the timeout doubles for consecutive failures.

The producer fails if no record reaches the queue for the client's timeout, or if a peer refuses in a way that every
peer would. An idle producer that lost its channel opens the next one when it is needed.

A channel that ends leaves records that may be in the queue (`maybe`). Each has a write id, so its outcome is found like
that of a single write:

    two-phase   It is written again through any peer, with the same id and its age. A known id is answered with its
                outcome; an unknown one is stored now. One at a time per lane, because two in flight could be reordered.
    pub-sub     It may be in the lane it was bound to. It is repeated there, or looked up, until it is known to be in
                the lane or never to be. In the second case it is no longer `maybe`, and waits for the next channel.

Records that were never sent are not touched. New ones wait until all outcomes are known, which preserves their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from avow.channel.protocol.events import Bounds
from avow.client.batches import Batch, ByteBudget
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.client.descriptions import queue_path
from avow.client.lane_sender import LaneSender
from avow.client.outcomes import Done, Span, final
from avow.client.pubsub_sender import open_lane
from avow.client.pubsub_unresolved import ASK_S, resolve
from avow.errors import AvowError, ChannelFailed, InvalidRequest, Offline

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.batches import WriteBuffer
    from avow.client.cluster import Cluster
    from avow.client.descriptions import QueueInfo
    from avow.client.peer_connection import PeerConnection
    from avow.client.pending_store import PendingRecordStore
    from avow.client.window import ProducerRecord, Window


class UnresolvedRecords:
    """Finds the outcome of records that may be in the queue. `on_done` is called for each record that is.

    `coordinators`, by lane, is kept up to date.
    """

    def __init__(
        self,
        cluster: Cluster,
        buffer: WriteBuffer,
        *,
        coordinators: dict[int, int],
        on_done: Callable[[ProducerRecord], None],
    ) -> None:
        self._cluster, self._buffer, self._on_done = cluster, buffer, on_done
        self.coordinators = coordinators

    async def resolve(self, records: Sequence[ProducerRecord]) -> None:
        """Process the records that are `maybe`. Raises if one is refused or exceeds its deadline; others may be
        done."""
        maybes = [sent for sent in records if sent.maybe]
        if not maybes:
            return
        info = await self._buffer.known()
        if info.pubsub:
            await self._resolve_bound(maybes)
            return
        by_lane: dict[int, list[ProducerRecord]] = {}
        for sent in maybes:
            by_lane.setdefault(sent.lane, []).append(sent)
        ended = await asyncio.gather(
            *(self._resolve_lane(lane, found) for lane, found in by_lane.items()), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    def _batch(self, sent: ProducerRecord) -> Batch:
        deadline = monotonic() + self._cluster.timeout_s
        batch = Batch.of_record(sent.record, count=sent.count, write_id=sent.write_id, deadline=deadline)
        batch.maybe, batch.sent_at, batch.since = True, sent.sent_at, sent.since
        return batch

    # ----------------------------------------------------------------- two-phase

    async def _resolve_lane(self, lane: int, records: Sequence[ProducerRecord]) -> None:
        loop = asyncio.get_running_loop()

        def wake(sender: LaneSender) -> None:
            loop.call_soon(sender.pump)

        sender = LaneSender(
            self._cluster,
            queue=self._buffer.queue,
            lane=lane,
            coordinator=self.coordinators.get(lane, 0),
            budget=ByteBudget(),
            seen=self._buffer.seen,
            wake=wake,
        )
        try:
            for sent in records:
                await self._write(sender, sent)
                self._on_done(sent)
        finally:
            sender.close()
            self.coordinators[lane] = sender.coordinator

    async def _write(self, sender: LaneSender, sent: ProducerRecord) -> Done:
        batch = self._batch(sent)
        assert batch.whole is not None
        sender.pending.add(batch)
        return await batch.whole

    # ------------------------------------------------------------------- pub-sub

    async def _resolve_bound(self, records: Sequence[ProducerRecord]) -> None:
        owners = await self._owners()
        for sent in records:
            batch = self._batch(sent)
            owner = self._cluster.by_number(owners.get(sent.lane, 0))
            found = await resolve(self._cluster, batch, queue=self._buffer.queue, lane=sent.lane, owner=owner)
            if isinstance(found, Span):
                self._buffer.seen[found.lane] = max(found.last_version, self._buffer.seen.get(found.lane, 0))
                self._on_done(sent)
            elif found is not None:
                sent.maybe, sent.sent_at = False, 0.0
            else:
                error: AvowError = batch.error or batch.never_sent(self._cluster.timeout_s)
                raise final(error, maybe=True, write_id=sent.write_id, lane=sent.lane)

    async def _owners(self) -> dict[int, int]:
        """The owner of each lane, as one peer knows them."""
        info = await self._buffer.asked()
        return {lane.lane: lane.owner for lane in info.lanes if lane.owner is not None}


SILENT_S: Final = 3.0  # without an expected acknowledgement; doubled each time in a row
SILENT_S_MAX: Final = 24.0
SINCE_S: Final = 1.0  # interval of asking for the end of a pub-sub lane
_COMMITS: Final = 4  # commits per full window, so that acknowledgements arrive while the rest is in flight


class Route(Struct, frozen=True):
    """A channel, its peer, and for pub-sub the lane that peer writes to."""

    channel: Channel
    peer: PeerConnection
    opened_at: float
    lane: int | None = None


class ProducerConnection:
    """Calls `on_progress` when records have reached the queue, and `on_fail` once, when no further attempt is made."""

    def __init__(
        self,
        cluster: Cluster,
        buffer: WriteBuffer,
        window: Window,
        *,
        on_progress: Callable[[], None],
        on_fail: Callable[[Exception], None],
    ) -> None:
        self._cluster, self._buffer, self._window = cluster, buffer, window
        self._on_progress, self._on_fail = on_progress, on_fail
        self._pending_store: PendingRecordStore | None = None
        self._pubsub = False
        self._coordinators: dict[int, int] = {}
        self._unresolved = UnresolvedRecords(cluster, buffer, coordinators=self._coordinators, on_done=self._resolved)
        self._bounds = Bounds(pending_count=window.count_max, pending_bytes=window.size_bytes_max)
        self._route: Route | None = None
        self._last: PeerConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost, self._needed = asyncio.Event(), asyncio.Event()
        self._refusal: AvowError | None = None  # the final error with which a channel ended
        self._wanted_to = self._given_to = self._committed_to = 0  # numbers of records
        self._uncommitted_count = self._uncommitted_bytes = 0
        self._since = 0  # pub-sub: a version that the lane of the route has reached
        self._troubled_at = 0.0  # time of the first failure since the last progress; 0: none
        self._moved_at = 0.0
        self._silences_count = self._channels_count = 0

    # ------------------------------------------------------------------ the producer

    async def begin(self, info: QueueInfo, store: PendingRecordStore | None) -> None:
        """Find the outcomes of records in the window, then connect to a peer."""
        self._pubsub, self._pending_store = info.pubsub, store
        self._coordinators.update({lane.lane: lane.coordinator or 0 for lane in info.lanes})
        self._troubled_at = monotonic()
        await self._recover()
        self._task = self._cluster.spawn(self._carry())

    @property
    def lane(self) -> int | None:
        """The lane that pub-sub records are bound to now."""
        return None if self._route is None else self._route.lane

    def pump(self) -> None:
        """Give waiting records to the channel until it is suspended, and issue requested commits."""
        route, window = self._route, self._window
        if route is None or route.channel.ended:
            self._needed.set()
            return
        channel, now = route.channel, monotonic()
        while window.waiting and not channel.suspended:
            sent = window.give()
            sent.sent_at, sent.since = now, self._since
            channel.send(sent.value)
            self._given_to = sent.number
            self._uncommitted_count += 1
            self._uncommitted_bytes += sent.size_bytes
            if self._due:
                self._commit(channel)
        if self._committed_to < min(self._wanted_to, self._given_to):
            self._commit(channel)

    @property
    def _due(self) -> bool:
        window = self._window
        return (
            self._uncommitted_count >= window.count_max // _COMMITS
            or self._uncommitted_bytes >= window.size_bytes_max // _COMMITS
        )

    def commit(self, number: int) -> None:
        """Request the acknowledgement of records up to this one."""
        self._wanted_to = max(self._wanted_to, number)
        self.pump()

    def _commit(self, channel: Channel) -> None:
        out = channel.core.out
        if out.acked == out.last_commit:
            self._moved_at = monotonic()
        channel.commit()
        self._committed_to = self._given_to
        self._uncommitted_count = self._uncommitted_bytes = 0
        self._cluster.watch(self._sweep)

    def halt(self) -> None:
        """Close the channel and make no further attempt. The producer hands back the unacknowledged messages."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        route, self._route = self._route, None
        if route is not None and route.channel.non_acked_message_count:
            route.channel.abort("the producer gave up")
        elif route is not None:
            route.channel.close()

    # ------------------------------------------------------------------ the channel

    def _acked(self, commit_id: int) -> None:  # noqa: ARG002
        route, window = self._route, self._window
        if route is None:
            return
        window.release(len(window.given) - route.channel.non_acked_message_count)
        self._moved_at = monotonic()
        self._silences_count = 0
        route.peer.answered()
        self._progress()

    def _resolved(self, sent: ProducerRecord) -> None:
        self._window.resolved(sent)
        self._progress()

    def _progress(self) -> None:
        self._troubled_at = 0.0
        self._on_progress()

    def _ended(self, failed: ChannelFailed | None) -> None:
        """Given records wait again. `_recover` finds out whether they were stored."""
        route, self._route = self._route, None
        if route is None:
            return
        self._window.take_back([] if failed is None else [one.fate for one in failed.pending])
        if not self._troubled_at or monotonic() - route.opened_at > SILENT_S:  # otherwise the same failure continues
            self._troubled_at = monotonic()
        error = None if failed is None else refusal_in(failed)
        if is_final(error):
            self._refusal = error
        self._lost.set()

    def _sweep(self, now: float) -> bool:
        """Abort a channel whose peer acknowledges nothing. The timeout doubles, in case the peer is only slow."""
        route = self._route
        if route is None or route.channel.ended:
            return False
        out = route.channel.core.out
        silent_s = min(SILENT_S * (1 << min(self._silences_count, 8)), SILENT_S_MAX)
        if out.acked < out.last_commit and now - self._moved_at >= silent_s:
            self._silences_count += 1
            route.peer.failed()
            route.channel.abort(f"nothing was acknowledged for {silent_s:g} s")
            return False
        return out.acked < out.last_commit

    # ------------------------------------------------------------------ from one to the next

    async def _carry(self) -> None:
        try:
            while True:
                await self._lost.wait()
                await self._recover()
        except asyncio.CancelledError:
            self._on_fail(InvalidRequest("the client was closed"))
            raise
        except Exception as error:
            self._on_fail(error)

    async def _recover(self) -> None:
        self._lost.clear()
        self._needed.clear()
        try:
            await self._unresolved.resolve(list(self._window.waiting))
        except AvowError as error:
            raise self._refusal or error from error
        if self._refusal is not None:
            raise self._refusal
        if not self._window and self._channels_count:
            self._troubled_at = 0.0
            await self._needed.wait()
        await self._connect()

    async def _connect(self) -> None:
        """Open a channel; gives up when the failure that began at `_troubled_at` has lasted for the client's
        timeout."""
        self._troubled_at = self._troubled_at or monotonic()
        while self._route is None:
            route = await open_somewhere(
                self._cluster,
                self._open,
                deadline=self._troubled_at + self._cluster.timeout_s,
                preferred=self._preferred(),
                after=self._last,
            )
            self._last = route.peer
            if not route.channel.ended:
                self._attach(route)

    def _preferred(self) -> int:
        """The peer that coordinates most lanes; 0 if none is known."""
        known = Counter(number for number in self._coordinators.values() if number)
        return known.most_common(1)[0][0] if known else 0

    async def _open(self, peer: PeerConnection) -> Route:
        lane = await self._open_lane(peer) if self._pubsub else None
        parameters = {"role": "producer", "queue": self._buffer.queue, "format": "records"}
        return Route(await open_at(self._cluster, peer, parameters, bounds=self._bounds), peer, monotonic(), lane)

    async def _open_lane(self, peer: PeerConnection) -> int:
        """Pub-sub: the lane this peer writes to. Its end (`since`) bounds how old a later write in it can be."""
        answer = await peer.call(b"GET", queue_path(self._buffer.queue), timeout_s=ASK_S)
        self._cluster.note(peer, answer)
        found, error = open_lane(answer)
        if found is None:
            raise error or Offline(f"{peer.address.url} has no open lane now; nothing was sent. Try another peer")
        lane, self._since = found
        return lane

    async def _keep_since(self, route: Route) -> None:
        """Keep `since` current. Peers forget old write ids; `since` distinguishes a new record from forgotten ones."""
        while self._route is route and route.lane is not None:
            await asyncio.sleep(SINCE_S)
            answer = await route.peer.call(b"GET", queue_path(self._buffer.queue), timeout_s=ASK_S)
            found, _ = open_lane(answer)
            if self._route is route and found is not None and found[0] == route.lane:
                self._since = max(self._since, found[1])

    def _attach(self, route: Route) -> None:
        self._route = route
        self._channels_count += 1
        self._committed_to = self._given_to = 0
        self._uncommitted_count = self._uncommitted_bytes = 0
        route.channel.on_acked, route.channel.on_resume, route.channel.on_end = self._acked, self.pump, self._ended
        if route.lane is not None:
            self._bind(route.lane)
            self._cluster.spawn(self._keep_since(route))
        if not self._window:
            self._troubled_at = 0.0
        self.pump()

    def _bind(self, lane: int) -> None:
        """Bind all waiting records to this lane. Changed bindings are stored before they are used."""
        waiting = list(self._window.waiting)
        changed = any(sent.lane != lane for sent in waiting)
        for sent in waiting:
            sent.bind(lane)
        if changed and self._pending_store is not None:
            self._pending_store.save(waiting)
            self._pending_store.release(self._window)

    def statistics(self) -> dict[str, Any]:
        route = self._route
        return {
            "channels": self._channels_count,
            "peer": None if route is None else route.peer.address.url,
            "lane": self.lane,
            "troubled": self._troubled_at > 0,
        }
