"""Ports that a cluster keeps for its whole life, even while one of its peers is down.

A killed peer must restart on the port that the others know, so the kernel cannot choose a port at each start. Asking
the kernel for a free port and closing it is a race: another cluster on the machine may get the same one, and while the
peer is down an outgoing connection may take it. So ports come from below the kernel's range for outgoing connections,
and each is claimed by a locked file that all clusters of this user check. The lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

from avow.errors import TooMany

FIRST: Final = 11_000
LAST: Final = 31_999  # Linux gives outgoing connections 32768 and up
TRIES: Final = 2_000


class Ports:
    """`take` claims ports one by one; `release` gives all of them back."""

    __slots__ = ("_held", "_random")

    def __init__(self) -> None:
        self._held: list[int] = []  # descriptors of lock files; the kernel closes those that were not released
        self._random = random.Random()

    def take(self, host: str = "127.0.0.1") -> int:
        for _ in range(TRIES):
            port = self._random.randint(FIRST, LAST)
            if self._claim(port) and is_free(port, host):
                return port
        raise TooMany(
            f"found no free port between {FIRST} and {LAST} in {TRIES} attempts; nothing was started. End processes "
            "that use these ports"
        )

    def claim(self, *ports: int) -> bool:
        """Claim exactly these ports, all or none; False if one is in use or claimed by another cluster."""
        before = len(self._held)
        if all(self._claim(port) and is_free(port) for port in ports):
            return True
        self._release(before)
        return False

    def release(self) -> None:
        self._release(0)

    def _release(self, first: int) -> None:
        for held in self._held[first:]:
            os.close(held)
        del self._held[first:]

    def _claim(self, port: int) -> bool:
        held = os.open(_folder() / str(port), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return False
        self._held.append(held)
        return True


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there. Connections that are closing do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"avow-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
