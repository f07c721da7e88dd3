"""The process in which one message is followed: a peer and a client of one build, on one event loop in one thread.

    PYTHONPATH=<src of a build> python -P walk_driver.py        prints the calls of one message, as JSON

It uses nothing of Avow but its command line and `avow.connect`, so it runs every build that has both. It imports
nothing of this repository. What is counted as a hop is decided in `benchmarks.walk`.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import io
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ATTEMPTS_MAX: Final = 400
AGREEING: Final = 3
UNRECORDED: Final = 5
QUIET_S: Final = 0.01
QUEUE: Final = "walk"
_STORES: Final = {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR"}
_LOADS: Final = {"LOAD_METHOD", "LOAD_ATTR"}
_CHANGING: Final = {
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "push", "put"),
    *("pop", "popleft", "popitem", "remove", "discard", "clear"),
    *("write", "writelines", "sendall", "send", "pwrite", "pwritev", "fdatasync"),
    *("set_result", "set_exception", "call_soon", "call_soon_threadsafe", "call_later", "call_at", "cancel"),
}
_CALLBACK: Final = asyncio.Handle._run.__code__  # what calls everything that the event loop calls


class Recorder:
    """Records calls into files below `root`, in order, between `start` and `stop`. A call names its caller by index."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._known: dict[FrameType, int] = {}  # kept, because a coroutine that goes on is not a new call
        self._calls: list[dict[str, Any]] = []
        self._on = self._disturbed = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is _CALLBACK and isinstance(frame.f_locals.get("self"), asyncio.TimerHandle):
            self._disturbed = True
        if not code.co_filename.startswith(self._root) or frame in self._known:
            return
        self._known[frame] = len(self._calls)
        self._calls.append(
            {
                "file": code.co_filename.removeprefix(self._root),
                "function": code.co_qualname,
                "line": code.co_firstlineno,
                "caller": self._caller(frame),
                "changes": False,
            }
        )

    def profile_elsewhere(self, frame: FrameType, event: str, _argument: object) -> None:
        """For threads other than the loop's: what one of them does has no place in the order of calls."""
        if self._on and event == "call" and frame.f_code.co_filename.startswith(self._root):
            self._disturbed = True

    def trace(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        """Marks a call when it changes something. What it could have changed in another branch does not count."""
        if not frame.f_code.co_filename.startswith(self._root):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode" and frame.f_lasti in changing_places(frame.f_code):
            call = self._known.get(frame)
            if call is not None:
                self._calls[call]["changes"] = True
        return self.trace

    def start(self) -> None:
        self._calls, self._known, self._disturbed = [], {}, False
        self._on = True
        sys.setprofile(self.profile)
        sys.settrace(self.trace)

    def stop(self) -> list[dict[str, Any]] | None:
        """The calls, or None if a timer fired or another thread worked since `start`."""
        sys.settrace(None)
        sys.setprofile(None)
        self._on = False
        return None if self._disturbed else self._calls

    def _caller(self, frame: FrameType) -> int:
        """The index of the nearest caller below `root`; -1 if the event loop or this module called."""
        above = frame.f_back
        while above is not None and above.f_code is not _CALLBACK:
            if above in self._known:
                return self._known[above]
            above = above.f_back
        return -1


@functools.cache
def changing_places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that change something. What a constructor stores in the new object is no change."""
    stores = _STORES - {"STORE_ATTR"} if code.co_name == "__init__" else _STORES
    return frozenset(
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname in stores
        or (instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars)
        or (instruction.opname in _LOADS and instruction.argval in _CHANGING)
    )


async def walk(api: str, recorder: Recorder) -> list[dict[str, Any]]:
    import avow

    async with await avow.connect(api) as client:
        await client.create_queue(QUEUE)
        while not await client.peers():  # the peer has just begun and may not have entered itself in the list yet
            await asyncio.sleep(QUIET_S)
        queue = client.queue(QUEUE)
        latest: list[dict[str, Any]] | None = None
        agreed = 0
        for _ in range(ATTEMPTS_MAX):
            for _ in range(UNRECORDED):  # recording is slow, and a store syncs in place only while syncs are fast
                await queue.enqueue(b"one message")
            await asyncio.sleep(QUIET_S)
            recorder.start()
            await queue.enqueue(b"one message")
            calls = recorder.stop()
            if calls is None:
                continue
            agreed = agreed + 1 if calls == latest else 1
            latest = calls
            if agreed == AGREEING:
                return calls
    raise RuntimeError(f"of {ATTEMPTS_MAX} messages no {AGREEING} in a row made the same calls")


class Announcement(io.TextIOBase):
    """Takes the place of stdout, and calls `then` with the line in which the peer says where it listens."""

    def __init__(self, then: Callable[[str], None]) -> None:
        self._text, self._then = "", then

    def write(self, text: str) -> int:
        self._text += text
        line, end, _ = self._text.partition("\n")
        if end and line:
            self._text = ""
            self._then(line)
        return len(text)


def main() -> None:
    stdout = sys.stdout
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # Python's own loop: its timers can be seen
    os.fdatasync = lambda fd: None  # noqa: ARG005 - a fast disk: the thread that writes also syncs
    import avow

    recorder = Recorder(Path(avow.__file__).parent)
    tasks: list[asyncio.Task[None]] = []

    async def client(api: str) -> None:
        try:
            json.dump(await walk(api, recorder), stdout)
            stdout.flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def serving(line: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(client(json.loads(line)["api"])))

    from avow.cli.main import main as command

    with tempfile.TemporaryDirectory(prefix="avow-walk-") as folder:
        sys.argv = ["avow", "serve", "--data", f"{folder}/peer", "--log", "warning"]
        sys.argv += ["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]
        sys.stdout = Announcement(serving)
        threading.setprofile(recorder.profile_elsewhere)
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            threading.setprofile(None)
            sys.stdout = stdout
    for task in tasks:
        task.result()


if __name__ == "__main__":
    main()
