"""The fork server's process: `python -m avow_lab.campaigns.harness.fork_server_process PROGRAM...`

It reads one request, performs it, and answers, so a fork always copies an idle process. A child that ended remains a
zombie until it is polled, so its pid is not reused before.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

import msgspec

from avow_lab.campaigns.harness.fork_server import Answer, Request, Start

_PR_SET_PDEATHSIG: Final = 1
_IMPORTED: Final[dict[str, ModuleType]] = {}
_CODES: Final[dict[int, int]] = {}  # exit codes of children by pid, until the pid is reused


def main(programs: Sequence[str]) -> None:
    """Standard output carries only answers: what an import prints goes to standard error."""
    asked, answering = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    for name in programs:
        program(name)
    gc.collect()
    gc.freeze()  # pages that a child's collector does not touch are not copied
    os.write(answering, msgspec.json.encode(Answer()) + b"\n")
    with os.fdopen(asked, "rb") as requests:
        for line in requests:
            request = msgspec.json.decode(line, type=Request)
            answer = _fork(request, asked, answering) if isinstance(request, Start) else _poll(request.pid)
            os.write(answering, msgspec.json.encode(answer) + b"\n")


def program(name: str) -> ModuleType:
    """A module by its name, or a file; imported at most once."""
    if name not in _IMPORTED:
        _IMPORTED[name] = _load(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    return _IMPORTED[name]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _poll(pid: int) -> Answer:
    if pid not in _CODES:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return Answer()
        _CODES[pid] = os.waitstatus_to_exitcode(status)
    return Answer(_CODES[pid])


def _fork(start: Start, *inherited: int) -> Answer:
    if threading.active_count() > 1 or _tasks() > 1:
        return Answer(error="an import started a thread, whose locks a forked child could never acquire")
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _run_child(start, parent, inherited)
    _CODES.pop(pid, None)
    return Answer(pid)


def _tasks() -> int:
    """Includes threads that Python did not start."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) if tasks.exists() else 1


# ------------------------------------------------------------------------------------------------ in the child


def _run_child(start: Start, parent: int, inherited: Sequence[int]) -> NoReturn:
    """Never returns to the server's loop."""
    code = 1
    try:
        _detach(start, parent, inherited)
        code = _run(start.command)
    except BaseException:  # the boundary of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _detach(start: Start, parent: int, inherited: Sequence[int]) -> None:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl
            os._exit(1)
    for number in inherited:
        os.close(number)
    for stream, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, start.out, os.O_WRONLY | os.O_CREAT),
        (2, start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.clear()
    os.environ.update(start.environment)


def _run(command: Sequence[str]) -> int:
    name, *flags = command[1:] if command[0] == "-m" else command
    sys.argv = [name, *flags]
    run: Callable[[], object] = program(name).main
    try:
        run()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
