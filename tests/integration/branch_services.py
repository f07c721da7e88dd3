"""Services on loopback with scripted answers, byte by byte where that matters, and a coordinator to call them.

    async with services(2) as (first, second), coordinator(retry_interval_s=0.1) as pledges:
        first.answer("/in", (500, b""), SUCCESS)        the last one for ever; without any: SUCCESS

An answer is (status, body), the bytes of a whole answer, SILENT, or a coroutine function of the request that returns
one of these.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import httptools

from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Content, Options, Pledge
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore
from avow.pledge.stores.memory import MemoryStore

SUCCESS = (200, b'{"dtm_result":"SUCCESS"}')
FAILURE = (409, b'{"dtm_result":"FAILURE"}')
ONGOING = (425, b'{"dtm_result":"ONGOING"}')
SILENT = "silent"

QUICK = {
    "timeout_to_fail_s": 0.3,
    "retry_interval_s": 0.1,
    "backoff_max_s": 1.0,
    "lease_s": 5.0,
    "probe_interval_s": 0.1,
}


class Request:
    def __init__(self, method: str, url: bytes, headers: list[tuple[str, str]], body: bytes, connection: int) -> None:
        self.method, self.url, self.headers, self.body, self.connection = method, url, headers, body, connection
        parts = urlsplit(url.decode("ascii"))
        self.path = parts.path
        self.query = parse_qsl(parts.query, keep_blank_values=True)

    @property
    def gid(self) -> str:
        return dict(self.query)["gid"]

    def header(self, name: str) -> str:
        return dict(self.headers)[name]


class Connection(asyncio.Protocol):
    def __init__(self, service: Service, number: int) -> None:
        self._service, self.number = service, number
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._service.connections.append(self)
        self._parser = httptools.HttpRequestParser(self)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.connections.remove(self)
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def _begin(self) -> None:
        self._url, self._body, self._headers = b"", b"", list[tuple[str, str]]()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        request = Request(method, self._url, self._headers, self._body, self.number)
        self._begin()
        self._service.requests.append(request)
        answer = self._service.next_answer(request.path)
        if callable(answer):
            task = asyncio.get_running_loop().create_task(self._answer_later(answer, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._say(answer)

    async def _answer_later(self, answer: Callable[[Request], Awaitable[Any]], request: Request) -> None:
        self._say(await answer(request))

    def _say(self, answer: Any) -> None:
        if answer == SILENT or self.transport.is_closing():
            return
        if isinstance(answer, bytes):
            self.transport.write(answer)
            return
        status, body = answer
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class Service:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls, self._server, self._port, self._count = tls, cast(Any, None), 0, 0
        self._answers: dict[str, list[Any]] = {}
        self.requests: list[Request] = []
        self.connections: list[Connection] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def answer(self, path: str, *answers: Any) -> None:
        self._answers[path] = list(answers)

    def next_answer(self, path: str) -> Any:
        left = self._answers.get(path, [SUCCESS])
        return left.pop(0) if len(left) > 1 else left[0]

    def to(self, path: str) -> list[Request]:
        return [seen for seen in self.requests if seen.path == path]

    async def start(self) -> None:
        """After `stop`: on the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, "127.0.0.1", self._port, ssl=self._tls, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]

    def _connection(self) -> Connection:
        self._count += 1
        return Connection(self, self._count)

    def hang_up(self) -> None:
        for connection in tuple(self.connections):
            connection.transport.close()

    async def stop(self) -> None:
        """Connections are closed, new ones refused."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self.connections):
            connection.transport.abort()
        await self._server.wait_closed()
        self._server = None


@asynccontextmanager
async def services(count: int = 1, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Service, ...]]:
    made = tuple(Service(tls) for _ in range(count))
    for service in made:
        await service.start()
    try:
        yield made
    finally:
        for service in made:
            await service.stop()


@asynccontextmanager
async def coordinator(store: PledgeStore | None = None, **settings: Any) -> AsyncIterator[Coordinator]:
    """With short timeouts by default."""
    made = Coordinator(store or MemoryStore(), Branches(), settings=PledgeSettings(**{**QUICK, **settings}))
    async with AsyncExitStack() as stack:
        await made.start()
        stack.push_async_callback(made.close)
        yield made


def request_of(gid: str, *urls: str, checkback: str = "", payload: bytes = b'{"amount":30}', **options: Any) -> Content:
    steps = tuple((url, payload) for url in urls)
    return Content(gid, steps=steps, checkback=checkback, options=Options(**options))


async def until(
    true: Callable[[], Awaitable[bool]] | Callable[[], object], *, within_s: float = 60.0, what: str = "it"
) -> None:
    async def answered() -> object:
        found = true()
        return await found if inspect.isawaitable(found) else found

    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await answered():
        assert loop.time() < deadline, f"{what} did not come about within {within_s:g} s"
        await asyncio.sleep(0.01)


async def ended(pledges: Coordinator, gid: str, status: str = "succeeded", *, within_s: float = 60.0) -> Pledge:
    async def has_ended() -> bool:
        return (await pledges.load(gid)).status == status

    await until(has_ended, within_s=within_s, what=f"{gid} {status}")
    return await pledges.load(gid)
