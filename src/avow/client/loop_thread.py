"""An event loop in its own thread, for callers without one.

`run` submits a coroutine and waits for its result; `call` does the same for a plain function. `post` does not wait:
calls posted before the loop's next turn run together, in order, so many small calls cost one thread switch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, ParamSpec, TypeVar

from avow.errors import InvalidRequest

T = TypeVar("T")
P = ParamSpec("P")
_STOP_S: Final = 5.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """An event loop in its own thread. `run` may be called from any other thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name="avow-client", daemon=True)
        self._thread.start()
        self._calls: deque[tuple[Any, ...]] = deque()
        self._woken = False
        self.generators: set[AsyncGenerator[Any, None]] = set()  # unfinished ones, to be closed before the loop
        self._ending: asyncio.Task[None] | None = None

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)  # of threads that still wait: they get an error that the client is closed
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.running:
            work.close()
            raise InvalidRequest("this client is closed; nothing was sent. Open a new client")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequest(
                "a blocking call on the client's own thread would deadlock; nothing was sent. Call from another thread"
            )
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except CancelledError:
            raise InvalidRequest(
                "the client was closed during this call; a write may or may not have happened. Check its outcome"
            ) from None
        except BaseException:  # the waiting thread was interrupted: the work must not continue unobserved
            waiting.cancel()
            raise

    def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a plain function on the loop's thread and wait for it."""

        async def called() -> T:
            return function(*arguments, **named)

        return self.run(called())

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run clean-up work and wait for it, except on the loop's own thread, which cannot wait."""
        if not self.running:
            work.close()
        elif threading.current_thread() is self._thread:
            self._ending = self._loop.create_task(work)
        else:
            self.run(work)

    def post(self, call: tuple[Any, ...]) -> None:
        """Run `call[0](*call[1:])` on the loop without waiting; posted calls run together, in order."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        self._woken = False
        calls = self._calls
        for _ in range(len(calls)):
            function, *arguments = calls.popleft()
            function(*arguments)

    def stop(self) -> None:
        if self.running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)


def begin(work: Coroutine[Any, Any, T]) -> tuple[LoopThread, T]:
    """Start a thread and run `work` on it; returns both. The thread is stopped if `work` raises."""
    thread = LoopThread()
    try:
        return thread, thread.run(work)
    except BaseException:
        thread.stop()
        raise
