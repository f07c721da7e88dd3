"""What handlers work with: the peer, who asks, and the few questions they all have.

`handle` is what the listener calls for each request: find the row of the table, check who asks and what is sent, call
the handler. Handlers of the frequent calls are functions that answer at once or leave a callback; the others are
coroutines and get a task, because clarity is worth five microseconds there.

A lane is named by its place in the queue (two-phase) or by its number (pub-sub); peers know lanes by number only.
`Target` is a lane that was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import Forbidden, InvalidRequest, NotCoordinator, Trimmed, UnknownQueue
from avow.limits import INTERNAL_QUEUE_PREFIX, PIPELINES_QUEUE
from avow.peer.access import Token, Tokens, token_in
from avow.peer.answers import LOST, Answer, Done, Stored
from avow.peer.http import dashboard
from avow.peer.http.dispatch import Call, Dispatcher, media_type, negotiate, not_acceptable, unsupported
from avow.peer.http.exchange import Exchange
from avow.peer.http.route import BATCH, JSON
from avow.peer.http.routes import ROUTES
from avow.queue.catalog import Queue

if TYPE_CHECKING:
    from avow.peer.channels.channels import Channels
    from avow.peer.channels.webchannel_http import WebChannels
    from avow.peer.http.cors import Cors
    from avow.peer.http.listener import Listener
    from avow.peer.metrics import Metrics
    from avow.peer.node import Node
    from avow.peer.pledges.dtm_http import DtmHttp
    from avow.peer.pledges.service import Pledges
    from avow.peer.process import Peer

Handler: TypeAlias = Callable[["Api", Exchange, Any, Any], Coroutine[Any, Any, None] | None]

_ANYTHING: Final = b"*/*"
_DTM: Final = b"/api/"
_OWN_ORIGINS: Final = (b"/v1/webchannel", b"/v1/channel.")  # say themselves which pages may read them
_CHANGING: Final = ("write", "manage")
_USUAL: Final = {BATCH.encode(): BATCH, JSON.encode(): JSON}  # what needs no parsing
_encode: Final = msgspec.json.Encoder().encode


def _check_open(queue: str) -> None:
    if queue != PIPELINES_QUEUE:
        raise Forbidden(f"queue {queue!r} is the cluster's own and not changed from outside")


class Target(Struct, frozen=True, gc=False):
    """`lane` as the client names it, `number` as peers do."""

    queue: Queue
    lane: int
    number: int


class Api:
    def __init__(self, peer: Peer, tokens: Tokens, handlers: Mapping[str, Handler]) -> None:
        self.peer = peer
        self.tokens = tokens
        self.listener: Listener  # this and the next six are given to it by the server
        self.metrics: Metrics
        self.cors: Cors
        self.channels: Channels
        self.webchannels: WebChannels
        self.pledges: Pledges
        self.dtm: DtmHttp
        self._dispatcher = Dispatcher()
        self._handlers = {route.operation: handlers[route.operation] for route in ROUTES}
        self._decoders = {
            route.operation: msgspec.json.Decoder(route.body) for route in ROUTES if route.body is not None
        }

    @property
    def node(self) -> Node:
        return self.peer.node

    # ------------------------------------------------------------------ requests

    def handle(self, exchange: Exchange) -> None:
        if exchange.url.startswith(_DTM):
            self.dtm.handle(exchange)
            return
        origin = exchange.headers.get(b"origin")
        if origin is not None and self._answers_page(exchange, origin):
            return
        call = self._dispatcher.find(exchange.method, exchange.url)
        if not isinstance(call, Call):
            if not dashboard.serve(self, exchange):
                exchange.reply(call)
            return
        route, headers = call.route, exchange.headers
        if call.waits:
            self.listener.check_room()
        if route.right is not None:
            token = self.token(exchange)
            if route.right:
                token.check(route.right, call.queue)  # type: ignore[arg-type]
                if call.queue.startswith(INTERNAL_QUEUE_PREFIX) and not route.queue and route.right in _CHANGING:
                    _check_open(call.queue)
        accept = headers.get(b"accept", _ANYTHING)
        if accept != _ANYTHING and negotiate(accept, route.answer_types) is None:
            exchange.reply(not_acceptable(route))
            return
        content: Any = None
        if route.body is not None and (route.body_needed or exchange.body):
            said = headers.get(b"content-type", b"")
            sent = _USUAL.get(said) or media_type(said)
            if sent not in route.body_types:
                exchange.reply(unsupported(route, sent))
                return
            if not route.body_later:
                content = sent if sent == BATCH else self.decode(route.operation, exchange)
        self._call(exchange, route.operation, call.parameters, content)

    def _call(self, exchange: Exchange, operation: str, parameters: Any, content: Any) -> None:
        work = self._handlers[operation](self, exchange, parameters, content)
        if work is not None:
            timeout_s = getattr(parameters, "timeout_s", 10.0) + getattr(parameters, "wait_s", 0.0)
            self.listener.run(exchange, work, timeout_s=timeout_s)

    def _answers_page(self, exchange: Exchange, origin: bytes) -> bool:
        """True: it was a browser's question before a request. What has an answer for any page is left alone."""
        if not exchange.url.startswith(_OWN_ORIGINS):
            exchange.extra = self.cors.headers(origin)
        return self.cors.preflight(exchange)

    def token(self, exchange: Exchange) -> Token:
        """Who asks. A connection's last header is remembered, so that a digest is not made for each request."""
        connection, headers = exchange.connection, exchange.headers
        header = headers.get(b"authorization")
        if not header and b"sec-websocket-protocol" in headers:
            header = token_in(headers[b"sec-websocket-protocol"])
        if connection.authorized is None or connection.authorized[0] != header:
            connection.authorized = (header, self.tokens.bearer(header))
        return connection.authorized[1]

    def decode(self, operation: str, exchange: Exchange) -> Any:
        """Raises InvalidRequest."""
        try:
            return self._decoders[operation].decode(exchange.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as cause:
            raise InvalidRequest(f"the body is not what this call takes: {cause}; nothing was done") from cause

    @staticmethod
    def answer(exchange: Exchange, shape: Struct, *, status: int = 200, headers: bytes = b"") -> None:
        exchange.answer(status, _encode(shape), headers)

    # ------------------------------------------------------------------ queues and lanes

    def queue(self, name: str) -> Queue:
        queue = self.node.metadata.state.catalog.by_name.get(name)
        if queue is None:
            self.check_current()
            raise UnknownQueue(f"there is no queue {name[:200]!r}; nothing was done. Create it with POST /v1/queues")
        return queue

    def check_current(self) -> None:
        """Raises Offline while this peer may not know yet what the metadata lane has decided."""
        self.node.metadata.check_current(self.peer.now())

    def target(self, queue: Queue, lane: int | None) -> Target:
        """Raises InvalidRequest, Trimmed, or NotCoordinator when only others hold it."""
        if queue.strategy == "pub-sub":
            return self._pubsub_target(queue, lane)
        lane = lane or 0
        if lane >= queue.lanes:
            raise InvalidRequest(f"queue {queue.name!r} has lanes 0 to {queue.lanes - 1}, not {lane}; nothing was done")
        self.check_held(queue)
        return Target(queue, lane, queue.first_lane + lane)

    def _pubsub_target(self, queue: Queue, lane: int | None) -> Target:
        table = self.node.metadata.state.lanes
        if lane is None:
            raise InvalidRequest("name a lane of this pub-sub queue; GET /v1/queues/{queue} lists them")
        known = table.by_number.get(lane)
        if known is not None and known.queue == queue.name:
            return Target(queue, lane, lane)
        if known is None and 0 < lane < table.next_number:
            raise Trimmed(f"lane {lane} is not there any more, or is of another queue; there is nothing to read in it")
        raise InvalidRequest(f"lane {lane} is not one of queue {queue.name!r}; GET /v1/queues/{{queue}} lists them")

    def check_held(self, queue: Queue) -> None:
        """A two-phase queue may live on some peers only: then another must be asked."""
        if not queue.peers or self.node.me in queue.peers:
            return
        table = self.node.metadata.state.peers.by_number
        holder = next((p for p in queue.peers if p in table and table[p].api), 0)
        raise NotCoordinator(
            f"queue {queue.name!r} is held by peers {list(queue.peers)}, not by this one; ask one of them",
            coordinator=holder,
            api=table[holder].api if holder else "",
        )

    def api_of(self, peer: int) -> str:
        known = self.node.metadata.state.peers.by_number.get(peer)
        return known.api if known is not None else ""

    # ------------------------------------------------------------------ asking the node, from a coroutine

    async def ask(self, start: Callable[[int], None]) -> Answer:
        """`start` is given the number of the request. What is no more waited for is cancelled, writes excepted."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def hear(answer: Answer) -> None:
            if not future.done() and type(answer) is not Stored:
                future.set_result(answer)

        request = self.peer.expect(hear)
        start(request)
        self.peer.wake()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self.peer.forget(request)

    async def ask_all(self, starts: Iterable[Callable[[int], None]]) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(start)) for start in starts]
        return [task.result() for task in tasks]

    async def command(self, kind: int, control: bytes, *, write_id: bytes) -> Answer:
        """An entry of the metadata lane; with Done, this peer has applied it too."""
        node, now = self.node, self.peer.now()
        answer = await self.ask(lambda request: node.command(request, kind, control, write_id=write_id, now=now))
        if isinstance(answer, Done) and not isinstance(await self.catch_up(), Done):
            return LOST  # it happened, and this peer cannot show it
        return answer

    async def catch_up(self) -> Answer:
        """This peer has applied all of the metadata lane that was acknowledged before."""

        def start(request: int) -> None:
            self.node.metadata.read(request, self.peer.now())
            self.node.touch(0)

        return await self.ask(start)
