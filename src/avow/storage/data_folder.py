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

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from avow.errors import FolderUnusable, StorageDamaged
from avow.storage import checked
from avow.storage.files import DiskFiles, Files, read_whole, write_whole

_IDENTITY: Final = ("identity", "identity-copy")
_LOCK: Final = "lock"
JOINING: Final = "joining"  # the identity with which a joiner asked for a number (see `server.serve`)
_BEFORE_IDENTITY: Final = frozenset({_LOCK, JOINING, *(f"{name}.new" for name in _IDENTITY)})


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

    `create`: the first start of this peer, or one again that a crash interrupted; the folder may be missing, empty, or
    have this identity. Raises FolderUnusable, or StorageDamaged if neither identity file can be read; then nothing in
    the folder was changed.
    """
    if create:
        make_folder(path)
    lock = _locked(path)
    with ExitStack() as undo:
        undo.callback(os.close, lock)
        damage = claim_identity(DiskFiles(path), cluster=cluster, peer=peer, create=create, where=str(path))
        undo.pop_all()  # the folder is valid: keep the lock
    return Folder(path, lock=lock, damage=damage)


def identity_of(path: Path) -> tuple[UUID, UUID] | None:
    """(cluster, peer) of a folder; None: it has no identity. Raises StorageDamaged if it cannot be read."""
    return read_identity(DiskFiles(path))


def read_identity(files: Files) -> tuple[UUID, UUID] | None:
    """As `identity_of`."""
    found, damage = _read_identities(files)
    if found:
        return UUID(bytes=found[0][:16]), UUID(bytes=found[0][16:])
    if damage:
        raise damage[0]
    return None


def make_folder(path: Path) -> None:
    """Create the folder, and those above it that are missing. A power cut afterwards cannot take them away."""
    above = path.absolute()
    missing: list[str] = []
    while not above.is_dir():
        if above.exists():
            code = errno.ENOTDIR if missing else errno.EEXIST
            raise OSError(code, os.strerror(code), str(above))
        missing.insert(0, above.name)
        above = above.parent
    make_folders(DiskFiles(above), missing)
    if not missing:
        # It may have been made by a start that was cut off before this sync. A folder above that we may not read was
        # made by somebody else.
        with suppress(PermissionError):
            DiskFiles(path.absolute().parent).sync_folder(".")


def make_folders(files: Files, names: Sequence[str]) -> None:
    """Create folders one below the other, each durably."""
    above = "."
    for name in names:
        folder = name if above == "." else f"{above}/{name}"
        files.make_folder(folder)
        files.sync_folder(above)
        above = folder


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


def claim_identity(files: Files, *, cluster: UUID, peer: UUID, create: bool, where: str) -> list[StorageDamaged]:
    """As `open_folder`, without the lock. A copy of the identity that is missing or damaged is restored and returned as
    damage; in a first start that was cut off it is not damage."""
    found, damage = _read_identities(files)
    wanted = cluster.bytes + peer.bytes
    for body in found:
        if body != wanted:
            raise FolderUnusable(
                f"the data folder {where} belongs to peer {UUID(bytes=body[16:])} of cluster "
                f"{UUID(bytes=body[:16])}, not to peer {peer} of cluster {cluster}; nothing was changed. Start the "
                "peer it belongs to, or use another folder"
            )
    if not found and damage:
        raise damage[0]
    if not found and (not create or set(files.names(".")) - _BEFORE_IDENTITY):
        raise FolderUnusable(
            f"the data folder {where} has no identity file; nothing was changed. If the folder was emptied, its peer "
            "must not vote again: remove that peer from the cluster and join a new one with a new folder"
        )
    if damage or not found:
        for name in _IDENTITY:
            write_whole(files, f"{name}.new", [checked.seal(checked.IDENTITY, wanted)])
        for name in _IDENTITY:
            files.rename(old=f"{name}.new", new=name)
            files.sync_folder(".")
    return [] if create else damage


def _read_identities(files: Files) -> tuple[list[bytes], list[StorageDamaged]]:
    """What the copies have, and what is wrong with the others. Both missing is nothing wrong."""
    found: list[bytes] = []
    damage: list[StorageDamaged] = []
    missing: list[StorageDamaged] = []
    for name in _IDENTITY:
        data = read_whole(files, name)
        if data is None:
            missing.append(
                StorageDamaged(file=name, position=0, expected="the folder's identity", found="no such file")
            )
            continue
        try:
            found.append(checked.unseal(checked.IDENTITY, data, file=name))
        except StorageDamaged as flaw:
            damage.append(flaw)
    return found, damage + missing if found or damage else []
