"""The log of a Parquet table: for each app_id a folder of manifests, one for each batch, named by its version.

    _avow/committed/{app}/{version:020d}.json         the files of one batch
    _avow/committed/{app}/{version:020d}.all.json     the files of all batches up to that one

A manifest is written under a temporary name, synced, and linked under its own name, which must not exist; then the
folder is synced. It is there whole or not at all, and once. After `MANIFESTS_MAX` batches one file takes their place:
written the same way before any of theirs is removed, so a kill between leaves both, and the one that reaches further
counts.

Callers hold the table's lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator

import msgspec

from avow.errors import StorageDamaged
from avow.spark.tables.files import escaped, sync_folder
from avow.spark.tables.ranges import Range

MANIFESTS_MAX = 100
LABEL_BYTES_MAX = 100
_ONE, _ALL, _TEMPORARY = ".json", ".all.json", ".tmp"


class CommittedFile(msgspec.Struct, frozen=True):
    """`staged` is where a task put it, `name` where it belongs; both below the table's folder."""

    staged: str
    name: str
    rows: int
    size_bytes: int
    ranges: tuple[Range, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    app_id: str
    version: int
    files: tuple[CommittedFile, ...]
    format: int = 1


def label(app_id: str) -> str:
    """An app_id as a part of file names."""
    text = escaped(app_id)
    if len(text.encode()) > LABEL_BYTES_MAX:
        text = hashlib.sha256(app_id.encode()).hexdigest()
    return f"app-{text}"


class ManifestLog:
    """The manifests of one app_id."""

    def __init__(self, folder: str, name: str) -> None:
        self._parent, self._folder = folder, os.path.join(folder, name)

    def last(self) -> int | None:
        versions = [version for version, _ in self._names()]
        return max(versions, default=None)

    def newest(self) -> Manifest | None:
        """The manifest of the last batch, if it stands alone: one that stands among all was finished before."""
        last = self.last()
        if last is None or (last, _ONE) not in self._names():
            return None
        return self._read(last, _ONE)

    def all(self) -> Iterator[Manifest]:
        """Every file of this app_id is in exactly one of them."""
        names = self._names()
        reached = max((version for version, ending in names if ending == _ALL), default=-1)
        if reached >= 0:
            yield self._read(reached, _ALL)
        for version, ending in sorted(names):
            if ending == _ONE and version > reached:
                yield self._read(version, _ONE)

    def write(self, manifest: Manifest) -> Iterator[str]:
        """In steps. The link refuses a name that exists."""
        os.makedirs(self._folder, exist_ok=True)
        sync_folder(self._parent)
        for name in os.listdir(self._folder):
            if name.endswith(_TEMPORARY):  # its writer was killed: nobody else writes while we hold the lock
                os.unlink(os.path.join(self._folder, name))
        yield from write_once(self._path(manifest.version, _ONE), msgspec.json.encode(manifest))

    def compact(self) -> Iterator[str]:
        """Only after every file of every manifest has its own name."""
        names = self._names()
        if sum(ending == _ONE for _, ending in names) < MANIFESTS_MAX:
            return
        manifests = list(self.all())
        last = manifests[-1]
        files = tuple(each for manifest in manifests for each in manifest.files)
        whole = Manifest(last.app_id, last.version, files)
        yield from write_once(self._path(last.version, _ALL), msgspec.json.encode(whole))
        for version, ending in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(version, ending))
            yield f"manifest {version} removed"

    def _names(self) -> list[tuple[int, str]]:
        if not os.path.isdir(self._folder):
            return []
        found = []
        for name in os.listdir(self._folder):
            number, dot, ending = name.partition(".")
            if number.isdigit() and f"{dot}{ending}" in (_ONE, _ALL):
                found.append((int(number), f"{dot}{ending}"))
        return found

    def _path(self, version: int, ending: str) -> str:
        return os.path.join(self._folder, f"{version:020d}{ending}")

    def _read(self, version: int, ending: str) -> Manifest:
        path = self._path(version, ending)
        with open(path, "rb") as file:
            content = file.read()
        try:
            return msgspec.json.decode(content, type=Manifest)
        except msgspec.DecodeError as wrong:
            raise StorageDamaged(file=path, position=0, expected="a manifest", found=str(wrong)) from None


def write_once(path: str, content: bytes) -> Iterator[str]:
    """In steps: whole under `path` or not there. FileExistsError if it was there before."""
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{uuid.uuid4()}{_TEMPORARY}")
    with open(temporary, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    yield "written under a temporary name"
    try:
        os.link(temporary, path)
        yield "linked"
    finally:
        os.unlink(temporary)
    sync_folder(folder)
    yield "synced"
