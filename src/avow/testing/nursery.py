"""Programs that are killed and started again thousands of times: forked from a process that has imported everything.

Most of what a start of a Python program costs is importing: 0.6 s of CPU for a peer, that does not depend on what it
will do. A nursery is one process that imports once and then forks a child for each start. The child is a process like
any other, with its own pid, session, output and log; it is what kill -9 ends, and it has opened nothing before it was
forked: the nursery has one thread, no event loop, no store and no connection (it refuses to fork otherwise).

    with Nursery("avow.testing.prove_pledges.service") as nursery:
        child = nursery.begin(["-m", "avow.testing.prove_pledges.service", "--port", "0"], out=.., log=.., ..)

A program in a nursery has a function `main`, and is named as after `python`: `-m` and a module, or a file. Children end
with the nursery, and the nursery with the process that started it, where the kernel can be asked for that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from avow.errors import Offline
from avow.testing.nursery_requests import Answer, Look, Request, Start

HOME: Final = "avow.testing.nursery_home"
STOP_S: Final = 20.0
_LOOK_S: Final = 0.01
_spawner: Final = ThreadPoolExecutor(1, thread_name_prefix="avow-nursery")  # a child ends with its parent THREAD


class Nursery:
    """`programs` are imported once, `log` is where it says what went wrong. Used by any number of threads."""

    def __init__(self, *programs: str, log: Path | None = None) -> None:
        self._programs, self._log = programs, log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._process = _spawner.submit(self._spawn).result()
        self._hear()  # it says that it has imported everything

    def close(self) -> None:
        """Its children end with it. May be called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def begin(self, command: Sequence[str], *, out: Path, log: Path, environment: Mapping[str, str]) -> Nursling:
        """Returns when the child exists. Its standard output is `out`, made anew; standard error is added to `log`."""
        out.write_bytes(b"")  # nobody shall read what a former child said
        pid = self.ask(Start(tuple(command), str(out), str(log), dict(environment)))
        assert pid is not None
        return Nursling(self, pid)

    def ask(self, request: Request) -> int | None:
        with self._lock:
            try:
                _pipe(self._process, "stdin").write(msgspec.json.encode(request) + b"\n")
            except BrokenPipeError as cause:
                raise Offline(f"the nursery has ended, and its programs with it; {self._last_words()}") from cause
            return self._hear()

    def _hear(self) -> int | None:
        line = _pipe(self._process, "stdout").readline()
        if not line:
            raise Offline(f"the nursery has ended, and its programs with it; {self._last_words()}")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise Offline(f"the nursery started nothing: {answer.error}")
        return answer.value

    def _spawn(self) -> subprocess.Popen[bytes]:
        bind = shutil.which("setpriv")
        bound = [bind, "--pdeathsig", "KILL", "--"] if bind and sys.platform == "linux" else []
        with Path(self._log or os.devnull).open("ab") as log:
            return subprocess.Popen(
                [*bound, sys.executable, "-m", HOME, *self._programs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log if self._log else None,
                bufsize=0,
                start_new_session=True,
            )

    def _last_words(self) -> str:
        said = self._log.read_text(errors="replace")[-1000:] if self._log and self._log.exists() else ""
        return f"it said: {said.strip() or '(nothing)'}"


class Nursling:
    """A child of a nursery, with what of `subprocess.Popen` is needed. Its pid is its own until somebody has looked."""

    __slots__ = ("_code", "_nursery", "pid")

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            self._code = self._nursery.ask(Look(self.pid))
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (STOP_S if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), STOP_S if timeout is None else timeout)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(number))


def _pipe(process: subprocess.Popen[bytes] | None, name: str) -> IO[bytes]:
    if process is None:
        raise Offline("the nursery is not running; nothing was started")
    pipe: IO[bytes] = getattr(process, name)
    return pipe
