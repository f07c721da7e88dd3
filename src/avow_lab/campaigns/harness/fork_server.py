"""A fork server: it imports programs once, and starts each of them by forking.

Importing dominates the cost of starting a Python program: 0.6 s of CPU for a peer. Campaigns start programs thousands
of times, so one process imports everything and forks a child for each start. A child has its own pid, session, output
and log, and kill -9 ends it alone. It inherits nothing that was opened: the fork server has one thread, no event loop,
no store and no connection, and refuses to fork otherwise.

    with ForkServer("avow_lab.campaigns.pledges.service") as fork_server:
        child = fork_server.start_program(["-m", "avow_lab.campaigns.pledges.service"], out=.., log=.., ..)

A program needs a function `main`. It is named as after `python`: `-m` and a module, or a file. Children end with the
fork server, and the fork server ends with the process that started it, where setpriv exists.

A request and its answer are one line of JSON each.
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
from typing import IO, Any, Final, Self, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import Offline


class Start(Struct, frozen=True, tag=True):
    """Fork a child. The answer is its pid. `command` is what would follow `python`."""

    command: tuple[str, ...]
    out: str
    log: str
    environment: dict[str, str]


class Poll(Struct, frozen=True, tag=True):
    """The answer is the exit code of a child, or None while it runs. May be repeated after the child ended."""

    pid: int


Request: TypeAlias = Start | Poll


class Answer(Struct, frozen=True, omit_defaults=True):
    value: int | None = None
    error: str = ""


MODULE: Final = "avow_lab.campaigns.harness.fork_server_process"
STOP_S: Final = 20.0
_POLL_S: Final = 0.01
_spawner: Final = ThreadPoolExecutor(1, thread_name_prefix="avow-spawner")  # pdeathsig means the parent THREAD


def spawn(command: Sequence[str], **given: Any) -> subprocess.Popen[bytes]:
    """Start Python with `command` in a session of its own. It ends with this process, where setpriv exists."""
    setpriv = shutil.which("setpriv")
    bound = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv and sys.platform == "linux" else []
    whole = [*bound, sys.executable, *command]
    return _spawner.submit(lambda: subprocess.Popen(whole, start_new_session=True, **given)).result()


class ForkServer:
    """Imports `programs` once. Its standard error goes to `log`. May be used by several threads."""

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
        with Path(self._log or os.devnull).open("ab") as log:
            self._process = spawn(
                ["-m", MODULE, *self._programs],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log if self._log else None,
                bufsize=0,
            )
        self._read_answer()  # everything is imported

    def close(self) -> None:
        """End it and its children. May be called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def start_program(
        self, command: Sequence[str], *, out: Path, log: Path, environment: Mapping[str, str]
    ) -> ForkedProgram:
        """Returns when the child exists. Its standard output replaces `out`, its standard error is added to `log`."""
        out.write_bytes(b"")  # or the output of an earlier child could be read
        pid = self.ask(Start(tuple(command), str(out), str(log), dict(environment)))
        assert pid is not None
        return ForkedProgram(self, pid)

    def ask(self, request: Request) -> int | None:
        with self._lock:
            try:
                _pipe(self._process, "stdin").write(msgspec.json.encode(request) + b"\n")
            except BrokenPipeError as cause:
                raise self._ended() from cause
            return self._read_answer()

    def _read_answer(self) -> int | None:
        line = _pipe(self._process, "stdout").readline()
        if not line:
            raise self._ended()
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise Offline(f"the fork server started nothing: {answer.error}")
        return answer.value

    def _ended(self) -> Offline:
        tail = self._log.read_text(errors="replace")[-1000:] if self._log and self._log.exists() else ""
        logged = f"; its log ends with: {tail.strip() or '(nothing)'}" if self._log else ""
        return Offline(f"the fork server ended, and its programs with it{logged}")


class ForkedProgram:
    """A child of a fork server, with the part of `subprocess.Popen` that is needed. Its pid is not reused before a poll
    has returned its exit code."""

    __slots__ = ("_code", "_fork_server", "pid")

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self._fork_server, self.pid = fork_server, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            self._code = self._fork_server.ask(Poll(self.pid))
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (STOP_S if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), STOP_S if timeout is None else timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(number))


def _pipe(process: subprocess.Popen[bytes] | None, name: str) -> IO[bytes]:
    if process is None:
        raise Offline("the fork server is not running; nothing was started")
    pipe: IO[bytes] = getattr(process, name)
    return pipe
