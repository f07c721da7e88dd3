"""When the disk is nearly full: what is still taken, and from what space.

A peer whose disk is full must refuse entries and still keep its promises, or the cluster would lose a voter with every
full disk. Promises go to log segments that own their blocks, so they need no space. What does need some is finishing
what was accepted (copying entries from the log to lane files) and the next checkpoint, without which log segments are
not freed. Both are prepared for:

    entries are accepted against a grant: space the file system said was free, minus what is accepted and not yet in
    lane files, minus a margin. A grant is for some MiB, so that asking is rare
    a reserved file, filled with zeros, is given up when a write fails for lack of space all the same (someone else
    filled the disk), and made again when there is room

The margin and the reserved file both have the size `reserved_bytes`.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final

from avow.storage.files import Files, fill_with_zeros

_GRANT_BYTES: Final = 16 * 1024 * 1024
_PATH: Final = "reserve"


class Room:
    """`claim` and `give_back` belong to the writers' lock, `settled` to the sync thread, the rest to anyone."""

    def __init__(self, files: Files, *, reserved_bytes: int) -> None:
        self._files, self._reserved_bytes = files, reserved_bytes
        # Two sums that only grow, each changed by one side, so that neither needs a lock.
        self._granted = self._claimed = self._settled = 0
        self.full = False

    def claim(self, growth: int) -> bool:
        """Whether this many bytes of entries may be accepted. What was claimed counts until `settled`."""
        if self._granted < growth:
            free = self._files.free_bytes() - (self._claimed - self._settled) - self._reserved_bytes
            self._granted = max(0, min(free, max(_GRANT_BYTES, growth)))
            self.full = self._granted < growth
            if self.full:
                return False
        self._granted -= growth
        self._claimed += growth
        return True

    def claim_margin(self, growth: int) -> bool:
        """The same for a snapshot, which may use the margin: it is what a trim that makes room has to begin with."""
        if self.claim(growth):
            return True
        if self._files.free_bytes() - (self._claimed - self._settled) < growth:
            return False
        self._granted = 0  # what is left of the grant may be what the snapshot uses
        self._claimed += growth
        return True

    def give_back(self, growth: int) -> None:
        """Claimed and not written after all."""
        self._claimed -= growth

    def settled(self, growth: int) -> None:
        """Bytes that are in lane files now."""
        self._settled += growth

    def release(self) -> None:
        """Give up the reserved file: something that was accepted has to be finished."""
        self._files.remove(_PATH)
        self.full = True

    def look_again(self) -> None:
        """Space may have been freed by others. Twice the reserve must fit, so that this does not flicker."""
        if self.full and self._files.free_bytes() - (self._claimed - self._settled) >= 2 * self._reserved_bytes:
            self.full = False

    def restore(self) -> None:
        """Make the reserved file, if it is missing and there is room for it twice."""
        if _PATH in self._files.names(".") or self._files.free_bytes() < 2 * self._reserved_bytes:
            return
        with contextlib.suppress(OSError):
            try:
                fill_with_zeros(self._files, f"{_PATH}.new", size=self._reserved_bytes)
                self._files.rename(old=f"{_PATH}.new", new=_PATH)
            except OSError:
                self._files.remove(f"{_PATH}.new")
                raise


def is_no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
