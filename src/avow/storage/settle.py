"""Freeing log segments: sync what they cover, write a checkpoint, and only then let them be used again.

When the log moves on to another segment, everything in the segments before is in lane files, though perhaps not on the
disk. What was changed since the last checkpoint is noted at that moment, on the sync thread, because afterwards the
lanes move on. Syncing it takes a while with many lanes, so it happens on a thread of its own; meanwhile the log fills
another segment. Should it fill the last free one first, the log waits: that pressure keeps recovery short.

A checkpoint that does not fit on a full disk is not written; the segments stay, and the next one covers them too. Any
other error is final, as everywhere in storage: what a failed sync left behind is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from avow.storage.checkpoint import Checkpoint, LaneMeta, write_checkpoint
from avow.storage.files import Files
from avow.storage.lane import Lane
from avow.storage.recovery import Sizes, remove_snapshots, sync_path
from avow.storage.room import Room, is_no_space
from avow.storage.wal import Wal, fill_slot, slot_path


@dataclass
class Settlement:
    """What one checkpoint will say, and the lanes that changed since the one before."""

    replay_from: int
    lsn: int
    incarnation: int
    lanes: dict[int, LaneMeta]
    changed: list[Lane]


class Settling:
    """Called from one thread at a time."""

    def __init__(self, files: Files, sizes: Sizes, room: Room, wal: Wal, last: Checkpoint) -> None:
        self._files, self._sizes, self._room, self._wal = files, sizes, room, wal
        self._last = last

    def settle(self, job: Settlement) -> bool:
        """False: the disk is full, and the log keeps its segments."""
        checkpoint = Checkpoint(
            version=self._last.version + 1,
            opening=self._last.opening,
            replay_from=job.replay_from,
            lsn=job.lsn,
            incarnation=job.incarnation,
            lanes=job.lanes,
        )
        self._sync(job.changed)
        if not self._write(checkpoint):
            return False
        self._last = checkpoint
        self._wal.retire(job.replay_from)
        for lane in job.changed:
            remove_snapshots(self._files, lane.number, before_lsn=job.lanes[lane.number].snapshot_lsn)
        self._room.restore()
        return True

    def _sync(self, changed: Iterable[Lane]) -> None:
        paths: list[str] = []
        folders: list[str] = []
        for lane in changed:
            dirty, folder_changed = lane.take_dirty()
            paths += dirty
            if folder_changed:
                folders.append(lane.files.folder)
        for path in paths:
            sync_path(self._files, path)
        for folder in folders:
            self._files.sync_folder(folder)
        if folders:
            self._files.sync_folder("lanes")

    def _write(self, checkpoint: Checkpoint) -> bool:
        """Try once as it is and once with the reserved file given up."""
        for _ in range(2):
            try:
                write_checkpoint(self._files, checkpoint)
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._room.release()
            else:
                return True
        return False

    def prepare_slots(self, at_most: int | None = None) -> None:
        """Fill the segments that are still missing. On a disk without room for them the log does with fewer."""
        wanted = self._sizes.wal_segments if at_most is None else at_most
        taken = set(self._files.names("wal"))
        number = 0
        while self._wal.slots < wanted:
            if slot_path(number).rpartition("/")[2] not in taken and not self._add_slot(number):
                return
            number += 1

    def _add_slot(self, number: int) -> bool:
        try:
            self._wal.add_slot(fill_slot(self._files, number, size=self._sizes.wal_segment_bytes))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(f"{slot_path(number)}.new")
            if not is_no_space(error):
                raise
            return False
        return True
