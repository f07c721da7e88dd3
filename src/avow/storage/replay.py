"""Replay: folds the write-ahead log into a plan for each lane, and decides what in the log is damaged or torn.

Lane files are written without a sync, so they are ahead of the last checkpoint and behind the log by an unknown amount.
Therefore the log is not executed against them, but folded, in the order of its lsns, into one plan for each lane:

    keep       the lane's files are right up to this position; no operation since the checkpoint changed it
    extents    the later entries, in order, each a range of records in the log

An operation that replaces a suffix or cuts the lane lowers `keep` or drops extents; only the bytes of the remaining
extents are needed. An extent whose bytes are damaged in the log keeps its checksum, and the lane's file may have them.

Folding stops at the first operation that was never completely written. If an lsn is missing although it was synced, any
lane may have lost entries, a cut or a promise: the log has a gap. What follows a gap cannot be folded: without a cut
that was lost, later entries would stand behind others than when they were written. Only promises, fences and run
numbers are taken from it.

Scanning a segment must distinguish a torn tail from damage. A power cut in the middle of a write leaves a torn tail,
which must be dropped silently: it was never acknowledged. A record that was synced and then damaged looks the same, but
dropping it silently would lose an acknowledged write. What follows decides:

    A group is written only after the previous group was synced. So everything before the last recognisable group (its
    opening record is intact) was synced, and a flaw there is damage. A flaw after it is a torn tail. A later segment
    that was opened proves the same for all of the previous one. So does the mark (`sync_mark`), for everything up to
    its lsn and its place, also if the segments that had it are gone.

The limit of this rule: the mark is synced a moment after the log. Only what was written in the moments before a power
cut can be lost without being noticed, and only to a second fault in the same place.

After a flaw, scanning continues at the next intact header, or repeated header, that belongs to this use of the segment.
A record known only by its repeated header is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from avow.errors import StorageDamaged
from avow.storage.checkpoint import Checkpoint, LaneMeta
from avow.storage.files import Files, read_whole
from avow.storage.lane_state import LaneState
from avow.storage.segments import NEW_FILE, FileMeta
from avow.storage.sync_mark import Mark
from avow.storage.wal_records import (
    BLOCK_BYTES,
    HEAD,
    HEADER_BYTES,
    PROMISE,
    SEGMENT_START,
    TAIL,
    Header,
    SegmentHeader,
    WalKind,
    header_at,
    segment_header_at,
)

_SHARED: Final = HEAD[:3]  # both magics start with it, so one search finds either


class Found(NamedTuple):
    """A record. `payload` None: its checksum does not match."""

    file: str
    offset: int
    header: Header
    payload: memoryview | None


class SegmentScan:
    """One pass over one segment. Flaws before the byte position `sealed_to` are damage, later ones a torn tail."""

    def __init__(self, data: bytes, *, file: str, opening: SegmentHeader) -> None:
        self._data, self._file, self._opening = data, file, opening
        self.found: list[Found] = []
        self.flaws: list[StorageDamaged] = []
        self.sealed_to = 0
        self.synced_lsn = 0  # from the last opening record
        self.read_to = 0  # nothing intact follows
        self._scan()

    def __len__(self) -> int:
        return len(self._data)

    def _scan(self) -> None:
        offset: int | None = SEGMENT_START
        while offset is not None and offset < len(self._data):
            header = self._header(offset, magic=HEAD)
            if header is not None:
                offset = self._take(offset, header)
            elif (boundary := self._padding_end(offset)) > offset:
                offset = boundary
            else:
                self.read_to = offset
                offset = self._resume(offset)
        if offset is not None:
            self.read_to = offset

    def flaws_before(self, sealed_to: int) -> list[StorageDamaged]:
        """The flaws in what was synced. The opening block is written with the first group."""
        if sealed_to <= SEGMENT_START:
            return []
        if self.read_to < sealed_to:
            self._flaw(self.read_to, expected=f"records up to byte {sealed_to}", found=self._glimpse(self.read_to))
        return [flaw for flaw in self.flaws if flaw.position < sealed_to]

    def _header(self, offset: int, *, magic: bytes) -> Header | None:
        """A header that belongs to this use of the segment and whose record fits into it."""
        header = header_at(self._data, offset, magic=magic)
        if header is None or header.epoch != self._opening.epoch or header.lsn < self._opening.first_lsn:
            return None
        start = offset if magic == HEAD else offset + HEADER_BYTES - header.size
        return header if SEGMENT_START <= start <= len(self._data) - header.size else None

    def _take(self, offset: int, header: Header) -> int:
        """Add the record that starts here. Returns the offset of the next one."""
        body, end = offset + HEADER_BYTES, offset + header.size
        payload = memoryview(self._data)[body : end - HEADER_BYTES]
        found = crc32c(payload)
        if found != header.crc:
            self._flaw(body, expected=f"crc {header.crc:08x} of lsn {header.lsn}", found=f"crc {found:08x}")
        tail = self._data[end - HEADER_BYTES : end]
        if self._data[offset : offset + 4] == HEAD and tail != TAIL + self._data[offset + 4 : body]:
            self._flaw(end - HEADER_BYTES, expected=f"the header of lsn {header.lsn} again", found=tail.hex())
        if header.kind == WalKind.GROUP:
            self.sealed_to = offset
            self.synced_lsn = header.lsn - 1
        else:
            whole = payload[: header.length] if found == header.crc else None
            self.found.append(Found(self._file, offset, header, whole))
        return end

    def _padding_end(self, offset: int) -> int:
        """The next block boundary if only zeros precede it (padding of the group), else `offset`."""
        boundary = offset + -offset % BLOCK_BYTES
        return boundary if self._data.count(0, offset, boundary) == boundary - offset else offset

    def _resume(self, offset: int) -> int | None:
        """Where scanning can continue after a flaw; None at the end of the log."""
        for place in self._candidates(offset):
            header = self._header(place, magic=HEAD)
            if header is not None:
                self._flaw(offset, expected=f"a record before lsn {header.lsn}", found=self._glimpse(offset))
                return place
            header = self._header(place, magic=TAIL)
            if header is not None and (start := place + HEADER_BYTES - header.size) >= offset:
                self._flaw(start, expected=f"the header of lsn {header.lsn}", found=self._glimpse(start))
                return self._take(start, header)
        # Nothing intact follows: a torn tail, or the end.
        return None

    def _candidates(self, offset: int) -> Iterator[int]:
        place = self._data.find(_SHARED, offset)
        while place >= 0:
            if place % 8 == 0:
                yield place
            place = self._data.find(_SHARED, place + 1)

    def _glimpse(self, offset: int) -> str:
        return self._data[offset : offset + 16].hex()

    def _flaw(self, offset: int, *, expected: str, found: str) -> None:
        self.flaws.append(StorageDamaged(file=self._file, position=offset, expected=expected, found=found))


def opening_of(data: bytes, *, file: str) -> tuple[SegmentHeader | None, list[StorageDamaged]]:
    """The opening block of a segment, from the newer copy, and the flaws found.

    No header and no flaw: the segment was never used, or its first use was torn. No header and a flaw: the content of
    the segment is unknown.
    """
    copies = [segment_header_at(data, offset) for offset in (0, BLOCK_BYTES)]
    sound = [header for header in copies if header is not None]
    newest = max(sound, key=lambda header: header.sequence, default=None)
    if newest is None and not any(data[BLOCK_BYTES:SEGMENT_START]):
        return None, []
    expected = "an opening block" if newest is None else f"the opening block of segment {newest.sequence}"
    flaws = [
        StorageDamaged(file=file, position=offset, expected=expected, found=data[offset : offset + 48].hex())
        for offset, copy in zip((0, BLOCK_BYTES), copies, strict=True)
        if copy is None or copy != newest
    ]
    return newest, flaws


@dataclass
class Extent:
    """Entries from `first` on, of which `take` are still needed. `source.payload` None: the bytes are damaged."""

    first: int
    take: int
    source: Found


@dataclass
class LanePlan:
    """`tail`, `keep`, `end` and `files` refer to the lane's files as of the checkpoint; `void`: none is needed."""

    state: LaneState
    snapshot_lsn: int
    tail: tuple[int, int]
    keep: int
    end: int = 0
    files: Sequence[FileMeta] = ()
    snapshot_crc: int = 0
    unreadable_upto: int = 0
    rewritten: bool = False  # something at or below the checkpoint's end was replaced or cut
    replaced: bool = False  # something was, at or below it or after it: files may have old bytes where new ones belong
    touched: bool = False
    void: bool = False
    extents: list[Extent] = field(default_factory=list)
    snapshots: list[Found] = field(default_factory=list)

    def add(self, found: Found) -> None:
        first, count = found.header.first, found.header.entries
        self.replaced |= first <= self.state.end
        self.state.append(first, count)
        self._drop_from(first)
        self.extents.append(Extent(first, count, found))

    def cut(self, end: int) -> None:
        self.replaced |= end < self.state.end
        self.state.cut(end)
        self._drop_from(end + 1)

    def _drop_from(self, position: int) -> None:
        if position <= self.keep:
            self.keep, self.rewritten = position - 1, True
        self.extents = [extent for extent in self.extents if extent.first < position]
        if self.extents:
            last = self.extents[-1]
            last.take = min(last.take, position - last.first)

    def take_snapshot(self, found: Found) -> None:
        position, reset = found.header.first, bool(found.header.entries)
        newer = reset or position > self.state.snapshot
        self.state.take_snapshot(position, reset=reset)
        if newer:
            self.snapshots.append(found)
            self.snapshot_lsn, self.snapshot_crc = found.header.lsn, 0
        if reset:
            self.void, self.keep, self.extents, self.replaced = True, position, [], True
            self.unreadable_upto = 0


@dataclass
class Log:
    """`plans` has every lane, also those that are not in the log. `used`: the highest segment number found.

    `lost`: why the log is known to lack operations that were synced; empty: it lacks none. `gap`: they may be of any
    kind; otherwise they are promises.
    """

    plans: dict[int, LanePlan]
    incarnation: int
    lsn: int
    used: int
    slots: dict[str, int]  # path: size in bytes
    lost_below: int = 0
    lost_promised: int = 0
    lost: list[StorageDamaged] = field(default_factory=list)
    gap: bool = False

    def lack(self, flaw: StorageDamaged) -> None:
        self.lost.append(flaw)
        self.gap = True


def replay(files: Files, checkpoint: Checkpoint, mark: Mark | None, damage: list[StorageDamaged]) -> Log:
    scans, log = _scan_segments(files, checkpoint, mark, damage)
    durable = checkpoint.lsn
    if mark is not None:
        durable = max(durable, mark.lsn)
    by_lsn: dict[int, list[Found]] = {}
    for number, (opening, scan) in enumerate(scans):
        durable = max(durable, opening.first_lsn - 1, scan.synced_lsn)
        sealed_to = scan.read_to if number + 1 < len(scans) else scan.sealed_to
        if mark is not None and (mark.segment, mark.epoch) == (opening.sequence, opening.epoch):
            sealed_to = max(sealed_to, mark.offset)
        damage += scan.flaws_before(sealed_to)
        for found in scan.found:
            by_lsn.setdefault(found.header.lsn, []).append(found)
    for lsn in sorted(by_lsn):
        if lsn <= log.lsn:
            continue
        best = next((found for found in by_lsn[lsn] if found.payload is not None), by_lsn[lsn][0])
        if lsn > log.lsn + 1:
            if log.lsn + 1 > durable:
                break
            log.lack(_missing(best, missing=log.lsn + 1))
        if best.payload is None and lsn > durable:
            break
        _fold(log, best, damage)
        log.lsn = lsn
    if log.lsn < durable:
        log.lack(
            StorageDamaged(
                file="wal", position=0, expected=f"lsn {log.lsn + 1} to {durable}, which were synced", found="nothing"
            )
        )
        log.lsn = durable  # an lsn is never used twice
    return log


def _scan_segments(
    files: Files, checkpoint: Checkpoint, mark: Mark | None, damage: list[StorageDamaged]
) -> tuple[list[tuple[SegmentHeader, SegmentScan]], Log]:
    """The segments to replay, in order, and an empty log."""
    plans = {number: _plan(meta) for number, meta in checkpoint.lanes.items()}
    used = max(checkpoint.replay_from - 1, 0 if mark is None else mark.segment)
    log = Log(plans, checkpoint.incarnation, checkpoint.lsn, used, {})
    log.lost_below, log.lost_promised = checkpoint.lost_below, checkpoint.lost_promised
    scans: list[tuple[SegmentHeader, SegmentScan]] = []
    for name in files.names("wal"):
        path = f"wal/{name}"
        data = read_whole(files, path)
        if not name.endswith(".wal") or data is None:
            continue
        log.slots[path] = len(data)
        opening, flaws = opening_of(data[:SEGMENT_START].ljust(SEGMENT_START, b"\0"), file=path)
        if opening is None:
            damage += flaws
            if mark is None:
                for flaw in flaws:
                    log.lack(flaw)  # what it had is unknown, and nothing else says whether it matters
            continue
        log.used = max(log.used, opening.sequence)
        if opening.sequence >= checkpoint.replay_from:
            if not _is_own(opening, checkpoint, mark):
                damage.append(_foreign(path, opening, checkpoint))
                continue
            scan = SegmentScan(data, file=path, opening=opening)
            scan.flaws += flaws
            scans.append((opening, scan))
    return sorted(scans, key=lambda pair: pair[0].sequence), log


def _is_own(opening: SegmentHeader, checkpoint: Checkpoint, mark: Mark | None) -> bool:
    """Whether this store wrote the segment since its last opening, at which it wrote a checkpoint."""
    if opening.epoch >> 32 != checkpoint.opening:
        return False
    return mark is None or mark.epoch >> 32 != checkpoint.opening or mark.epoch == opening.epoch


def _foreign(path: str, opening: SegmentHeader, checkpoint: Checkpoint) -> StorageDamaged:
    return StorageDamaged(
        file=path,
        position=0,
        expected=f"a segment of this folder's opening {checkpoint.opening}",
        found=f"segment {opening.sequence} of opening {opening.epoch >> 32}, epoch {opening.epoch:x}",
    )


def _plan(meta: LaneMeta) -> LanePlan:
    end = meta.state.end
    return LanePlan(
        meta.state,
        meta.snapshot_lsn,
        meta.tail,
        keep=end,
        end=end,
        files=meta.files,
        snapshot_crc=meta.snapshot_crc,
        unreadable_upto=meta.unreadable_upto,
    )


def _fold(log: Log, found: Found, damage: list[StorageDamaged]) -> None:
    header = found.header
    if header.kind == WalKind.RUN:
        log.incarnation = header.first
        return
    if header.kind == WalKind.BOUND:
        log.lost_below = header.first
        return
    if header.kind == WalKind.STATE and found.payload is None:
        log.lost.append(_missing(found, missing=header.lsn))
        return
    plan = log.plans.get(header.lane)
    if plan is None:
        plan = log.plans[header.lane] = LanePlan(LaneState(), 0, (0, NEW_FILE), keep=0)
    plan.touched = True
    if log.gap and header.kind not in (WalKind.STATE, WalKind.FENCE):
        plan.state.lost_upto = max(plan.state.lost_upto, header.first + max(0, header.entries - 1))
        return
    try:
        _fold_lane(plan, found)
    except ValueError as misfit:
        # Possible only after an operation was lost: report the misfit and what this lane lost.
        damage.append(
            StorageDamaged(file=found.file, position=found.offset, expected="an operation that fits", found=str(misfit))
        )
        plan.state.lost_upto = max(plan.state.lost_upto, header.first + header.entries - 1)


def _fold_lane(plan: LanePlan, found: Found) -> None:
    header = found.header
    if header.kind == WalKind.ENTRIES:
        plan.add(found)
    elif header.kind == WalKind.STATE:
        assert found.payload is not None
        promised, stamped = PROMISE.unpack(found.payload)
        plan.state.promise(promised=promised, stamped=stamped)
    elif header.kind == WalKind.CUT:
        plan.cut(header.first)
    elif header.kind == WalKind.SNAPSHOT:
        plan.take_snapshot(found)
    elif header.kind == WalKind.TRIM:
        plan.state.trim(header.first)
    elif header.kind == WalKind.FENCE:
        plan.state.fence(header.first - 1)


def _missing(found: Found, *, missing: int) -> StorageDamaged:
    return StorageDamaged(
        file=found.file,
        position=found.offset,
        expected=f"lsn {missing}, which was synced",
        found=f"lsn {found.header.lsn}" if found.payload is not None else "bytes without their checksum",
    )
