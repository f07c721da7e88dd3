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
from typing import Final

from avow.errors import TooMany

FIRST: Final = 11_000
LAST: Final = 31_999  # Linux gives outgoing connections 32768 and up
TRIES: Final = 2_000


class Ports:
    """Take as many as you need; `release` gives all of them back."""

    __slots__ = ("_held", "_random")

    def __init__(self) -> None:
        self._held: list[int] = []  # descriptors: one that nobody released goes with its process, without a word
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
