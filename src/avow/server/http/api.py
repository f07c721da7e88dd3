"""What all handlers use: the peer, the client's token, and the lookups they share.

The listener calls `handle` for each request. It finds the route, checks the token and the content types, and calls the
handler. Handlers of the frequent calls are functions that answer at once or register a callback. The others are
coroutines and run in a task, because there clarity is worth five microseconds.

Clients name a lane by its index in the queue (two-phase) or by its number (pub-sub); peers know lanes by number only.
`Target` is a lane that exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import AvowError, Forbidden, InvalidRequest, NotCoordinator, Offline, Trimmed, UnknownQueue
from avow.limits import INTERNAL_QUEUE_PREFIX, PIPELINES_QUEUE
from avow.node.answers import LOST, Answer, Done, Stored
from avow.queue.records import Queue
from avow.server.access import Token, Tokens, token_in
from avow.server.channels.pages import tell_script
from avow.server.http import static_files
from avow.server.http.dispatch import Call, Dispatcher, media_type, negotiate, not_acceptable, unsupported
from avow.server.http.request import HttpRequest
from avow.server.http.route import BATCH, JSON
from avow.server.http.routes import ROUTES
from avow.wire.error_body import decode_failure

if TYPE_CHECKING:
    from avow.node.node import Node
    from avow.server.channels.channels import Channels
    from avow.server.channels.webchannel_http import WebChannels
    from avow.server.dtm.http import DtmHttp
    from avow.server.http.cors import Cors
    from avow.server.http.listener import Listener
    from avow.server.http.read_turns import ReadTurns
    from avow.server.metrics import Metrics
    from avow.server.pledges.service import Pledges
    from avow.server.process import Peer

Handler: TypeAlias = Callable[["Api", HttpRequest, Any, Any], Coroutine[Any, Any, None] | None]

_ANYTHING: Final = b"*/*"
_OF_REMOVED: Final = (b"/metrics", b"/v1/cluster", b"/v1/openapi.json")  # what a removed peer still answers
_DTM: Final = b"/api/"
_OWN_ORIGINS: Final = (b"/v1/webchannel", b"/v1/channel.")  # these set the CORS headers themselves
_CHANGING: Final = ("write", "manage")
_USUAL: Final = {BATCH.encode(): BATCH, JSON.encode(): JSON}  # content types that need no parsing
_encode: Final = msgspec.json.Encoder().encode


def _check_open(queue: str) -> None:
    if queue != PIPELINES_QUEUE:
        raise Forbidden(f"queue {queue!r} belongs to the cluster and cannot be changed by clients; nothing was done")


class Target(Struct, frozen=True, gc=False):
    """`lane` is the client's name of the lane, `number` the peers'."""

    queue: Queue
    lane: int
    number: int


class Api:
    def __init__(self, peer: Peer, tokens: Tokens, handlers: Mapping[str, Handler]) -> None:
        self.peer = peer
        self.tokens = tokens
        self.listener: Listener  # set by the server, as the next seven are
        self.reads: ReadTurns
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

    def handle(self, request: HttpRequest) -> None:
        if self.peer.removed and not request.url.startswith(_OF_REMOVED):
            self.peer.check_member()
        if request.url.startswith(_DTM):
            self.dtm.handle(request)
            return
        if b"upgrade" not in request.headers:
            self._handle(request)
            return
        try:
            self._handle(request)
        except AvowError as error:
            if not tell_script(self, request, error):
                raise

    def _handle(self, request: HttpRequest) -> None:
        origin = request.headers.get(b"origin")
        if origin is not None and self._answers_page(request, origin):
            return
        call = self._dispatcher.find(request.method, request.url)
        if not isinstance(call, Call):
            if (
                b"upgrade" in request.headers
                and (error := decode_failure(call.body))
                and tell_script(self, request, error)
            ):
                return
            if not static_files.serve(self, request):
                request.reply(call)
            return
        route, headers = call.route, request.headers
        if call.waits:
            self.listener.check_room()
        if route.right is not None:
            token = self.token(request)
            if route.right:
                token.check(route.right, call.queue)  # type: ignore[arg-type]
                if call.queue.startswith(INTERNAL_QUEUE_PREFIX) and not route.queue and route.right in _CHANGING:
                    _check_open(call.queue)
        accept = headers.get(b"accept", _ANYTHING)
        if accept != _ANYTHING and negotiate(accept, route.answer_types) is None:
            request.reply(not_acceptable(route))
            return
        content: Any = None
        if route.body is not None and (route.body_needed or request.body):
            content_type = headers.get(b"content-type", b"")
            sent = _USUAL.get(content_type) or media_type(content_type)
            if sent not in route.body_types:
                request.reply(unsupported(route, sent))
                return
            if not route.body_later:
                content = sent if sent == BATCH else self.decode(route.operation, request)
        self._call(request, route.operation, call.parameters, content)

    def _call(self, request: HttpRequest, operation: str, parameters: Any, content: Any) -> None:
        work = self._handlers[operation](self, request, parameters, content)
        if work is not None:
            timeout_s = getattr(parameters, "timeout_s", 10.0) + getattr(parameters, "wait_s", 0.0)
            self.listener.run(request, work, timeout_s=timeout_s)

    def _answers_page(self, request: HttpRequest, origin: bytes) -> bool:
        """Sets the CORS headers, except for paths that set their own. True: it was a preflight request."""
        if not request.url.startswith(_OWN_ORIGINS):
            request.extra = self.cors.headers(origin)
        return self.cors.preflight(request)

    def token(self, request: HttpRequest) -> Token:
        """The client's token. A connection caches that of its last header, to save a digest for each request."""
        connection, headers = request.connection, request.headers
        header = headers.get(b"authorization")
        if not header and b"sec-websocket-protocol" in headers:
            header = token_in(headers[b"sec-websocket-protocol"])
        if connection.authorized is None or connection.authorized[0] != header:
            connection.authorized = (header, self.tokens.bearer(header))
        return connection.authorized[1]

    def decode(self, operation: str, request: HttpRequest) -> Any:
        """Decodes the body. Raises InvalidRequest."""
        try:
            return self._decoders[operation].decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as cause:
            raise InvalidRequest(f"the body is not valid for this call: {cause}; nothing was done") from cause

    @staticmethod
    def answer(request: HttpRequest, shape: Struct, *, status: int = 200, headers: bytes = b"") -> None:
        request.answer(status, _encode(shape), headers)

    # ------------------------------------------------------------------ queues and lanes

    def queue(self, name: str) -> Queue:
        queue = self.node.metadata.state.catalog.by_name.get(name)
        if queue is None:
            self.check_current()
            raise UnknownQueue(f"there is no queue {name[:200]!r}; nothing was done. Create it with POST /v1/queues")
        return queue

    def check_current(self) -> None:
        """Raises Offline while this peer may not have applied the latest entries of the metadata lane."""
        if missing := self.peer.founding.waiting_for:
            raise Offline(
                f"the folder of this peer is new, and founders {missing} were not there yet; nothing was done. If the "
                "cluster was founded earlier, the folder was emptied or its volume is not mounted"
            )
        self.node.metadata.check_current(self.peer.now())

    def target(self, queue: Queue, lane: int | None) -> Target:
        """Raises InvalidRequest, Trimmed, or NotCoordinator when this peer does not hold the lane."""
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
            raise InvalidRequest("a pub-sub queue needs `lane`; GET /v1/queues/{queue} lists its lanes")
        known = table.by_number.get(lane)
        if known is not None and known.queue == queue.name:
            return Target(queue, lane, lane)
        if known is None and 0 < lane < table.next_number:
            raise Trimmed(f"lane {lane} was removed or belongs to another queue; there is nothing to read in it")
        raise InvalidRequest(f"queue {queue.name!r} has no lane {lane}; GET /v1/queues/{{queue}} lists its lanes")

    def check_held(self, queue: Queue) -> None:
        """A two-phase queue may be held by some peers only. Raises NotCoordinator on the others."""
        if not queue.peers or self.node.me in queue.peers:
            return
        table = self.node.metadata.state.peers.by_number
        holder = next((p for p in queue.peers if p in table and table[p].api), 0)
        raise NotCoordinator(
            f"queue {queue.name!r} is held by peers {list(queue.peers)}, not by this one; use one of them",
            coordinator=holder,
            api=table[holder].api if holder else "",
        )

    def api_of(self, peer: int) -> str:
        known = self.node.metadata.state.peers.by_number.get(peer)
        return known.api if known is not None else ""

    def check_coordinator(self, target: Target, advice: str) -> None:
        """For requests with `redirect`: their client is sent to the coordinator, which saves the forwarding. Raises
        NotCoordinator."""
        lane = self.node.lanes.get(target.number)
        coordinator = lane.core.live_coordinator(self.peer.now()) if lane is not None else 0
        if coordinator and coordinator != self.node.me:
            raise NotCoordinator(
                f"peer {coordinator} coordinates lane {target.lane}{advice}",
                coordinator=coordinator,
                api=self.api_of(coordinator),
            )

    # ------------------------------------------------------------------ requests to the node, from coroutines

    async def ask(self, start: Callable[[int], None]) -> Answer:
        """`start` gets the number of the request. If the caller is cancelled so is the request, except a write."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not future.done() and type(answer) is not Stored:
                future.set_result(answer)

        node_request = self.peer.expect(answered)
        start(node_request)
        self.peer.wake()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self.peer.forget(node_request)

    async def ask_all(self, starts: Iterable[Callable[[int], None]]) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(start)) for start in starts]
        return [task.result() for task in tasks]

    async def command(self, kind: int, control: bytes, *, write_id: bytes) -> Answer:
        """Writes an entry of the metadata lane. When it returns Done this peer has applied the entry."""
        node, now = self.node, self.peer.now()
        answer = await self.ask(
            lambda node_request: node.command(node_request, kind, control, write_id=write_id, now=now)
        )
        if isinstance(answer, Done) and not isinstance(await self.catch_up(), Done):
            return LOST  # it is committed, but not applied on this peer
        return answer

    async def catch_up(self) -> Answer:
        """When it returns Done this peer has applied all entries of the metadata lane acknowledged before the call."""

        def start(node_request: int) -> None:
            self.node.metadata.read(node_request, self.peer.now())
            self.node.touch(0)

        return await self.ask(start)
