"""The pledges of one peer: one coordinator, on the store that the settings name, alive as long as the peer is.

The lanes of the cluster are the default store. They are opened when the first pledge comes to any peer; the others see
the queue appear in the catalog and open them too, since each has to work on the lanes it coordinates. Until then there
is nothing but a look into the catalog now and then. A store of its own (a file, a database) is opened with the peer:
what was pledged before a restart must go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError, InvalidRequest, Offline, Unknown
from avow.peer.pledges.figures import Figures, WatchedStore
from avow.peer.pledges.lane_store import QUEUE, LaneStore
from avow.peer.pledges.operations import peer_of, run_of
from avow.peer.pledges.queue_branch import QueueBranches
from avow.pledge.branches.branches import Branches
from avow.pledge.branches.queues import queue_of
from avow.pledge.coordinator import Coordinator
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore

if TYPE_CHECKING:
    from avow.peer.access import Token
    from avow.peer.http.exchange import Exchange
    from avow.peer.process import Peer
    from avow.peer.settings import Settings

log: Final = logging.getLogger("avow.pledge")

LOOK_S: Final = 0.5  # how soon a peer notices that others have begun with pledges
GONE_S: Final = 2.0  # a peer unheard for so long does not finish what it holds
GRACE_S: Final = 1.0  # for calls under way when the peer ends


class Pledges:
    """Made on the peer's loop, with the peer started."""

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
        self.figures = Figures()
        self._serving: dict[Exchange, asyncio.Task[None]] = {}
        self._stopped = False

    async def start(self) -> None:
        """Raises InvalidRequest, NotInstalled, Offline when a store of its own cannot be opened."""
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
        """Opens the store, if that was not done yet. Raises Offline."""
        if self._coordinator is not None:
            return self._coordinator
        if self._stopped:
            raise Offline("this peer is going down; nothing was changed. Ask another peer")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="pledges open")
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Coordinator]) -> None:
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, AvowError):
            log.error("the store of pledges could not be opened", exc_info=error)

    async def _open(self) -> Coordinator:
        store = self._make_store()
        try:
            await store.start()
        except BaseException:
            with suppress(AvowError):
                await store.close()
            raise
        coordinator = Coordinator(
            WatchedStore(store, self.figures.finished),
            Branches(enqueue=self.queues),
            settings=_pledge_settings(self._settings),
            owner=f"peer-{self._peer.number}-{self._peer.node.incarnation}-{self._peer.identity.hex[:8]}",
            called=self.figures.called,
        )
        if isinstance(store, LaneStore):
            store.on_due = coordinator.wake
        await coordinator.start()
        coordinator.wake()
        self._store, self._coordinator = store, coordinator
        return coordinator

    # ------------------------------------------------------------------ for those who ask

    def serve(self, exchange: Exchange, work: Coroutine[Any, Any, None], *, deadline: float) -> None:
        """Answer an exchange from one task, which goes on when its client hangs up or has waited long enough: a submit
        that is stored and not carried on would wait for the time that it is held for."""
        self._serving[exchange] = self._loop.create_task(self._served(exchange, work))
        exchange.deadline, exchange.watcher = deadline, _Waiting(exchange)

    def answered(self, exchange: Exchange) -> None:
        """What its task still does is the coordinator's, which waits for it at the end; the request is not needed."""
        del self._serving[exchange]
        exchange.body = b""

    async def _served(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AvowError as error:
            exchange.fail(error)
        except Exception:
            log.exception("a request about a pledge failed: %.200r", exchange.target)
            exchange.fail(AvowError("this peer failed at the request; whether it took effect is not known"))
        finally:
            self._serving.pop(exchange, None)

    def check_targets(self, token: Token, urls: Sequence[str]) -> None:
        """Branches that write to a queue need the right to, and the queue. Raises Forbidden, UnknownQueue, ..."""
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
        """Others may have made the lanes: then this peer has to work on its share of them."""
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
            log.info("the lanes of pledges are not open yet: %s", error)

    def _is_gone(self, run: int) -> bool:
        """It will not finish what it holds: another run of that peer began, or it was not heard for a while."""
        number, incarnation = peer_of(run)
        peer = self._peer
        if number == peer.number:
            return run != self._run
        if peer.runs.get(number, 0) > incarnation:
            return True
        return peer.now() - max(peer.node.metadata.core.heard.get(number, 0.0), self._began) > GONE_S

    def statistics(self) -> dict[str, int]:
        """Nothing while there are no pledges."""
        if self._coordinator is None or self._store is None:
            return {}
        return {
            **{f"store_{name}": value for name, value in self._store.statistics().items()},
            **{f"ended_{name}": count for name, count in self.figures.ended.items()},
            **self._coordinator.statistics(),
        }


class _Waiting:
    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def gone(self) -> None:
        """The work goes on."""

    def expired(self) -> None:
        self._exchange.fail(Unknown("no answer came in time; it may or may not have happened. Ask again"))


def _pledge_settings(settings: Settings) -> PledgeSettings:
    return PledgeSettings(
        timeout_to_fail_s=settings.pledge_timeout_s,
        retry_interval_s=settings.pledge_retry_s,
        dead_after_s=settings.pledge_dead_s,
        kept_s=settings.pledge_keep_s,
        alert_webhook=settings.pledge_alert,
    )


def store_of(url: str) -> PledgeStore:
    """Raises InvalidRequest, NotInstalled. Each needs its library, so it is looked for only when it is asked for."""
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
        f"pledge_store is lane, sqlite:PATH, postgresql://..., mysql://... or redis://..., not {url[:80]!r}"
    )
