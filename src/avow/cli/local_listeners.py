"""Which process of this machine listens on a port, read from /proc (Linux), as far as this user has permission."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from msgspec import Struct

LISTENING: Final = "0A"
COMMAND_CHARS: Final = 80


class Listener(Struct, frozen=True):
    pid: int
    command: str


def listeners(ports: Collection[int]) -> dict[int, Listener]:
    """By port. Scans all processes once, whatever the number of ports."""
    sockets = _sockets(ports)
    found: dict[int, Listener] = {}
    for folder in Path("/proc").glob("[0-9]*") if sockets else ():
        for name in _open_files(folder) & sockets.keys():
            found[sockets[name]] = Listener(int(folder.name), _command(folder))
    return found


def _open_files(folder: Path) -> set[str]:
    """Links of a process's open files; empty if it ended meanwhile or may not be read."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(os.readlink(folder / "fd" / number))
    return found


def _sockets(ports: Collection[int]) -> dict[str, int]:
    """Ports of listening sockets, by the name that the socket has among a process's open files."""
    found: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            port = int(row[1].rpartition(":")[2], 16)
            if row[3] == LISTENING and port in ports:
                found[f"socket:[{row[9]}]"] = port
    return found


def _command(folder: Path) -> str:
    try:
        text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"
    return text if len(text) <= COMMAND_CHARS else f"{text[:COMMAND_CHARS]}..."
