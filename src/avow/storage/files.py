"""The file operations that storage uses, behind an interface that tests can implement.

After a power cut, bytes that were written and not synced may be there, missing, or there in part, and a name may point
to the old file or the new one. No test can make a real disk do that at a chosen byte. Storage therefore uses files only
through `Files`, which has two implementations: `DiskFiles` here, and `powercut.RecordedFiles`, which records what is
synced and what is not.

Paths are relative to the data folder, with `/` between parts. A handle is a small integer.

    write         writes all of the buffers at an offset, or raises OSError; a file grows by writing
    sync          the file's bytes are on disk when this returns (fdatasync: bytes and size, not times)
    sync_folder   names created, renamed or removed in that folder are on disk when this returns
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from avow.wire.record import Buffer

_IOV_MAX: Final = 1024  # Linux's limit of buffers in one pwritev
_JOIN_BELOW_BYTES: Final = 128 * 1024  # below this, copying costs less than passing many small buffers to the kernel
_ZEROS: Final = bytes(1024 * 1024)


class Files(Protocol):
    def open(self, path: str, *, create: bool = False) -> int: ...

    def close(self, handle: int) -> None: ...

    def read(self, handle: int, *, size: int, offset: int) -> bytes:
        """Returns fewer bytes than requested only at the end of the file."""
        ...

    def write(self, handle: int, buffers: Sequence[Buffer], *, offset: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None: ...

    def names(self, folder: str) -> list[str]:
        """Sorted; empty if the folder does not exist."""
        ...

    def make_folder(self, path: str) -> None: ...

    def rename(self, *, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None:
        """Does nothing if the file does not exist."""
        ...

    def sync_folder(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def place(self, path: str) -> str:
        """The file's path for other processes on this machine; empty: they cannot read it."""
        ...


class DiskFiles:
    """The operating system's files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(f"{self._root}/{path}", flags, 0o640)

    def close(self, handle: int) -> None:
        os.close(handle)

    def read(self, handle: int, *, size: int, offset: int) -> bytes:
        found = os.pread(handle, size, offset)
        if len(found) == size:
            return found
        pieces = [found]  # Linux returns at most 2 GiB per call, less after a signal; an empty result is the end
        while found and (missing := size - sum(map(len, pieces))):
            found = os.pread(handle, missing, offset + size - missing)
            pieces.append(found)
        return b"".join(pieces)

    def write(self, handle: int, buffers: Sequence[Buffer], *, offset: int) -> None:
        total = sum(map(len, buffers))
        if total < _JOIN_BELOW_BYTES or len(buffers) > _IOV_MAX:
            buffers = [b"".join(buffers)]
        written = os.pwritev(handle, buffers, offset)
        if written < total:  # a signal, or a nearly full disk: then the next call fails
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(handle, rest[written:], offset + written)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(f"{self._root}/{folder}"))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        os.makedirs(f"{self._root}/{path}", mode=0o750, exist_ok=True)

    def rename(self, *, old: str, new: str) -> None:
        os.rename(f"{self._root}/{old}", f"{self._root}/{new}")

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._root}/{path}")

    def sync_folder(self, path: str) -> None:
        handle = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free_bytes(self) -> int:
        state = os.statvfs(self._root)
        return state.f_bavail * state.f_frsize

    def place(self, path: str) -> str:
        return f"{os.path.abspath(self._root)}/{path}"


def fill_with_zeros(files: Files, path: str, *, size: int) -> None:
    """Create a synced file of zeros with allocated blocks: overwriting it changes no metadata, so a sync is one write.

    Allocation alone would leave extents marked unwritten, and the first sync of each would write metadata too.
    """
    handle = files.open(path, create=True)
    try:
        for offset in range(0, size, len(_ZEROS)):
            files.write(handle, [_ZEROS[: min(len(_ZEROS), size - offset)]], offset=offset)
        files.sync(handle)
    finally:
        files.close(handle)


def read_whole(files: Files, path: str) -> bytes | None:
    """The file's content; None if it does not exist."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.read(handle, size=files.size(handle), offset=0)
    finally:
        files.close(handle)


def write_whole(files: Files, path: str, buffers: Sequence[Buffer]) -> None:
    """Write and sync a new file. A file left by a failed attempt is removed first and never synced again.

    Its name is durable only after its folder is synced.
    """
    files.remove(path)
    handle = files.open(path, create=True)
    try:
        files.write(handle, buffers, offset=0)
        files.sync(handle)
    finally:
        files.close(handle)
