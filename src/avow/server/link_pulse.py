"""The pulse of a link: when this end must send something, and when the other end has been silent for too long.

TCP notices a broken connection late: it repeats what was lost after 0.2, 0.4, 0.8 s and so on, so after a partition of
15 s it may be silent for as long again. A new connection does not have that delay. Therefore each end of a link sends
at least an `Alive` in every beat, and closes a link on which nothing, not even a part of a frame, arrived for
`SILENT_BEATS`.

Silence is counted in beats of this peer's own timer, not in seconds. When its event loop was blocked for a while, what
the other end sent waits in the socket and is read before the next beat. So this peer never judges a link by time in
which it did not read.

The other end may be silent because its process is busy, for example with a take-over of a long log. Then its kernel
still acknowledges what is sent to it. Such a link is kept: a new one would be as silent, and what was under way on the
old one would have to begin again.
"""

from __future__ import annotations

import socket
import sys
from enum import Enum, auto
from typing import Final, Protocol

from avow.limits import LINK_BEAT_S, LINK_SILENT_S

SILENT_BEATS: Final = round(LINK_SILENT_S / LINK_BEAT_S)


# struct tcp_info of Linux: retransmissions that were not answered, and milliseconds since an acknowledgement arrived
_RETRANSMITS_AT: Final = 2
_LAST_ACK_AT: Final = 56
_TCP_INFO_BYTES: Final = 104


class _Socket(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def is_acknowledged(sock: _Socket) -> bool:
    """Whether the other end's machine acknowledged within `LINK_SILENT_S` what was sent to it. False where the system
    does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return False
    if len(info) < _LAST_ACK_AT + 4 or info[_RETRANSMITS_AT]:
        return False
    return int.from_bytes(info[_LAST_ACK_AT : _LAST_ACK_AT + 4], sys.byteorder) < LINK_SILENT_S * 1000


class Due(Enum):
    """What a link must do after a beat."""

    NOTHING = auto()
    SAY_ALIVE = auto()
    CLOSE = auto()


class Pulse:
    """Of one link. `answered`: the other end sends in every beat, too; the first release does not."""

    __slots__ = ("_said", "answered", "silent_beats")

    def __init__(self, *, answered: bool) -> None:
        self.answered = answered
        self._said = False
        self.silent_beats = 0

    def heard(self) -> None:
        """Some bytes arrived."""
        self.silent_beats = 0

    def said(self) -> None:
        """Something was sent."""
        self._said = True

    def beat(self) -> Due:
        """Call it once in every `LINK_BEAT_S`, and then do what it returns."""
        if not self.answered:
            return Due.NOTHING
        self.silent_beats += 1
        if self.silent_beats > SILENT_BEATS:
            return Due.CLOSE
        said, self._said = self._said, False
        return Due.NOTHING if said else Due.SAY_ALIVE
