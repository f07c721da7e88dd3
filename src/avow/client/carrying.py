"""What carries a producer's records: a channel to one peer after another.

    connect ──► carried: waiting records are given, commits issued, acknowledged ones released
       ▲            │ the channel is over: the peer died, is going, lost its quorum, its lane ended, ...
       └── settle ◄─┘ what may have happened is found out, in order

Which peer: of a two-phase queue the one that coordinates most of its lanes, as far as that is known; of a pub-sub queue
any that has an open lane, to which the records are bound as they are given. A peer that keeps the socket open and
acknowledges nothing is as good as dead after a few seconds, more each time in a row.

Trouble that lasts longer than the client's timeout without any record reaching the queue ends it, and so does a refusal
that no other peer would make up for. An idle producer that lost its channel opens the next one when it needs it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from avow.channel.protocol import Bounds
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.client.metadata import queue_path
from avow.client.pubsub_sending import open_lane
from avow.client.pubsub_settling import ASK_S
from avow.client.settling import Settling
from avow.errors import AvowError, ChannelFailed, InvalidRequest, Offline

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.cluster import Cluster
    from avow.client.links import Link
    from avow.client.metadata import QueueInfo
    from avow.client.outbox import Outbox
    from avow.client.saved import Saved
    from avow.client.window import Sent, Window

SILENT_S: Final = 3.0  # without an acknowledgement that is waited for; twice as long each time in a row
SILENT_S_MAX: Final = 24.0
SINCE_S: Final = 1.0  # between two questions how far a pub-sub lane is
_COMMITS: Final = 4  # that a full window is divided by: acknowledgements come while the rest is on its way


class Route(Struct, frozen=True):
    """A channel, the peer it leads to, and for pub-sub the lane that peer writes to."""

    channel: Channel
    link: Link
    opened_at: float
    lane: int | None = None


class Carrier:
    """`on_progress`: something has reached the queue. `on_fail` is called once, when no further attempt is made."""

    def __init__(
        self,
        cluster: Cluster,
        outbox: Outbox,
        window: Window,
        *,
        on_progress: Callable[[], None],
        on_fail: Callable[[Exception], None],
    ) -> None:
        self._cluster, self._outbox, self._window = cluster, outbox, window
        self._on_progress, self._on_fail = on_progress, on_fail
        self._saved: Saved | None = None
        self._pubsub = False
        self._coordinators: dict[int, int] = {}
        self._settling = Settling(cluster, outbox, coordinators=self._coordinators, on_done=self._settled)
        self._bounds = Bounds(pending_count=window.count_max, pending_bytes=window.size_bytes_max)
        self._route: Route | None = None
        self._last: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost, self._needed = asyncio.Event(), asyncio.Event()
        self._refusal: AvowError | None = None  # that a channel ended with, and no other would be spared
        self._wanted_to = self._given_to = self._committed_to = 0  # numbers of records
        self._uncommitted_count = self._uncommitted_bytes = 0
        self._since = 0  # pub-sub: a version that the lane of the route has reached
        self._troubled_at = 0.0  # 0: all is well
        self._moved_at = 0.0
        self._silences_count = self._channels_count = 0

    # ------------------------------------------------------------------ the producer

    async def begin(self, info: QueueInfo, saved: Saved | None) -> None:
        """Settle what is in the window, and reach a peer."""
        self._pubsub, self._saved = info.pubsub, saved
        self._coordinators.update({lane.lane: lane.coordinator or 0 for lane in info.lanes})
        self._troubled_at = monotonic()
        await self._recover()
        self._task = self._cluster.spawn(self._carry())

    @property
    def lane(self) -> int | None:
        """The lane that pub-sub records are bound to now."""
        return None if self._route is None else self._route.lane

    def pump(self) -> None:
        """Give what waits to the channel, as much as it takes, and commit what was asked for."""
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
        """Records up to this one are to be acknowledged."""
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
        """Let go of the channel, and make no further attempt. What it carries is the producer's to hand back."""
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
        route.link.answered()
        self._progress()

    def _settled(self, sent: Sent) -> None:
        self._window.settled(sent)
        self._progress()

    def _progress(self) -> None:
        self._troubled_at = 0.0
        self._on_progress()

    def _ended(self, failed: ChannelFailed | None) -> None:
        """What was given waits again. Whether it has happened is for `_recover` to find out."""
        route, self._route = self._route, None
        if route is None:
            return
        self._window.take_back([] if failed is None else [one.fate for one in failed.pending])
        if not self._troubled_at or monotonic() - route.opened_at > SILENT_S:  # else it is the same trouble
            self._troubled_at = monotonic()
        error = None if failed is None else refusal_in(failed)
        if is_final(error):
            self._refusal = error
        self._lost.set()

    def _sweep(self, now: float) -> bool:
        """A peer that acknowledges nothing is given up; one that is slow, and not dead, is given more time."""
        route = self._route
        if route is None or route.channel.ended:
            return False
        out = route.channel.core.out
        silent_s = min(SILENT_S * (1 << min(self._silences_count, 8)), SILENT_S_MAX)
        if out.acked < out.last_commit and now - self._moved_at >= silent_s:
            self._silences_count += 1
            route.link.failed()
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
            self._on_fail(InvalidRequest("its client was closed"))
            raise
        except Exception as error:
            self._on_fail(error)

    async def _recover(self) -> None:
        self._lost.clear()
        self._needed.clear()
        try:
            await self._settling.settle(list(self._window.waiting))
        except AvowError as error:
            raise self._refusal or error from error
        if self._refusal is not None:
            raise self._refusal
        if not self._window and self._channels_count:
            self._troubled_at = 0.0
            await self._needed.wait()
        await self._connect()

    async def _connect(self) -> None:
        """Until the trouble has lasted too long: `_troubled_at` is when nothing was well last."""
        self._troubled_at = self._troubled_at or monotonic()
        while self._route is None:
            route = await open_somewhere(
                self._cluster,
                self._open,
                deadline=self._troubled_at + self._cluster.timeout_s,
                preferred=self._preferred(),
                after=self._last,
            )
            self._last = route.link
            if not route.channel.ended:
                self._attach(route)

    def _preferred(self) -> int:
        """The peer that coordinates most lanes; 0 if none is known."""
        known = Counter(number for number in self._coordinators.values() if number)
        return known.most_common(1)[0][0] if known else 0

    async def _open(self, link: Link) -> Route:
        lane = await self._open_lane(link) if self._pubsub else None
        parameters = {"role": "producer", "queue": self._outbox.queue, "format": "records"}
        return Route(await open_at(self._cluster, link, parameters, bounds=self._bounds), link, monotonic(), lane)

    async def _open_lane(self, link: Link) -> int:
        """Pub-sub: the lane this peer writes to. How far that is says how old a write in it can be."""
        answer = await link.call(b"GET", queue_path(self._outbox.queue), timeout_s=ASK_S)
        self._cluster.note(link, answer)
        found, error = open_lane(answer)
        if found is None:
            raise error or Offline(f"{link.address.url} has no open lane now; nothing was sent. Try another")
        lane, self._since = found
        return lane

    async def _keep_since(self, route: Route) -> None:
        """Ids are forgotten in time: a record that says how far its lane was can be told from those before it."""
        while self._route is route and route.lane is not None:
            await asyncio.sleep(SINCE_S)
            answer = await route.link.call(b"GET", queue_path(self._outbox.queue), timeout_s=ASK_S)
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
        """All that waits, to this lane. A binding that changes is saved before it is used."""
        waiting = list(self._window.waiting)
        changed = any(sent.lane != lane for sent in waiting)
        for sent in waiting:
            sent.bind(lane)
        if changed and self._saved is not None:
            self._saved.save(waiting)
            self._saved.release(self._window)

    def statistics(self) -> dict[str, Any]:
        route = self._route
        return {
            "channels": self._channels_count,
            "peer": None if route is None else route.link.address.url,
            "lane": self.lane,
            "troubled": self._troubled_at > 0,
        }
