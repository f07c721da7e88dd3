"""A file system in memory that records what was not synced, so that a power cut can be simulated at any byte.

A disk may keep any part of what was written since the last sync and lose the rest. This file system holds each file
twice: as programs see it, and as it is certainly on disk. A list of events, in their order, leads from the second to
the first: writes, truncations, changes of names, and new folders. A sync of a file removes its events from the list; a
sync of a folder removes the changes of names and the new folders in it. With a folder, all that is in it is lost.

    files.events()          what a power cut now may lose
    files.cut(survives)     the disk after the cut. `survives(event)` is how much of each event survives: for a write
                            the number of its first bytes, for other events 0 (lost) or 1 (kept)

    files.before_sync       called before each sync takes effect, when a power cut loses most

It also runs out of space (`capacity_bytes`) and has a sync that fails (`sync_error`), as disks do. It counts syncs.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from avow.wire.record import Buffer


@dataclass(eq=False)
class _Content:
    """One file, independent of its name."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, eq=False)
class Event:
    """`what` is write, truncate, name or folder. `size`: bytes of a write, else 1. `path` is the name at that time."""

    what: str
    path: str
    size: int
    content: _Content | None = None
    offset: int = 0
    data: bytes = b""
    target: str | None = None  # of a name event: what `path` becomes; None: it is removed
    created: bool = False


class RecordedFiles:
    """See above. May be used by several threads, as the real file system."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.sync_error: OSError | None = None
        self.before_sync: Callable[[], None] | None = None
        self.syncs = 0
        self._lock = threading.RLock()
        self._names: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        self._folders: set[str] = {"."}
        self._durable_folders: set[str] = {"."}
        self._handles: dict[int, tuple[str, _Content]] = {}
        self._next_handle = 3
        self._events: list[Event] = []

    # ------------------------------------------------------------- as Files

    def open(self, path: str, *, create: bool = False) -> int:
        with self._lock:
            content = self._names.get(path)
            if content is None:
                if not create or _folder(path) not in self._folders:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                content = self._names[path] = _Content()
                self._events.append(Event("name", path, 1, content, created=True))
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._handles[handle] = (path, content)
            return handle

    def close(self, handle: int) -> None:
        with self._lock:
            del self._handles[handle]

    def read(self, handle: int, *, size: int, offset: int) -> bytes:
        with self._lock:
            return bytes(self._handles[handle][1].live[offset : offset + size])

    def write(self, handle: int, buffers: Sequence[Buffer], *, offset: int) -> None:
        with self._lock:
            path, content = self._handles[handle]
            data = b"".join(buffers)
            growth = offset + len(data) - len(content.live)
            room = self.free_bytes()
            if growth > room:
                # As on a disk, the part that fits is written before the error.
                data = data[: max(0, len(data) - growth + room)]
            _overwrite(content.live, offset, data)
            self._events.append(Event("write", path, len(data), content, offset, data))
            if growth > room:
                raise OSError(errno.ENOSPC, "no space left", path)

    def size(self, handle: int) -> int:
        with self._lock:
            return len(self._handles[handle][1].live)

    def truncate(self, handle: int, size: int) -> None:
        with self._lock:
            path, content = self._handles[handle]
            _resize(content.live, size)
            self._events.append(Event("truncate", path, 1, content, size))

    def sync(self, handle: int) -> None:
        with self._lock:
            if self.before_sync is not None:
                self.before_sync()
            if self.sync_error is not None:
                raise self.sync_error
            self.syncs += 1
            content = self._handles[handle][1]
            content.durable = bytearray(content.live)
            self._events = [e for e in self._events if e.content is not content or e.what == "name"]

    def names(self, folder: str) -> list[str]:
        with self._lock:
            found = {path.rpartition("/")[2] for path in self._names if _folder(path) == folder}
            return sorted(found | {path.rpartition("/")[2] for path in self._folders if _folder(path) == folder})

    def make_folder(self, path: str) -> None:
        with self._lock:
            parts = path.split("/")
            for folder in ("/".join(parts[: n + 1]) for n in range(len(parts))):
                if folder not in self._folders:
                    self._folders.add(folder)
                    self._events.append(Event("folder", folder, 1))

    def rename(self, *, old: str, new: str) -> None:
        with self._lock:
            self._names[new] = self._names.pop(old)
            self._events.append(Event("name", old, 1, self._names[new], target=new))

    def remove(self, path: str) -> None:
        with self._lock:
            content = self._names.pop(path, None)
            if content is not None:
                self._events.append(Event("name", path, 1, content))

    def sync_folder(self, path: str) -> None:
        with self._lock:
            if self.before_sync is not None:
                self.before_sync()
            if path not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            mine = [e for e in self._events if e.what in ("name", "folder") and _folder(e.path) == path]
            for event in mine:
                if event.what == "folder":
                    self._durable_folders.add(event.path)
                else:
                    _apply_name(self._durable_names, event)
            self._events = [e for e in self._events if e not in mine]

    def free_bytes(self) -> int:
        with self._lock:
            return max(0, self.capacity_bytes - sum(len(content.live) for content in self._names.values()))

    def place(self, path: str) -> str:  # noqa: ARG002
        return ""

    # ------------------------------------------------------------ power cuts

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def cut(self, survives: Callable[[Event], int]) -> RecordedFiles:
        """A new file system with what survives, all of it durable. This one is unchanged."""
        with self._lock:
            names, folders = dict(self._durable_names), set(self._durable_folders)
            kept = {id(c): bytearray(c.durable) for c in [*names.values(), *self._names.values()]}
            for event in self._events:
                amount = survives(event)
                if event.content is None:
                    if amount:
                        folders.add(event.path)
                    continue
                bytes_ = kept.setdefault(id(event.content), bytearray(event.content.durable))
                if event.what == "write":
                    _overwrite(bytes_, event.offset, event.data[:amount])
                elif amount and event.what == "truncate":
                    _resize(bytes_, event.offset)
                elif amount:
                    _apply_name(names, event)
            folders = {folder for folder in folders if _reachable(folder, folders)}
            found = {path: kept[id(content)] for path, content in names.items() if _folder(path) in folders}
            return self._successor(found, folders)

    def copy(self) -> RecordedFiles:
        """The same files as programs see them now, all durable: as after the kill of a process without a power cut."""
        with self._lock:
            return self._successor(
                {path: bytearray(content.live) for path, content in self._names.items()}, self._folders
            )

    def _successor(self, contents: dict[str, bytearray], folders: set[str]) -> RecordedFiles:
        found = RecordedFiles(capacity_bytes=self.capacity_bytes)
        found._folders, found._durable_folders = set(folders), set(folders)
        found._names = {path: _Content(data, bytearray(data)) for path, data in contents.items()}
        found._durable_names = dict(found._names)
        return found

    def paths(self) -> list[str]:
        with self._lock:
            return sorted(self._names)

    def content(self, path: str) -> bytearray:
        """The bytes of a file, to read or to damage. A change is not an event."""
        return self._names[path].live


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _reachable(folder: str, folders: set[str]) -> bool:
    """Whether it and all folders above it are there."""
    return folder == "." or (folder in folders and _reachable(_folder(folder), folders))


def _overwrite(target: bytearray, offset: int, data: bytes) -> None:
    if not data:
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _resize(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def _apply_name(names: dict[str, _Content], event: Event) -> None:
    """A rename works even if the creation of the file was lost, because the event has the content."""
    assert event.content is not None
    if event.created:
        names[event.path] = event.content
        return
    if names.get(event.path) is event.content:
        del names[event.path]
    if event.target is not None:
        names[event.target] = event.content
