"""A proxy before a peer's API that stops one request, or its answer, and says so: a driver killed at that moment is
killed at a place that the test chose.

It listens at the peer's port on 127.0.0.2, and the peer advertises that host, so every client that learns of the peer
goes through here. Requests of the client's pool come one at a time on a connection, each with its head in one piece:
looking for text in what arrives is enough.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal

from avow.client.loop_thread import LoopThread

HOST = "127.0.0.2"
_CHUNK = 1 << 16


class HoldingProxy:
    def __init__(self, *, port: int) -> None:
        self._port = port
        self._thread = LoopThread()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._text, self._what, self._after = b"", "request", 0
        self.held, self.passed = threading.Event(), threading.Event()
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def hold(self, text: str, *, what: Literal["request", "answer"], after: int = 0) -> None:
        """Let `after` requests with this text in their head pass, then hold the next, or its answer."""
        self._text, self._what, self._after = text.encode(), what, after
        self.held.clear()

    def let_go(self) -> None:
        """Hold nothing more. What is held stays where it is."""
        self._text = b""

    def release(self) -> None:
        """Pass on what is held; `passed` is set once that was sent."""
        self._text = b""
        self._thread.run(self._release())

    async def _release(self) -> None:
        self._released.set()

    def __enter__(self) -> HoldingProxy:
        self._thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self._port)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        forth: asyncio.StreamWriter | None = None
        try:
            far, forth = await asyncio.open_connection("127.0.0.1", self._port)
            holding = asyncio.Event()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(near, forth, holding))
                both.create_task(self._answers(far, back, holding))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for writer in (back, forth):
                if writer is not None:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()

    async def _requests(self, near: asyncio.StreamReader, forth: asyncio.StreamWriter, holding: asyncio.Event) -> None:
        while data := await near.read(_CHUNK):
            if self._stops(data):
                if self._what == "request":
                    self.held.set()
                    await self._released.wait()
                    forth.write(data)
                    await forth.drain()
                    self.passed.set()
                    continue
                holding.set()
            forth.write(data)
            await forth.drain()
        forth.close()

    async def _answers(self, far: asyncio.StreamReader, back: asyncio.StreamWriter, holding: asyncio.Event) -> None:
        while data := await far.read(_CHUNK):
            if holding.is_set():
                self.held.set()
                await asyncio.Event().wait()
            back.write(data)
            await back.drain()
        back.close()

    def _stops(self, data: bytes) -> bool:
        if not self._text or self.held.is_set() or self._text not in data.partition(b"\r\n")[0]:
            return False
        self._after -= 1
        return self._after < 0
