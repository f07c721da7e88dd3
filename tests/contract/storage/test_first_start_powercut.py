"""A power cut during or right after a peer's first start: it starts again by itself, and what it wrote is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from uuid import UUID

import pytest
from tests.contract.storage.storage_workload import TINY, entry, ignore

from avow.replication.effects import SaveEntries, SaveRun
from avow.server.peer_registry import KnownPeer, PeerRegistry
from avow.server.serve import is_begun
from avow.storage.data_folder import claim_identity, make_folders, read_identity
from avow.storage.file_store import FileStore
from avow.storage.files import Files
from avow.wire.record import Buffer
from avow_lab.simulator.power_cut import Event, RecordedFiles

CLUSTER, PEER = UUID(int=7), UUID(int=1)
ABOVE = ("srv", "avow", "peer-1")


@dataclass
class Below:
    """The files below one folder of a file system."""

    files: RecordedFiles
    folder: str

    def _at(self, path: str) -> str:
        return self.folder if path == "." else f"{self.folder}/{path}"

    def open(self, path: str, *, create: bool = False) -> int:
        return self.files.open(self._at(path), create=create)

    def close(self, handle: int) -> None:
        self.files.close(handle)

    def read(self, handle: int, *, size: int, offset: int) -> bytes:
        return self.files.read(handle, size=size, offset=offset)

    def write(self, handle: int, buffers: Sequence[Buffer], *, offset: int) -> None:
        self.files.write(handle, buffers, offset=offset)

    def size(self, handle: int) -> int:
        return self.files.size(handle)

    def truncate(self, handle: int, size: int) -> None:
        self.files.truncate(handle, size)

    def sync(self, handle: int) -> None:
        self.files.sync(handle)

    def names(self, folder: str) -> list[str]:
        return self.files.names(self._at(folder))

    def make_folder(self, path: str) -> None:
        self.files.make_folder(self._at(path))

    def rename(self, *, old: str, new: str) -> None:
        self.files.rename(old=self._at(old), new=self._at(new))

    def remove(self, path: str) -> None:
        self.files.remove(self._at(path))

    def sync_folder(self, path: str) -> None:
        self.files.sync_folder(self._at(path))

    def free_bytes(self) -> int:
        return self.files.free_bytes()

    def place(self, path: str) -> str:
        return ""


def start(disk: RecordedFiles, *, make: Callable[[Files, Sequence[str]], None] = make_folders) -> tuple[FileStore, int]:
    """What `avow serve` does before it listens. Returns the store and the number of the last run."""
    make(disk, ABOVE)
    files = Below(disk, "/".join(ABOVE))
    known = read_identity(files)
    first = known is None or not is_begun(files)
    identity = PEER if known is None else known[1]
    damage = claim_identity(files, cluster=CLUSTER, peer=identity, create=first, where="it")
    registry = PeerRegistry(files)
    if first:
        peers = {n: KnownPeer(n, f"peer:{n}", identity.bytes if n == 1 else b"") for n in (1, 2, 3)}
        registry.begin(1, peers, (1, 2, 3))
    assert registry.number == 1
    store = FileStore(files, sizes=TINY, background=False, nonce=lambda: 7)
    image = store.load()
    assert [*damage, *registry.damage, *image.damage] == [], "a power cut is not damage"
    store.write([SaveRun(image.incarnation + 1)], ignore)
    store.sync()
    return store, image.incarnation


def lost(event: Event) -> int:
    return 0


def kept(event: Event) -> int:
    return event.size


def make_without_sync(files: Files, names: Sequence[str]) -> None:
    """Mutation: the folder above each new one is not synced."""
    for number in range(len(names)):
        files.make_folder("/".join(names[: number + 1]))


def anything(random: Random) -> Callable[[Event], int]:
    return lambda event: int(random.random() * (event.size + 1))


def test_what_was_acknowledged_in_the_first_run_survives_a_power_cut_of_everything_not_synced() -> None:
    disk = RecordedFiles()
    store, _ = start(disk)
    store.write([SaveEntries(1, (entry(1),))], ignore)
    store.sync()
    found, run = start(disk.cut(lost))
    assert run == 1, "this is not its first run"
    assert found.read(1, after=0, max_entries=9, max_bytes=999)


def test_folders_that_are_not_synced_are_noticed() -> None:
    """The kill of a process cannot show it, so no campaign with real peers does; a power cut does."""
    disk = RecordedFiles()
    store, _ = start(disk, make=make_without_sync)
    store.write([SaveEntries(1, (entry(1),))], ignore)
    store.sync()
    found, run = start(disk.cut(lost))
    assert run == 0, "everything is gone, with the folder"
    assert not found.read(1, after=0, max_entries=9, max_bytes=999)


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_moment_of_the_first_start_leaves_a_folder_that_starts(seed: int) -> None:
    random, disk = Random(seed), RecordedFiles()
    moments = 0

    def cut_here() -> None:
        nonlocal moments
        moments += 1
        for survives in (lost, kept, anything(random)):
            again = disk.cut(survives)
            start(again)
            assert start(again.cut(lost))[1] >= 1, "the second start found what the first one made durable"

    disk.before_sync = cut_here
    start(disk)
    assert moments > 20
