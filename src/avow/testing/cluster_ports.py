"""Ports that stay a cluster's own for as long as it lives, also while one of its peers is down.

A peer that was killed must come back on the port its friends know, so a port cannot be left to the kernel at each
start. Asking the kernel for a free one and closing it again is a race twice over: another cluster on the machine may be
given the same one, and while the peer is down any outgoing connection may take it. So ports come from below the range
the kernel gives to outgoing connections, and each is claimed by a locked file that all clusters of this user look at.
The lock ends with the process that holds it, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO, Final

from avow.errors import TooMany

FIRST: Final = 11_000
LAST: Final = 31_999  # Linux gives outgoing connections 32768 and up
TRIES: Final = 2_000


class Ports:
    """Take as many as you need; `release` gives all of them back."""

    __slots__ = ("_held", "_random")

    def __init__(self) -> None:
        self._held: list[IO[bytes]] = []
        self._random = random.Random()

    def take(self, host: str = "127.0.0.1") -> int:
        for _ in range(TRIES):
            port = self._random.randint(FIRST, LAST)
            if self._claim(port) and is_free(port, host):
                return port
        raise TooMany(
            f"no free port between {FIRST} and {LAST} in {TRIES} tries; nothing was started. End some process"
        )

    def claim(self, *ports: int) -> bool:
        """These very ones, all or none: whether they are free and no other cluster has claimed them."""
        before = len(self._held)
        if all(self._claim(port) and is_free(port) for port in ports):
            return True
        for file in self._held[before:]:
            file.close()
        del self._held[before:]
        return False

    def release(self) -> None:
        for file in self._held:
            file.close()
        self._held.clear()

    def _claim(self, port: int) -> bool:
        file = (_folder() / str(port)).open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._held.append(file)
        return True


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Nobody listens there and nobody holds it. Connections that are ending do not count."""
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
