"""An event loop in a thread of its own, for callers that have none.

Work is handed over in two ways. `run` waits for a coroutine, as long as it takes. `post` does not wait: calls posted
before the loop looks again are run together, in order, so that many small ones cost one hand-over.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

from avow.errors import InvalidRequest

T = TypeVar("T")
_STOP_S: Final = 5.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """An event loop in a thread of its own. `run` may be called from any other thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name="avow-client", daemon=True)
        self._thread.start()
        self._calls: deque[tuple[Any, ...]] = deque()
        self._woken = False
        self.generators: set[AsyncGenerator[Any, None]] = (
            set()
        )  # begun here and not ended: to be closed before the loop
        self._ending: asyncio.Task[None] | None = None

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)  # of threads that still wait: they hear that the client is closed
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
            raise InvalidRequest("this client is closed; nothing was sent. Connect again")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequest("a blocking call on the client's own thread would wait for itself; nothing was sent")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except CancelledError:
            raise InvalidRequest("this client was closed meanwhile; a write may or may not have happened") from None
        except BaseException:  # an interrupt of the waiting thread: the work must not go on unseen
            waiting.cancel()
            raise

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """The end of something that may be collected on any thread, also on the loop's own: that one cannot wait."""
        if not self.running:
            work.close()
        elif threading.current_thread() is self._thread:
            self._ending = self._loop.create_task(work)
        else:
            self.run(work)

    def post(self, call: tuple[Any, ...]) -> None:
        """Run `call[0](*call[1:])` on the loop; calls posted before it looks are run together, in order."""
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
