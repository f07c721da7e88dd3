"""The pledge service of one peer: one coordinator, with the store that the settings name.

The default store is a queue of the cluster. It is opened at the first pledge on any peer. The other peers see the queue
in the catalog and open it too, because each has to work on the lanes it coordinates. Until then they only check the
catalog periodically. Another store (a file, a database) is opened when the peer starts: pledges made before a restart
must continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError, InvalidRequest, Offline, Unknown
from avow.pledge.branches.queue import queue_of
from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore
from avow.pledge.stores.lane.operations import peer_of, run_of
from avow.pledge.stores.lane.store import QUEUE, LaneStore
from avow.server.pledges.metrics import CountingStore, PledgeCounters
from avow.server.pledges.queue_branch import QueueBranches

if TYPE_CHECKING:
    from avow.server.access import Token
    from avow.server.http.request import HttpRequest
    from avow.server.process import Peer
    from avow.server.settings import Settings

log: Final = logging.getLogger("avow.pledge")

LOOK_S: Final = 0.5  # interval at which a peer checks whether others have opened the queue of pledges
GONE_S: Final = 2.0  # a peer silent for so long is assumed not to finish the pledges it holds
GRACE_S: Final = 1.0  # for calls in flight when the peer stops


class Pledges:
    """Created on the peer's loop after the peer was started."""

    def __init__(self, peer: Peer, settings: Settings) -> None:
        self._peer, self._settings = peer, settings
        self._loop = asyncio.get_running_loop()
        self.queues = QueueBranches(peer)
        self._store: PledgeStore | None = None
        self._coordinator: Coordinator | None = None
        self._opening: asyncio.Task[Coordinator] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = peer.now()
        self._run = run_of(peer=peer.number, incarnation=peer.node.incarnation)
        self.counters = PledgeCounters()
        self._serving: dict[HttpRequest, asyncio.Task[None]] = {}
        self._stopped = False

    async def start(self) -> None:
        """Raises InvalidRequest, NotInstalled or Offline when a store outside the cluster cannot be opened."""
        if self._settings.pledge_store == "lane":
            self._look()
        else:
            await self.coordinator()

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if (opening := self._opening) is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if self._serving:
            await asyncio.wait(tuple(self._serving.values()), timeout=GRACE_S)
        if self._coordinator is not None:
            await self._coordinator.close(grace_s=GRACE_S)
        if self._store is not None:
            await self._store.close()

    @property
    def running(self) -> Coordinator | None:
        return self._coordinator

    async def coordinator(self) -> Coordinator:
        """Opens the store at the first call. Raises Offline."""
        if self._coordinator is not None:
            return self._coordinator
        if self._stopped:
            raise Offline("this peer is stopping; nothing was changed. Use another peer")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="pledges open")
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Coordinator]) -> None:
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, AvowError):
            log.error("cannot open the pledge store", exc_info=error)

    async def _open(self) -> Coordinator:
        store = self._make_store()
        try:
            await store.start()
        except BaseException:
            with suppress(AvowError):
                await store.close()
            raise
        coordinator = Coordinator(
            CountingStore(store, self.counters.finished),
            Branches(enqueue=self.queues),
            settings=_pledge_settings(self._settings),
            owner=f"peer-{self._peer.number}-{self._peer.node.incarnation}-{self._peer.identity.hex[:8]}",
            called=self.counters.called,
        )
        if isinstance(store, LaneStore):
            store.on_due = coordinator.wake
        await coordinator.start()
        coordinator.wake()
        self._store, self._coordinator = store, coordinator
        return coordinator

    # ------------------------------------------------------------------ requests

    def serve(self, request: HttpRequest, work: Coroutine[Any, Any, None], *, deadline: float) -> None:
        """Answer a request from a task, which continues after the client disconnects or the deadline passes: a submit
        that is stored and not delivered would wait until the time until which it is held."""
        self._serving[request] = self._loop.create_task(self._served(request, work))
        request.deadline, request.watcher = deadline, _ContinuingWatcher(request)

    def answered(self, request: HttpRequest) -> None:
        """The request is not needed any more. The coordinator waits for the rest of its task when it closes."""
        del self._serving[request]
        request.body = b""

    async def _served(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AvowError as error:
            request.fail(error)
        except Exception:
            log.exception("internal error in a pledge request: %.200r", request.target)
            request.fail(AvowError("internal error of this peer; the request may or may not have taken effect"))
        finally:
            self._serving.pop(request, None)

    def check_targets(self, token: Token, urls: Sequence[str]) -> None:
        """Checks the queues to which branches write, and the right to. Raises Forbidden, UnknownQueue, ..."""
        for url in urls:
            if url.startswith("queue://"):
                name, _ = queue_of(url)
                token.check("write", name)
                self.queues.check(name)

    # ------------------------------------------------------------------ opening

    def _make_store(self) -> PledgeStore:
        wanted = self._settings.pledge_store
        return LaneStore(self._peer, run=self._run, is_gone=self._is_gone) if wanted == "lane" else store_of(wanted)

    def _look(self) -> None:
        """If another peer has created the queue of pledges, this peer has to work on its lanes."""
        self._timer = None
        if self._stopped or self._coordinator is not None:
            return
        if QUEUE in self._peer.node.metadata.state.catalog.by_name and self._opening is None:
            task = asyncio.get_running_loop().create_task(self._open_quietly(), name="pledges noticed")
            task.add_done_callback(lambda _: self._look_later())
            return
        self._look_later()

    def _look_later(self) -> None:
        if not self._stopped and self._coordinator is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    async def _open_quietly(self) -> None:
        try:
            await self.coordinator()
        except AvowError as error:
            log.info("the queue of pledges is not open yet, retrying: %s", error)

    def _is_gone(self, run: int) -> bool:
        """Whether a run will not finish the pledges it holds: its peer was restarted, or is silent for a while."""
        number, incarnation = peer_of(run)
        peer = self._peer
        if number == peer.number:
            return run != self._run
        if peer.runs.get(number, 0) > incarnation:
            return True
        return peer.now() - max(peer.node.metadata.core.heard.get(number, 0.0), self._began) > GONE_S

    def statistics(self) -> dict[str, int]:
        """Empty until the store is open."""
        if self._coordinator is None or self._store is None:
            return {}
        return {
            **{f"store_{name}": value for name, value in self._store.statistics().items()},
            **{f"ended_{name}": count for name, count in self.counters.ended.items()},
            **self._coordinator.statistics(),
        }


class _ContinuingWatcher:
    __slots__ = ("_request",)

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def gone(self) -> None:
        """The work continues."""

    def expired(self) -> None:
        self._request.fail(Unknown("no answer in time; the request may or may not have taken effect. Try again"))


def _pledge_settings(settings: Settings) -> PledgeSettings:
    return PledgeSettings(
        timeout_to_fail_s=settings.pledge_timeout_s,
        retry_interval_s=settings.pledge_retry_s,
        dead_after_s=settings.pledge_dead_s,
        kept_s=settings.pledge_keep_s,
        alert_webhook=settings.pledge_alert,
    )


def store_of(url: str) -> PledgeStore:
    """Raises InvalidRequest, NotInstalled. Each store needs its library, so it is imported only when it is used."""
    kind, _, rest = url.partition(":")
    if kind == "sqlite" and rest:
        from avow.pledge.stores.sqlite import SQLiteStore

        return SQLiteStore(rest)
    if kind == "postgresql":
        from avow.pledge.stores.postgres import PostgresStore

        return PostgresStore(url)
    if kind == "mysql":
        from avow.pledge.stores.mysql import MySQLStore

        return MySQLStore(url)
    if kind in ("redis", "rediss"):
        from avow.pledge.stores.redis import RedisStore

        return RedisStore(url)
    raise InvalidRequest(
        f"pledge_store must be lane, sqlite:PATH, postgresql://..., mysql://... or redis://..., not {url[:80]!r}"
    )
