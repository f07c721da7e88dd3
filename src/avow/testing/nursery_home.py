"""The process of a nursery: `python -m avow.testing.nursery_home PROGRAM...`; see nursery.py for what it is for.

It blocks in one read, does what it is asked, and answers; so between two requests nothing of it is half done, and a
fork copies a process that stands still. A child that ended stays until it is looked at, so its pid names nobody else.
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

from avow.testing.nursery_requests import Answer, Request, Start

_PR_SET_PDEATHSIG: Final = 1
_KNOWN: Final[dict[str, ModuleType]] = {}
_CODES: Final[dict[int, int]] = {}  # of children that ended, by pid; until a pid is given away again


def main(programs: Sequence[str]) -> None:
    """Standard output belongs to the answers alone: what an import prints goes to standard error."""
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
            answer = _begin(request, asked, answering) if isinstance(request, Start) else _look(request.pid)
            os.write(answering, msgspec.json.encode(answer) + b"\n")


def program(name: str) -> ModuleType:
    """A module by its name, or a file; imported at most once."""
    if name not in _KNOWN:
        _KNOWN[name] = _load(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    return _KNOWN[name]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _look(pid: int) -> Answer:
    if pid not in _CODES:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return Answer()
        _CODES[pid] = os.waitstatus_to_exitcode(status)
    return Answer(_CODES[pid])


def _begin(start: Start, *inherited: int) -> Answer:
    if threading.active_count() > 1 or _tasks() > 1:
        return Answer(error="an import started a thread; a fork would leave its locks held for ever")
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(start, parent, inherited)
    _CODES.pop(pid, None)
    return Answer(pid)


def _tasks() -> int:
    """Threads that Python knows nothing of, too."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) if tasks.exists() else 1


# ------------------------------------------------------------------------------------------------ in the child


def _become(start: Start, parent: int, inherited: Sequence[int]) -> NoReturn:
    """Never returns into the nursery's loop, whatever happens."""
    code = 1
    try:
        _leave(start, parent, inherited)
        code = _run(start.command)
    except BaseException:  # the boundary of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave(start: Start, parent: int, inherited: Sequence[int]) -> None:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
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
