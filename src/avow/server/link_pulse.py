"""The pulse of a link: when this end must send something, and when the other end has been silent for too long.

TCP notices a broken connection late: it repeats what was lost after 0.2, 0.4, 0.8 s and so on, so after a partition of
15 s it may be silent for as long again. A new connection does not have that delay. Therefore each end of a link sends
at least an `Alive` in every beat, and closes a link on which nothing, not even a part of a frame, arrived for
`SILENT_BEATS`.

Silence is counted in beats of this peer's own timer, not in seconds. When its event loop was blocked for a while, what
the other end sent waits in the socket and is read before the next beat. So this peer never judges a link by time in
which it did not read.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from avow.limits import LINK_BEAT_S, LINK_SILENT_S

SILENT_BEATS: Final = round(LINK_SILENT_S / LINK_BEAT_S)


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
