"""A data folder belongs to one peer of one cluster, and to one process at a time.

A peer's promises are worth something only while they are in the folder it starts with. Started with another peer's
folder, with an old copy, or with an emptied one, it would vote as if it had never promised anything. So the folder says
whose it is, and a folder that says nothing is only accepted by someone who asks for a new one:

    identity, identity-copy   cluster and peer uuid, checked; two files, so that one bad sector does not stop a peer
    lock                      held by the process that uses the folder, until it ends, however it ends

Copies of a folder cannot be recognised from inside it. What is told apart: another peer's folder, a folder in use, a
folder that was emptied, and one whose identity cannot be read.
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
    """A locked data folder. `files` is what a `FileStore` takes; `damage`: an identity file that was passed over."""

    def __init__(self, path: Path, *, lock: int, damage: Sequence[StorageDamaged]) -> None:
        self.path, self._lock = path, lock
        self.files = DiskFiles(path)
        self.damage = list(damage)

    def close(self) -> None:
        """Let the next process in. Close the store first."""
        os.close(self._lock)


def open_folder(path: Path, *, cluster: UUID, peer: UUID, create: bool = False) -> Folder:
    """Lock the folder and make sure that it is this peer's.

    `create`: the peer is new; the folder may be missing or empty, and is given this identity. Raises FolderUnusable, or
    StorageDamaged when neither identity file can be read. Nothing in the folder is changed then.
    """
    if create:
        path.mkdir(parents=True, exist_ok=True)
    lock = _locked(path)
    with ExitStack() as undo:
        undo.callback(os.close, lock)
        damage = _checked_identity(path, cluster=cluster, peer=peer, create=create)
        undo.pop_all()  # the folder is good: it keeps the lock
    return Folder(path, lock=lock, damage=damage)


def identity_of(path: Path) -> tuple[UUID, UUID] | None:
    """Cluster and peer a folder belongs to; None when it does not say. Raises StorageDamaged when it cannot be read."""
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
            f"there is no folder {path}; nothing was changed. A new peer must ask for a new one"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FolderUnusable(f"{path} is used by another process; nothing was changed. Stop that one first") from None
    return lock


def _checked_identity(path: Path, *, cluster: UUID, peer: UUID, create: bool) -> list[StorageDamaged]:
    files = DiskFiles(path)
    found, damage = _read_identities(files)
    wanted = cluster.bytes + peer.bytes
    if found:
        for body in found:
            if body != wanted:
                raise FolderUnusable(
                    f"{path} belongs to peer {UUID(bytes=body[16:])} of cluster {UUID(bytes=body[:16])}, not to peer "
                    f"{peer} of cluster {cluster}; nothing was changed. Start the right peer, or give it another folder"
                )
        return damage
    if damage:
        raise damage[0]
    if not create or set(os.listdir(path)) - {_LOCK}:
        raise FolderUnusable(
            f"{path} does not say whose it is; nothing was changed. If it was emptied, its peer may not vote again: "
            "remove it from the cluster and add a new one, with a new folder"
        )
    for name in _IDENTITY:
        write_whole(files, name, [checked.seal(checked.IDENTITY, wanted)])
    files.sync_folder(".")
    return []


def _read_identities(files: DiskFiles) -> tuple[list[bytes], list[StorageDamaged]]:
    found: list[bytes] = []
    damage: list[StorageDamaged] = []
    for name in _IDENTITY:
        data = read_whole(files, name)
        if data is None:
            continue
        try:
            found.append(checked.unseal(checked.IDENTITY, data, file=name))
        except StorageDamaged as flaw:
            damage.append(flaw)
    return found, damage
