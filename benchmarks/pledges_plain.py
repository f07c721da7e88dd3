"""The same work as people write it by hand: a coordinator on uvicorn, asyncpg and aiohttp, and a poller of an outbox.

    python -m benchmarks.pledges_plain --kind coordinator --dsn ... --port 0
        POST /v1/pledges/{gid}/prepare     one insert
        POST /v1/pledges/{gid}/submit      one update; then the branch is called, then one more update
    python -m benchmarks.pledges_plain --kind outbox --dsn ... --branch http://...
        every 20 ms, at once while there is more: take up to 100 rows nobody else has, send each, mark them

No framework, a pool of connections, keep-alive everywhere, prepared statements: nothing is slow on purpose. Every step
is a statement of its own, committed before the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import asyncpg  # type: ignore[import-untyped]
import uvicorn
import uvloop

CONNECTIONS: Final = 64
POLL_S: Final = 0.02
BATCH: Final = 100

INSERT: Final = (
    "insert into plain_pledges (gid, content, status) values ($1, $2, 'prepared') on conflict (gid) do nothing"
)
SUBMIT: Final = "update plain_pledges set status = 'submitted', updated = now() where gid = $1 and status = 'prepared'"
SUCCEED: Final = (
    "update plain_pledges set status = 'succeeded', updated = now() where gid = $1 and status = 'submitted'"
)
TAKE: Final = f"select id, gid from outbox where not sent order by id limit {BATCH} for update skip locked"
SENT: Final = "update outbox set sent = true where id = any($1)"

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Coordinator:
    def __init__(self, pool: Any, session: aiohttp.ClientSession) -> None:
        self._pool, self._session = pool, session
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        _, _, _, gid, step = scope["path"].split("/")
        if step == "prepare":
            await self._pool.execute(INSERT, gid, body)
        else:
            await self._pool.execute(SUBMIT, gid)
            task = asyncio.create_task(self._deliver(gid, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer = b'{"status":"ok"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _deliver(self, gid: str, body: bytes) -> None:
        branch = json.loads(body)["branches"][0]
        async with self._session.post(f"{branch['url']}?gid={gid}", data=branch["payload"]) as answer:
            await answer.read()
        if answer.status == 200:
            await self._pool.execute(SUCCEED, gid)


async def coordinate(given: argparse.Namespace) -> None:
    listening = socket.create_server(("127.0.0.1", given.port), backlog=1024)
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with (
        asyncpg.create_pool(given.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
        config = uvicorn.Config(Coordinator(pool, session), log_level="error", access_log=False, lifespan="off")
        await uvicorn.Server(config).serve([listening])


async def poll(given: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with (
        asyncpg.create_pool(given.dsn, min_size=1, max_size=1) as pool,
        aiohttp.ClientSession(connector=connector) as session,
        pool.acquire() as connection,
    ):
        print(json.dumps({"url": "http://127.0.0.1:0"}), flush=True)
        while True:
            async with connection.transaction():
                rows = await connection.fetch(TAKE)
                if rows:
                    await asyncio.gather(*(_send(session, given.branch, row["gid"]) for row in rows))
                    await connection.execute(SENT, [row["id"] for row in rows])
            if len(rows) < BATCH:
                await asyncio.sleep(POLL_S)


async def _send(session: aiohttp.ClientSession, branch: str, gid: str) -> None:
    async with session.post(f"{branch}?gid={gid}", data=b'{"amount": 30}') as answer:
        await answer.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("coordinator", "outbox"), required=True)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--branch", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    uvloop.run(coordinate(given) if given.kind == "coordinator" else poll(given))


if __name__ == "__main__":
    main()
