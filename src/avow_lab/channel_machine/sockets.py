"""Sockets that fail in every way a real one does: late, half-open, cut in the middle of their data.

A socket has two ways, one for each end that writes. A written packet waits in its way until a move delivers it, perhaps
long after a newer socket is up. A way that is cut still delivers some of the packets it had, and drops everything after
that without an error for the writer: each end detects a loss by itself, at some time or never. Within one way packets
keep their order, as on TCP.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from avow_lab.checkers.two_phase import Violation

DIALER, ACCEPTOR = "dialer", "acceptor"
OTHER: Final = {DIALER: ACCEPTOR, ACCEPTOR: DIALER}
PACKETS_MAX: Final = 10_000  # waiting in one way: more means that the ends exchange packets without end


class Way:
    """What one end writes and the other reads."""

    def __init__(self) -> None:
        self._packets: deque[bytes] = deque()
        self._cut = False

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def good(self) -> bool:
        return not self._cut

    def put(self, packet: bytes) -> None:
        if self._cut:
            return
        self._packets.append(packet)
        if len(self._packets) > PACKETS_MAX:
            raise Violation("no progress", f"{PACKETS_MAX} packets wait on one socket")

    def take(self) -> bytes:
        return self._packets.popleft()

    def cut(self, *, keep: int = 0) -> None:
        """Nothing is delivered any more except the first `keep` packets that wait."""
        self._cut = True
        while len(self._packets) > keep:
            self._packets.pop()


class Socket:
    """`generation` is the initiator's number for it; `accepted` the acceptor's, 0 until it took the Hello."""

    def __init__(self, number: int, *, generation: int) -> None:
        self.number, self.generation = number, generation
        self.accepted = 0
        self.refused = False  # the acceptor has answered the Hello with an End and reads no more
        self.ways = {DIALER: Way(), ACCEPTOR: Way()}
        self.greeted = {DIALER: False, ACCEPTOR: False}  # who has written its Hello
        self.acks_sent = {DIALER: 0, ACCEPTOR: 0}  # the highest ack each has written, by Hello or frame
        self.commits = {DIALER: 0, ACCEPTOR: 0}  # of each as a sender: the highest one the other can have

    @property
    def good(self) -> bool:
        return all(way.good for way in self.ways.values())

    @property
    def empty(self) -> bool:
        return not any(map(len, self.ways.values()))
