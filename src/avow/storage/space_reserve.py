"""The space reserve: what is accepted on a nearly full disk, and from which space.

A peer whose disk is full must refuse entries but still store promises, or the cluster would lose a voter with every
full disk. Promises go to log segments with allocated blocks, so they need no space. Two things need space: copying
accepted entries from the log to lane files, and the next checkpoint, without which no log segment is freed. For these:

    entries are accepted against a grant: the free space of the file system, minus what is accepted and not yet in
    lane files, minus a margin. A grant is some MiB, so that the file system is rarely asked
    a reserved file of zeros is deleted when a write fails for lack of space in spite of this (other programs filled
    the disk), and created again when there is space

The margin and the reserved file both have the size `reserved_bytes`.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final

from avow.storage.files import Files, fill_with_zeros

_GRANT_BYTES: Final = 16 * 1024 * 1024
_PATH: Final = "reserve"


class SpaceReserve:
    """`claim` and `give_back` are called under the writers' lock, `applied` on the sync thread, the rest anywhere."""

    def __init__(self, files: Files, *, reserved_bytes: int) -> None:
        self._files, self._reserved_bytes = files, reserved_bytes
        # `_claimed` and `_applied` are each changed by one thread only, so that they need no lock.
        self._granted = self._claimed = self._applied = 0
        self.full = False

    def claim(self, growth: int) -> bool:
        """Whether this many bytes of entries may be accepted. They count as claimed until `applied`."""
        if self._granted < growth:
            free = self._files.free_bytes() - (self._claimed - self._applied) - self._reserved_bytes
            self._granted = max(0, min(free, max(_GRANT_BYTES, growth)))
            self.full = self._granted < growth
            if self.full:
                return False
        self._granted -= growth
        self._claimed += growth
        return True

    def claim_margin(self, growth: int) -> bool:
        """Like `claim`, for a snapshot, which may use the margin: a trim that frees space begins with a snapshot."""
        if self.claim(growth):
            return True
        if self._files.free_bytes() - (self._claimed - self._applied) < growth:
            return False
        self._granted = 0  # the snapshot may use what is left of the grant
        self._claimed += growth
        return True

    def give_back(self, growth: int) -> None:
        """Undo a claim whose bytes were not written."""
        self._claimed -= growth

    def applied(self, growth: int) -> None:
        """These bytes are in lane files now."""
        self._applied += growth

    def release(self) -> None:
        """Delete the reserved file, so that accepted operations can be finished."""
        self._files.remove(_PATH)
        self.full = True

    def recheck(self) -> None:
        """Check whether space was freed. Twice the reserve must be free, so that `full` does not flip repeatedly."""
        if self.full and self._files.free_bytes() - (self._claimed - self._applied) >= 2 * self._reserved_bytes:
            self.full = False

    def restore(self) -> None:
        """Create the reserved file if it is missing and twice its size is free."""
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
