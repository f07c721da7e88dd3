"""The data folder: it belongs to one peer of one cluster, and to one process at a time.

A peer must start with the folder that contains its promises. With another peer's folder, an old copy, or an emptied
one, it would vote as if it had never promised anything. So the folder contains its owner's identity, and a folder
without one is accepted only if the caller asks for a new folder:

    identity, identity-copy   cluster and peer uuid with a checksum; two files, so that one bad sector does not matter
    lock                      held by the process that uses the folder until that process ends, in whatever way

An old copy of a whole folder cannot be detected here; the others refuse it if they remember a later run of its peer.
Detected are: another peer's folder, a folder in use, a folder that was emptied, and one whose identity cannot be read.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

from avow.errors import FolderUnusable, StorageDamaged
from avow.storage import checked
from avow.storage.files import DiskFiles, read_whole, write_whole

_IDENTITY: Final = ("identity", "identity-copy")
_LOCK: Final = "lock"


class Folder:
    """A locked data folder. Pass `files` to a `FileStore`. `damage`: identity files that could not be read."""

    def __init__(self, path: Path, *, lock: int, damage: Sequence[StorageDamaged]) -> None:
        self.path, self._lock = path, lock
        self.files = DiskFiles(path)
        self.damage = list(damage)

    def close(self) -> None:
        """Unlock the folder. Close the store first."""
        os.close(self._lock)


def open_folder(path: Path, *, cluster: UUID, peer: UUID, create: bool = False) -> Folder:
    """Lock the folder and check that it belongs to this peer.

    `create`: the peer is new; the folder may be missing or empty and gets this identity. Raises FolderUnusable, or
    StorageDamaged if neither identity file can be read; then nothing in the folder was changed.
    """
    if create:
        path.mkdir(parents=True, exist_ok=True)
    lock = _locked(path)
    with ExitStack() as undo:
        undo.callback(os.close, lock)
        damage = _checked_identity(path, cluster=cluster, peer=peer, create=create)
        undo.pop_all()  # the folder is valid: keep the lock
    return Folder(path, lock=lock, damage=damage)


def identity_of(path: Path) -> tuple[UUID, UUID] | None:
    """(cluster, peer) of a folder; None: it has no identity. Raises StorageDamaged if it cannot be read."""
    found, damage = _read_identities(DiskFiles(path))
    if found:
        return UUID(bytes=found[0][:16]), UUID(bytes=found[0][16:])
    if damage:
        raise damage[0]
    return None


def _locked(path: Path) -> int:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except FileNotFoundError:
        raise FolderUnusable(
            f"the data folder {path} does not exist; nothing was changed. Correct the path, or create a new peer"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FolderUnusable(
            f"the data folder {path} is in use by another process; nothing was changed. Stop that process first"
        ) from None
    return lock


def _checked_identity(path: Path, *, cluster: UUID, peer: UUID, create: bool) -> list[StorageDamaged]:
    files = DiskFiles(path)
    found, damage = _read_identities(files)
    wanted = cluster.bytes + peer.bytes
    if found:
        for body in found:
            if body != wanted:
                raise FolderUnusable(
                    f"the data folder {path} belongs to peer {UUID(bytes=body[16:])} of cluster "
                    f"{UUID(bytes=body[:16])}, not to peer {peer} of cluster {cluster}; nothing was changed. Start the "
                    "peer it belongs to, or use another folder"
                )
        if damage:
            _write_identity(files, wanted)
        return damage
    if damage:
        raise damage[0]
    if not create or set(os.listdir(path)) - {_LOCK}:
        raise FolderUnusable(
            f"the data folder {path} has no identity file; nothing was changed. If the folder was emptied, its peer "
            "must not vote again: remove that peer from the cluster and join a new one with a new folder"
        )
    _write_identity(files, wanted)
    return []


def _write_identity(files: DiskFiles, identity: bytes) -> None:
    for name in _IDENTITY:
        write_whole(files, f"{name}.new", [checked.seal(checked.IDENTITY, identity)])
        files.rename(old=f"{name}.new", new=name)
    files.sync_folder(".")


def _read_identities(files: DiskFiles) -> tuple[list[bytes], list[StorageDamaged]]:
    found: list[bytes] = []
    damage: list[StorageDamaged] = []
    for name in _IDENTITY:
        data = read_whole(files, name)
        try:
            if data is None:
                raise StorageDamaged(file=name, position=0, expected="the folder's identity", found="no such file")
            found.append(checked.unseal(checked.IDENTITY, data, file=name))
        except StorageDamaged as flaw:
            damage.append(flaw)
    if not found and all(read_whole(files, name) is None for name in _IDENTITY):
        return [], []
    return found, damage
