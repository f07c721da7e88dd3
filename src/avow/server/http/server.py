"""The HTTP server of a peer, composed of its parts.

    bytes ──► connection ──► request ──► dispatch ──► handler ──► node      listener: all connections, all timeouts
                  ▲              │       (routes)        │
                  └── answers ───┴◄─────── errors ◄──────┘                  api: what all handlers use

The listener knows nothing of queues and the handlers nothing of sockets. `HANDLERS` names the handler of each operation
in the table of routes.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from avow.server.access import load_tokens
from avow.server.byte_budget import ByteBudget
from avow.server.channels import handlers as channel_handlers
from avow.server.channels.channels import Channels
from avow.server.channels.webchannel_http import WebChannels
from avow.server.dtm.grpc import DtmGrpc
from avow.server.dtm.http import DtmHttp
from avow.server.http import (
    handlers_cluster,
    handlers_queues,
    handlers_reads,
    handlers_subscribers,
    handlers_transactions,
    handlers_writes,
)
from avow.server.http.api import Api, Handler
from avow.server.http.cors import Cors, Origins, read_origins
from avow.server.http.listener import Listener, Patience
from avow.server.http.read_turns import ReadTurns
from avow.server.metrics import Metrics
from avow.server.pledges import handlers as pledge_handlers
from avow.server.pledges.service import Pledges
from avow.server.settings import Settings, address

if TYPE_CHECKING:
    from avow.server.process import Peer

HANDLERS: Final[Mapping[str, Handler]] = {
    "health": handlers_cluster.health,
    "ready": handlers_cluster.ready,
    "metrics": handlers_cluster.metrics,
    "openapi": handlers_cluster.openapi,
    "cluster": handlers_cluster.cluster,
    "show_me": handlers_cluster.show_me,
    "list_peers": handlers_cluster.list_peers,
    "join_peer": handlers_cluster.join_peer,
    "remove_peer": handlers_cluster.remove_peer,
    "raise_level": handlers_cluster.raise_level,
    "list_queues": handlers_queues.list_queues,
    "create_queue": handlers_queues.create_queue,
    "show_queue": handlers_queues.show_queue,
    "change_queue": handlers_queues.change_queue,
    "delete_queue": handlers_queues.delete_queue,
    "trim_queue": handlers_queues.trim_queue,
    "enqueue": handlers_writes.enqueue,
    "look_up_write": handlers_writes.look_up_write,
    "stage": handlers_transactions.stage,
    "publish": handlers_transactions.publish,
    "discard": handlers_transactions.discard,
    "read": handlers_reads.read,
    "read_one": handlers_reads.read_one,
    "show_life": handlers_reads.show_life,
    "list_subscribers": handlers_subscribers.list_subscribers,
    "show_subscriber": handlers_subscribers.show_subscriber,
    "move_cursor": handlers_subscribers.move_cursor,
    "remove_subscriber": handlers_subscribers.remove_subscriber,
    "open_channel": channel_handlers.open_channel,
    "webchannel": channel_handlers.webchannel,
    "webchannel_forward": channel_handlers.webchannel,
    "channel_module": channel_handlers.channel_module,
    "channel_types": channel_handlers.channel_types,
    "webchannel_module": channel_handlers.webchannel_module,
    "prepare_pledge": pledge_handlers.prepare_pledge,
    "submit_pledge": pledge_handlers.submit_pledge,
    "abort_pledge": pledge_handlers.abort_pledge,
    "list_pledges": pledge_handlers.list_pledges,
    "show_pledge": pledge_handlers.show_pledge,
    "retry_pledge": pledge_handlers.retry_pledge,
    "redrive_pledge": pledge_handlers.redrive_pledge,
    "stop_pledge": pledge_handlers.stop_pledge,
    "retry_pledges": pledge_handlers.retry_pledges,
    "redrive_pledges": pledge_handlers.redrive_pledges,
    "list_topics": pledge_handlers.list_topics,
    "show_topic": pledge_handlers.show_topic,
    "subscribe_topic": pledge_handlers.subscribe_topic,
    "unsubscribe_topic": pledge_handlers.unsubscribe_topic,
    "remove_topic": pledge_handlers.remove_topic,
}


class HttpServer:
    """Created on the loop after its peer was started. It opens nothing before `start`.

    Raises InvalidRequest when the tokens file is not valid.
    """

    def __init__(
        self, peer: Peer, settings: Settings, *, tls: ssl.SSLContext | None = None, patience: Patience | None = None
    ) -> None:
        self._address = address(settings.listen, name="listen")
        self.grpc_port = 0  # 0: dtm's API is not served over gRPC
        self.api = Api(peer, load_tokens(settings), HANDLERS)
        self.budget = ByteBudget(settings.memory_bytes_max)
        self.listener = Listener(
            self.api.handle,
            connections_max=settings.connections_max,
            in_flight_max=settings.in_flight_max,
            request_bytes_max=settings.request_bytes_max,
            budget=self.budget,
            tls=tls,
            patience=patience,
        )
        self.api.listener = self.listener
        self.api.reads = ReadTurns(self.listener)
        cors = self.api.cors = Cors(read_origins(settings.cors_origins), self._apis)
        self.channels = Channels(
            peer, budget=self.budget, channels_max=settings.channels_max, window_s=settings.channel_window_s
        )
        self.api.channels = self.channels
        self.api.webchannels = self._webchannels = WebChannels(
            partial(channel_handlers.open_user, self.api), origins=Origins(allows=cors.allows)
        )
        self.pledges = self.api.pledges = Pledges(peer, settings)
        self.api.dtm = DtmHttp(self.api, self.pledges)
        self._grpc = DtmGrpc(self.api.dtm.dtm, self.api.tokens, self.pledges.counters) if settings.grpc_listen else None
        self._settings = settings
        self.api.metrics = Metrics(
            peer, self.listener.statistics, self.budget.statistics, self.channels.statistics, self.pledges.statistics
        )

    def _apis(self) -> list[str]:
        return [info.api for info in self.api.node.metadata.state.peers.by_number.values()]

    async def start(self) -> tuple[str, int]:
        await self.pledges.start()
        if self._grpc is not None:
            self.grpc_port = await self._grpc.start(self._settings)
        return await self.listener.start(*self._address)

    async def stop(self) -> None:
        await self.channels.close()
        self._webchannels.stop()
        if self._grpc is not None:
            await self._grpc.stop()
        await self.listener.stop()
        await self.pledges.stop()

    def statistics(self) -> dict[str, int]:
        return self.listener.statistics()
