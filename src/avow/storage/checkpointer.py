"""The checkpointer frees log segments: it syncs what they cover, writes a checkpoint, and then releases them.

When the log continues in another segment, everything in the earlier segments has been written to lane files, though
perhaps not synced. The sync thread collects the changes since the last checkpoint at that moment, because the lanes
change afterwards. Syncing many lanes takes a while, so it happens on a thread of its own while the log fills another
segment. If the log fills the last free segment first, it waits; this keeps recovery short.

A checkpoint that does not fit on a full disk is not written; the segments stay, and the next checkpoint covers them
too. Any other error is final, as everywhere in storage, because the state of the disk after a failed sync is unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from avow.storage.checkpoint import Checkpoint, LaneMeta, write_checkpoint
from avow.storage.files import Files
from avow.storage.lane import Lane
from avow.storage.recovery import remove_snapshots, sync_path
from avow.storage.space_reserve import SpaceReserve, is_no_space
from avow.storage.store import Sizes
from avow.storage.wal import Wal, fill_slot, slot_path


@dataclass
class CheckpointJob:
    """The content of one checkpoint, and the lanes that changed since the previous one."""

    replay_from: int
    lsn: int
    incarnation: int
    lanes: dict[int, LaneMeta]
    lost_below: int
    changed: list[Lane]


class Checkpointer:
    """To be called from one thread at a time."""

    def __init__(self, files: Files, sizes: Sizes, reserve: SpaceReserve, wal: Wal, last: Checkpoint) -> None:
        self._files, self._sizes, self._reserve, self._wal = files, sizes, reserve, wal
        self._last = last

    def checkpoint(self, job: CheckpointJob) -> bool:
        """Sync the changed lanes and write the checkpoint. False: the disk is full, and the log keeps its segments."""
        checkpoint = Checkpoint(
            version=self._last.version + 1,
            opening=self._last.opening,
            replay_from=job.replay_from,
            lsn=job.lsn,
            incarnation=job.incarnation,
            lanes=job.lanes,
            marked=True,
            lost_below=job.lost_below,
            lost_promised=self._last.lost_promised,
        )
        self._sync(job.changed)
        if not self._write(checkpoint):
            return False
        self._last = checkpoint
        self._wal.retire(job.replay_from)
        for lane in job.changed:
            remove_snapshots(self._files, lane.number, before_lsn=job.lanes[lane.number].snapshot_lsn)
        self._reserve.restore()
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
        """Try twice: the second time after the reserved file was deleted."""
        for _ in range(2):
            try:
                write_checkpoint(self._files, checkpoint)
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._reserve.release()
            else:
                return True
        return False

    def prepare_slots(self, at_most: int | None = None) -> None:
        """Create the log segments that are missing. If the disk has no space for all, the log uses fewer."""
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
