"""From the write-ahead log to a plan: what each lane must look like, and from which bytes it can be made so.

Lane files are always ahead of the last checkpoint and behind the log, by an unknown amount: they are written without a
sync. So the log is not executed against them. It is folded, in the order of its lsns, into one plan for each lane:

    keep       the lane's files are right up to this position; no operation since the checkpoint touched it
    extents    what follows, in order, each a stretch of records in the log

An operation that replaces a suffix or cuts the lane lowers `keep` or drops extents; in the end only what survived has
to be found. An extent whose bytes went bad in the log keeps its checksum, and the lane's file may still have the bytes.

Folding stops at the first operation that was never finished. An lsn that is missing although it was synced cannot have
been looked at by anyone: it may have been a promise, and the peer that made it must not vote as itself again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from avow.errors import StorageDamaged, UnfitToVote
from avow.storage.checkpoint import Checkpoint, LaneMeta
from avow.storage.files import Files, read_whole
from avow.storage.records import PROMISE, SEGMENT_START, SegmentHeader, WalKind
from avow.storage.scan import Found, SegmentScan, opening_of
from avow.storage.segments import NEW_FILE
from avow.storage.state import LaneState


@dataclass
class Extent:
    """Entries first .. first+count-1, of which `take` are still wanted. `source.payload` None: the bytes went bad."""

    first: int
    take: int
    source: Found


@dataclass
class LanePlan:
    """`tail` and `keep` are about the lane's files as the checkpoint knows them; `void`: none of them counts."""

    state: LaneState
    snapshot_lsn: int
    tail: tuple[int, int]
    keep: int
    rewritten: bool = False  # something at or below the checkpoint's end was replaced or cut
    touched: bool = False
    void: bool = False
    extents: list[Extent] = field(default_factory=list)
    snapshots: list[Found] = field(default_factory=list)

    def add(self, found: Found) -> None:
        first, count = found.header.first, found.header.entries
        self.state.append(first, count)
        self._drop_from(first)
        self.extents.append(Extent(first, count, found))

    def cut(self, end: int) -> None:
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
            self.snapshot_lsn = found.header.lsn
        if reset:
            self.void, self.keep, self.extents = True, position, []


@dataclass
class Log:
    """`plans` has every lane, also those the log says nothing of. `used`: the highest segment number ever seen."""

    plans: dict[int, LanePlan]
    incarnation: int
    lsn: int
    used: int
    slots: dict[str, int]  # path: size in bytes


def replay(files: Files, checkpoint: Checkpoint, damage: list[StorageDamaged]) -> Log:
    scans, log = _scan_segments(files, checkpoint, damage)
    durable = checkpoint.lsn
    by_lsn: dict[int, list[Found]] = {}
    for number, (opening, scan) in enumerate(scans):
        durable = max(durable, opening.first_lsn - 1, scan.synced_lsn)
        sealed_to = len(scan) if number + 1 < len(scans) else scan.sealed_to
        damage += [flaw for flaw in scan.flaws if flaw.position < sealed_to]
        for found in scan.found:
            by_lsn.setdefault(found.header.lsn, []).append(found)
    for lsn in sorted(by_lsn):
        if lsn <= log.lsn:
            continue
        best = next((found for found in by_lsn[lsn] if found.payload is not None), by_lsn[lsn][0])
        if lsn > log.lsn + 1:
            if log.lsn + 1 > durable:
                break
            damage.append(_unknown(best, missing=log.lsn + 1))
        if best.payload is None and lsn > durable:
            break
        _fold(log, best, damage)
        log.lsn = lsn
    return log


def _scan_segments(
    files: Files, checkpoint: Checkpoint, damage: list[StorageDamaged]
) -> tuple[list[tuple[SegmentHeader, SegmentScan]], Log]:
    """Segments that count, in order, and a log nothing was folded into yet."""
    plans = {number: _plan(meta) for number, meta in checkpoint.lanes.items()}
    log = Log(plans, checkpoint.incarnation, checkpoint.lsn, checkpoint.replay_from - 1, {})
    scans: list[tuple[SegmentHeader, SegmentScan]] = []
    for name in files.names("wal"):
        path = f"wal/{name}"
        data = read_whole(files, path)
        if not name.endswith(".wal") or data is None:
            continue
        log.slots[path] = len(data)
        opening, flaws = opening_of(data[:SEGMENT_START].ljust(SEGMENT_START, b"\0"), file=path)
        if opening is None:
            damage += [UnfitToVote(file=path, position=f.position, expected=f.expected, found=f.found) for f in flaws]
            continue
        log.used = max(log.used, opening.sequence)
        if opening.sequence >= checkpoint.replay_from:
            scan = SegmentScan(data, file=path, opening=opening)
            scan.flaws += flaws
            scans.append((opening, scan))
    return sorted(scans, key=lambda pair: pair[0].sequence), log


def _plan(meta: LaneMeta) -> LanePlan:
    return LanePlan(meta.state, meta.snapshot_lsn, meta.tail, keep=meta.state.end)


def _fold(log: Log, found: Found, damage: list[StorageDamaged]) -> None:
    header = found.header
    if header.kind == WalKind.RUN:
        log.incarnation = header.first
        return
    plan = log.plans.get(header.lane)
    if plan is None:
        plan = log.plans[header.lane] = LanePlan(LaneState(), 0, (0, NEW_FILE), keep=0)
    plan.touched = True
    try:
        _fold_lane(plan, found, damage)
    except ValueError as misfit:
        # Only possible behind an operation that was lost: it is reported, and so is what it cost this lane.
        damage.append(
            StorageDamaged(file=found.file, position=found.offset, expected="an operation that fits", found=str(misfit))
        )
        plan.state.lost_upto = max(plan.state.lost_upto, header.first + header.entries - 1)


def _fold_lane(plan: LanePlan, found: Found, damage: list[StorageDamaged]) -> None:
    header = found.header
    if header.kind == WalKind.ENTRIES:
        plan.add(found)
    elif header.kind == WalKind.STATE:
        if found.payload is None:
            damage.append(_unknown(found, missing=header.lsn))
        else:
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


def _unknown(found: Found, *, missing: int) -> UnfitToVote:
    return UnfitToVote(
        file=found.file,
        position=found.offset,
        expected=f"lsn {missing}, which was synced and may be a promise",
        found=f"lsn {found.header.lsn}" if found.payload is not None else "bytes without their checksum",
    )
