"""Checkpoints: after one is written, the log segments it covers can be reused, because their content is synced
elsewhere.

A checkpoint is one small file with the state of every lane as its files contain it, and the number of the first log
segment that must still be replayed on top. Recovery reads it and the few later segments, never the whole history.

Promises are in the checkpoint once the log that held them twice is reused, so the checkpoint too exists twice. Both
files are written and synced under temporary names and renamed one after the other: at any moment at least one complete
checkpoint exists, and the log segments it needs are not reused before both are in place.

    checkpoint-a, checkpoint-b         the same checkpoint, or one of them the one before
    lanes/<lane>/<position>-<lsn>.snap a snapshot; the lsn makes the name unique, so no snapshot is overwritten
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from avow.errors import StorageDamaged, UnfitToVote
from avow.storage import checked
from avow.storage.files import Files, read_whole, write_whole
from avow.storage.lane_state import LaneState
from avow.storage.segments import FileMeta
from avow.wire.messages import Snapshot

PATHS: Final = ("checkpoint-a", "checkpoint-b")


class LaneMeta(Struct):
    """One lane. `tail`: first position and size in bytes of its last file. `snapshot_lsn` completes a file's name.

    The rest tells a file from another one under its name; 0 or missing: not known (written by an earlier release).
    `snapshot_crc`: checksum of the snapshot. `unreadable_upto`: entries up to this position are missing, or some are.
    """

    state: LaneState
    snapshot_lsn: int
    tail: tuple[int, int]
    files: list[FileMeta] = []
    snapshot_crc: int = 0
    unreadable_upto: int = 0


class Checkpoint(Struct):
    """`opening` counts the store's openings, `replay_from` is a segment's number, `lsn` the last one included."""

    version: int
    opening: int
    replay_from: int
    lsn: int
    incarnation: int
    lanes: dict[int, LaneMeta]
    marked: bool = False  # marks were written before it, so they must be there
    lost_below: int = 0  # as in StoreImage
    lost_promised: int = 0


_decode: Final = msgspec.msgpack.Decoder(Checkpoint).decode
_decode_snapshot: Final = msgspec.msgpack.Decoder(Snapshot).decode


def write_checkpoint(files: Files, checkpoint: Checkpoint) -> None:
    """Returns when both files are synced."""
    data = checked.seal(checked.CHECKPOINT, msgspec.msgpack.encode(checkpoint))
    for path in PATHS:
        write_whole(files, f"{path}.new", [data])
    for path in PATHS:
        files.rename(old=f"{path}.new", new=path)
        files.sync_folder(".")


def read_checkpoint(files: Files, damage: list[StorageDamaged]) -> Checkpoint | None:
    """The newest complete checkpoint; None: the folder is new. Raises UnfitToVote if none can be read."""
    found: list[Checkpoint] = []
    flaws: list[StorageDamaged] = []
    for path in PATHS:
        data = read_whole(files, path)
        if data is None:
            continue
        try:
            found.append(_decode(checked.unseal(checked.CHECKPOINT, data, file=path)))
        except StorageDamaged as flaw:
            flaws.append(flaw)
    if not found and flaws:
        raise UnfitToVote(
            file=flaws[0].file, position=flaws[0].position, expected=flaws[0].expected, found=flaws[0].found
        )
    damage += flaws
    return max(found, key=lambda checkpoint: checkpoint.version, default=None)


def snapshot_path(lane: int, *, position: int, lsn: int) -> str:
    return f"lanes/{lane}/{position:020}-{lsn}.snap"


def write_snapshot(files: Files, path: str, body: bytes) -> int:
    """Write it without a sync: the log still has it. The checkpointer syncs it before the log is reused.

    Returns its checksum.
    """
    data = checked.seal(checked.SNAPSHOT, body)
    handle = files.open(path, create=True)
    try:
        files.truncate(handle, 0)
        files.write(handle, [data], offset=0)
    finally:
        files.close(handle)
    return checked.checksum(data)


def read_snapshot(files: Files, path: str, *, crc: int = 0) -> Snapshot:
    """`crc`: what `write_snapshot` returned, or 0 if it is not known. Raises StorageDamaged."""
    data = read_whole(files, path)
    if data is None:
        raise StorageDamaged(file=path, position=0, expected="a snapshot", found="no such file")
    if crc and checked.checksum(data) != crc:
        raise StorageDamaged(
            file=path,
            position=4,
            expected=f"the snapshot {crc:08x}",
            found=f"another one, {checked.checksum(data):08x}",
        )
    return _decode_snapshot(checked.unseal(checked.SNAPSHOT, data, file=path))
