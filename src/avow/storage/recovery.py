"""Recovery: bring the files of every lane to the state of the checkpoint and the log, then start a new log.

Nothing of the old log is overwritten before all of it is synced in the lane files and a new checkpoint is written, so a
crash during recovery only costs time. The order:

    1. read the checkpoint, the mark and the later log segments, and fold them into a plan for each lane      (`replay`)
    2. for each lane in the log: compare its files with the plan byte by byte, and rewrite from the first difference
    3. sync those files and folders; write the new checkpoint; the old log is free
    4. read and check each lane's entries after its snapshot

While an entry is in the log there are two copies of it, and each can repair the other. A record damaged in the log is
taken from the lane's file if it has the checksum in the log's header there. A lane's file that differs from an intact
record in the log is rewritten. Bytes that differ and are not an intact record either were damaged, unless they are
zeros or missing: those are writes that had not reached the disk.

A lane ends before its first unreadable entry (`damaged_from`). Nothing is deleted because it cannot be read.

If a part of the log is gone that was synced, any lane may have lost anything: entries, a cut, a promise. Then every
lane promises the highest ballot that the mark has for any lane, and counts as damaged; a lane of which nothing was
found may have been lost as a whole (`lost_below`). A lane ends at its snapshot: what is in that was committed and is
never replaced, but a later entry in the files may be older or newer than its neighbours. So this peer votes for nobody
on the strength of what it has, contradicts no promise it made, and is sent the rest again. That needs the mark, and
other peers: without a mark the peer is unfit to vote, and a peer that is alone in its cluster refuses to start, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from msgspec.structs import replace

from avow.errors import Irreparable, Malformed, StorageDamaged, UnfitToVote
from avow.replication.durable import LOST_UNBOUNDED, StoreImage
from avow.replication.effects import LaneImage
from avow.storage.checkpoint import (
    PATHS,
    Checkpoint,
    LaneMeta,
    read_checkpoint,
    read_snapshot,
    snapshot_path,
    write_checkpoint,
    write_snapshot,
)
from avow.storage.files import Files
from avow.storage.lane_state import LaneState
from avow.storage.replay import Extent, LanePlan, Log, replay
from avow.storage.segments import LaneFiles, shorten
from avow.storage.store import Sizes
from avow.storage.sync_mark import MARKS, Mark, SyncMark, read_mark
from avow.wire.messages import Entry, Snapshot
from avow.wire.record import HEADER_SIZE_BYTES, Buffer, read_record, record_size

FOLDERS: Final = ("wal", "lanes")
_SECTOR_BYTES: Final = 512


@dataclass
class RecoveredLane:
    state: LaneState
    files: LaneFiles
    snapshot_lsn: int
    snapshot_crc: int = 0  # 0: not known
    unreadable_upto: int = 0


@dataclass
class Recovered:
    checkpoint: Checkpoint
    mark: SyncMark
    lanes: dict[int, RecoveredLane]
    image: StoreImage
    used_sequence: int
    slots: list[str]


def recover(files: Files, sizes: Sizes, *, alone: bool = False) -> Recovered:
    """Damage is listed in the image.

    Raises UnfitToVote if promises are lost and it is not known which, and Irreparable if anything is lost and this peer
    is `alone`, without others to repair it. Then nothing was changed, so the next start finds it too.
    """
    damage: list[StorageDamaged] = []
    checkpoint = read_checkpoint(files, damage) or _first_checkpoint(files)
    _make_folders(files)
    mark = read_mark(files, damage) if checkpoint.marked else None
    if checkpoint.marked and mark is None:
        raise UnfitToVote(file=MARKS[0], position=0, expected="a mark of the log's last sync", found="none")
    log = replay(files, checkpoint, mark, damage)
    if log.lost and mark is None:
        raise _as(UnfitToVote, log.lost[0])
    if log.lost and alone:
        raise _as(Irreparable, log.lost[0])
    rebuilds = {number: _Rebuild(files, sizes, number, plan, damage) for number, plan in log.plans.items()}
    if alone:
        _refuse_loss(files, rebuilds)
    reached = _reached(log, mark)
    if log.lost:
        damage += log.lost
        _lose_part_of_log(log, rebuilds, reached)
    lanes = {number: rebuild.lane() for number, rebuild in rebuilds.items()}
    _sync(files, lanes)
    marks = SyncMark(files, reached)
    renewed = _renewed(checkpoint, log, lanes)
    write_checkpoint(files, renewed)
    images = {number: _image(files, number, lane, damage) for number, lane in lanes.items()}
    if any(lane.state != renewed.lanes[number].state for number, lane in lanes.items()):
        # Entries were unreadable: the next start must know how far the lane had reached.
        renewed = _renewed(renewed, log, lanes)
        write_checkpoint(files, renewed)
    _remove_old_snapshots(files, lanes)
    slots = [path for path, size in log.slots.items() if size == sizes.wal_segment_bytes]
    image = StoreImage(log.incarnation, images, damage, log.lost_below, log.lost_promised)
    return Recovered(renewed, marks, lanes, image, log.used, slots)


def _as(error: type[StorageDamaged], flaw: StorageDamaged) -> StorageDamaged:
    return error(file=flaw.file, position=flaw.position, expected=flaw.expected, found=flaw.found)


def _reached(log: Log, mark: Mark | None) -> Mark:
    """The mark of a log that goes on from here. Without one: of a new folder, or one that an earlier release wrote."""
    last = mark or Mark(0, log.lsn, log.used, 0, 0, 0, 0)
    promised = max((plan.state.promised for plan in log.plans.values()), default=0)
    return last._replace(promised=max(promised, last.promised), incarnation=max(log.incarnation, last.incarnation))


def _lose_part_of_log(log: Log, rebuilds: dict[int, _Rebuild], reached: Mark) -> None:
    for number, plan in log.plans.items():
        plan.state.lose_part_of_log(reached.promised)
        rebuilds[number].gap = log.gap
    log.incarnation = reached.incarnation
    log.lost_below, log.lost_promised = LOST_UNBOUNDED, reached.promised


def _refuse_loss(files: Files, rebuilds: dict[int, _Rebuild]) -> None:
    for rebuild in rebuilds.values():
        for flaw in rebuild.losses(files):
            raise _as(Irreparable, flaw)


def _first_checkpoint(files: Files) -> Checkpoint:
    """Written first in a new folder, so a folder with files and without a checkpoint is damaged."""
    if any(files.names(folder) for folder in FOLDERS) or set(files.names(".")) & set(MARKS):
        raise UnfitToVote(file=PATHS[0], position=0, expected="a checkpoint", found="no such file")
    checkpoint = Checkpoint(version=0, opening=0, replay_from=1, lsn=0, incarnation=0, lanes={})
    write_checkpoint(files, checkpoint)
    return checkpoint


def _make_folders(files: Files) -> None:
    """Of a new store; or the first start was cut off after the checkpoint, or they were lost with all that was in
    them."""
    for folder in FOLDERS:
        files.make_folder(folder)
    files.sync_folder(".")


def _renewed(old: Checkpoint, log: Log, lanes: dict[int, RecoveredLane]) -> Checkpoint:
    return Checkpoint(
        version=old.version + 1,
        opening=old.opening + 1,
        replay_from=log.used + 1,
        lsn=log.lsn,
        incarnation=log.incarnation,
        lanes={number: meta_of(lane.state, lane) for number, lane in lanes.items()},
        marked=True,
        lost_below=log.lost_below,
        lost_promised=log.lost_promised,
    )


def meta_of(state: LaneState, lane: RecoveredLane) -> LaneMeta:
    missing = lane.unreadable_upto if lane.unreadable_upto > state.base else 0
    return LaneMeta(
        replace(state), lane.snapshot_lsn, lane.files.tail, lane.files.known(state.end), lane.snapshot_crc, missing
    )


def sync_path(files: Files, path: str) -> None:
    """A file that was removed meanwhile needs no sync."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return
    try:
        files.sync(handle)
    finally:
        files.close(handle)


def _sync(files: Files, lanes: dict[int, RecoveredLane]) -> None:
    for lane in lanes.values():
        for path in sorted(lane.files.dirty):
            sync_path(files, path)
        if lane.files.dirty or lane.files.folder_dirty:
            files.sync_folder(lane.files.folder)
        lane.files.dirty, lane.files.folder_dirty = set(), False
        lane.files.release()
    files.sync_folder("lanes")


# -------------------------------------------------------------------- one lane


class _Rebuild:
    """Changes a lane's files according to its plan. Nothing is written before `lane`, whose result is the lane.

    `gap`: a part of the log is gone that may have had any operation of the lane.
    """

    def __init__(self, files: Files, sizes: Sizes, number: int, plan: LanePlan, damage: list[StorageDamaged]) -> None:
        self._files, self._number, self._plan, self._damage = files, number, plan, damage
        self.gap = False
        self._lane = LaneFiles(
            files,
            number,
            segment_size_bytes=sizes.lane_segment_bytes,
            index_interval_bytes=sizes.index_interval_bytes,
            report=damage.append,
        )
        self._lane.open()
        self._flaws: list[StorageDamaged] = []
        if not plan.void:
            self._flaws, flawed_upto = self._lane.compare(
                plan.files, base=plan.state.base, keep=plan.keep, end=plan.end
            )
            plan.unreadable_upto = max(plan.unreadable_upto, flawed_upto)
        damage += self._flaws
        self._payloads = [(extent.first, payload) for extent in plan.extents if (payload := self._payload(extent))]

    def losses(self, files: Files) -> Iterator[StorageDamaged]:
        """What of the lane cannot be restored, without changing anything."""
        yield from self._flaws
        plan, state = self._plan, self._plan.state
        if state.damaged_from:
            yield StorageDamaged(
                file=self._lane.folder,
                position=0,
                expected=f"entries {state.end + 1} to {state.lost_upto}",
                found="none",
            )
        try:
            if plan.snapshot_lsn and not any(found.payload is not None for found in plan.snapshots[-1:]):
                read_snapshot(files, self._snapshot_path, crc=plan.snapshot_crc)
            if not plan.void:
                for _ in self._lane.entries(after=max(state.snapshot, state.base), upto=min(plan.keep, state.end)):
                    pass
        except StorageDamaged as flaw:
            yield flaw

    def lane(self) -> RecoveredLane:
        plan = self._plan
        self._lane.set_aside_foreign()
        if self.gap:
            self._end_at_snapshot()
        elif plan.touched:
            self._follow()
        else:
            self._lane.end_at(plan.tail)
        return RecoveredLane(plan.state, self._lane, plan.snapshot_lsn, plan.snapshot_crc, plan.unreadable_upto)

    def _end_at_snapshot(self) -> None:
        """Keep what is after it under another name: it may be all that is left of those entries."""
        state = self._plan.state
        state.lose_from(max(state.snapshot, state.base) + 1)
        self._write_snapshot()
        self._lane.set_aside_after(0 if self._plan.void else state.end)
        self._lane.trim(state.base)
        self._lane.start_new_file()

    @property
    def _snapshot_path(self) -> str:
        return snapshot_path(self._number, position=self._plan.state.snapshot, lsn=self._plan.snapshot_lsn)

    def _follow(self) -> None:
        plan, payloads = self._plan, self._payloads
        self._lane.forget_indexes(after=plan.keep)
        self._write_snapshot()
        if plan.void:
            self._lane.remove_all()
        self._write(payloads)
        self._lane.trim(plan.state.base)
        # Files that were already right may be right only in the page cache.
        self._lane.dirty |= self._lane.paths_behind(plan.keep)

    def _payload(self, extent: Extent) -> Buffer | None:
        """The extent's records, from the log or, if the checksum matches, the lane's file. None: the lane ends here."""
        state, source = self._plan.state, extent.source
        if extent.first > state.end:
            return None  # after an earlier loss
        payload: Buffer | None = source.payload
        if payload is None:
            payload = self._other_copy(extent)
        if payload is None:
            state.lose_from(extent.first)
            return None
        return payload if extent.take == source.header.entries else shorten(payload, count=extent.take)

    def _other_copy(self, extent: Extent) -> bytes | None:
        header = extent.source.header
        try:
            found = self._lane.bytes_from(extent.first, size=header.length)
        except StorageDamaged as flaw:
            self._damage.append(flaw)
            return None
        return found if crc32c(found) == header.crc else None

    def _write(self, payloads: list[tuple[int, Buffer]]) -> None:
        place = self._start()
        for first, payload in payloads:
            if place is not None:
                following = self._compare(place, first, payload)
                if following is None:
                    self._lane.end_at(place)
                place = following
            if place is None:
                self._lane.append(first, [payload], size=len(payload))
        if self._plan.state.damaged_from:
            self._lane.start_new_file()  # later bytes may be all that is left of the entries: keep them
        elif place is not None:
            self._lane.end_at(place)

    def _start(self) -> tuple[int, int] | None:
        """Where the kept part of the lane's files ends. None: unknown, or nothing is kept; begin a new file."""
        plan = self._plan
        if plan.void:
            return None
        if not plan.rewritten:
            place = plan.tail
        else:
            try:
                place = self._lane.place(plan.keep + 1)
            except StorageDamaged:
                place = (plan.tail[0], -1)  # reading the entries finds the damage again and reports it
        if place[1] >= 0 and any(segment.first == place[0] for segment in self._lane.segments):
            return place
        self._lane.end_at((place[0], -1))
        return None

    def _compare(self, place: tuple[int, int], first: int, payload: Buffer) -> tuple[int, int] | None:
        """Where the next payload is expected if this one is in the file, else None."""
        if any(segment.first == first for segment in self._lane.segments):
            place = (first, 0)
        found = self._lane.bytes_at(place, size=len(payload))
        if found == payload:
            return place[0], place[1] + len(payload)
        if self._plan.replaced:
            return None  # half old, half new bytes are what a power cut leaves of a replacement
        if len(found) == len(payload) and not _sound(found) and (at := _damaged_byte(found, payload)) is not None:
            self._report_difference(place, at, found, payload)
        return None

    def _report_difference(self, place: tuple[int, int], at: int, found: bytes, payload: Buffer) -> None:
        self._damage.append(
            StorageDamaged(
                file=f"{self._lane.folder}/{place[0]:020}.log",
                position=place[1] + at,
                expected=f"byte {payload[at]:02x} as in the log",
                found=f"byte {found[at]:02x}",
            )
        )

    def _write_snapshot(self) -> None:
        """Write the newest snapshot of the log to its file. If it is damaged in the log, the file may have it
        already."""
        plan = self._plan
        if not plan.snapshots:
            return
        newest = plan.snapshots[-1]
        path = snapshot_path(self._number, position=newest.header.first, lsn=newest.header.lsn)
        if newest.payload is not None:
            self._lane.make_folder()
            plan.snapshot_crc = write_snapshot(self._files, path, bytes(newest.payload))
            self._lane.dirty.add(path)
            self._lane.folder_dirty = True


def _sound(found: bytes) -> bool:
    """Whether these are records with matching checksums: older entries, and not damage."""
    offset = 0
    try:
        while offset < len(found):
            header = found[offset : offset + HEADER_SIZE_BYTES]
            # The last one may continue after the compared bytes.
            if len(header) < HEADER_SIZE_BYTES or offset + (size := record_size(header)) > len(found):
                return True
            read_record(found[offset : offset + size])
            offset += size
    except Malformed:
        return False
    return True


def _damaged_byte(found: bytes, payload: Buffer) -> int | None:
    """The first difference, except in sectors (or the rest of one) that were never written and read as zeros."""
    for start in range(0, len(found), _SECTOR_BYTES):
        here, there = found[start : start + _SECTOR_BYTES], bytes(payload[start : start + _SECTOR_BYTES])
        if here == there:
            continue
        at = next(number for number, pair in enumerate(zip(here, there, strict=True)) if pair[0] != pair[1])
        if any(here[at:]):
            return start + at
    return None


# ----------------------------------------------------------------------- images


def _image(files: Files, number: int, lane: RecoveredLane, damage: list[StorageDamaged]) -> LaneImage:
    state = lane.state
    snapshot = _snapshot(files, number, lane, damage)
    entries: list[Entry] = []
    try:
        entries.extend(lane.files.entries(after=max(state.snapshot, state.base), upto=state.end))
    except StorageDamaged as flaw:
        damage.append(flaw)
        state.lose_from(max(state.snapshot, state.base) + len(entries) + 1)
        lane.files.start_new_file()
    return LaneImage(
        promised=state.promised,
        stamped=state.stamped,
        snapshot=snapshot,
        entries=entries,
        damaged_from=state.damaged_from,
        fenced=state.fenced,
        decided_end=state.decided_end,
        unreadable_upto=min(lane.unreadable_upto, state.snapshot) if lane.unreadable_upto > state.base else 0,
    )


def _snapshot(files: Files, number: int, lane: RecoveredLane, damage: list[StorageDamaged]) -> Snapshot | None:
    """Read the snapshot. If it is damaged, a lane that still has its first entry is read from there, else it is
    lost."""
    state = lane.state
    if not lane.snapshot_lsn:
        return None
    try:
        path = snapshot_path(number, position=state.snapshot, lsn=lane.snapshot_lsn)
        return read_snapshot(files, path, crc=lane.snapshot_crc)
    except StorageDamaged as flaw:
        damage.append(flaw)
    lane.snapshot_lsn = 0
    if state.base == 0:
        state.snapshot = -1
    else:
        state.lose_all()
        lane.files.start_new_file()
    return None


def _remove_old_snapshots(files: Files, lanes: dict[int, RecoveredLane]) -> None:
    for number, lane in lanes.items():
        remove_snapshots(files, number, before_lsn=lane.snapshot_lsn)


def remove_snapshots(files: Files, lane: int, *, before_lsn: int) -> None:
    """Remove snapshots older than the one in the checkpoint on disk."""
    for name in files.names(f"lanes/{lane}"):
        stem, _, kind = name.partition(".")
        if kind == "snap" and int(stem.partition("-")[2]) < before_lsn:
            files.remove(f"lanes/{lane}/{name}")
