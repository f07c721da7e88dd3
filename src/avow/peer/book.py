"""Whom this peer knows: number, identity and addresses of every peer, kept in its own data folder.

Two reasons to keep it beside the metadata lane, which says the same. A peer that starts must reach the others before it
has replayed anything. And a founder answers to its number from the first link on, before any entry could bind that
number to an identity: whoever has met a peer remembers who it was, and refuses another that comes under its number. So
a peer whose folder was emptied is a stranger to everyone it ever spoke to, and cannot vote a second time.

    peers, peers-copy   own number, then everyone known; written anew and synced at each change, before it is relied on
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from avow.errors import FolderUnusable, StorageDamaged
from avow.storage import checked
from avow.storage.files import Files, read_whole, write_whole

_MAGIC: Final = b"AVpb"
_NAMES: Final = ("peers", "peers-copy")


class Known(Struct, frozen=True):
    """`identity` empty: a founder nobody has met yet. `gone`: it left the cluster and is refused."""

    number: int
    link: str
    identity: bytes = b""
    api: str = ""
    gone: bool = False


class _Page(Struct, frozen=True):
    number: int
    founders: tuple[int, ...]
    peers: tuple[Known, ...]


_decoder: Final = msgspec.msgpack.Decoder(_Page)


class Book:
    """`number` 0: nothing was written yet."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.number = 0
        self.founders: tuple[int, ...] = ()
        self.peers: dict[int, Known] = {}
        self._read()

    def begin(self, number: int, peers: dict[int, Known], founders: tuple[int, ...]) -> None:
        """The first page of a new folder."""
        self.number, self.founders, self.peers = number, founders, dict(peers)
        self._write()

    def meet(self, number: int, identity: bytes) -> None:
        """A peer introduces itself. Raises FolderUnusable when it is not the one known by that number."""
        known = self.peers.get(number)
        if known is None:
            raise FolderUnusable(f"peer {number} is not known here yet; it must join the cluster first")
        if known.gone:
            raise FolderUnusable(f"peer {number} has left the cluster; start it anew with an empty folder and --join")
        if known.identity == identity:
            return
        if known.identity:
            raise FolderUnusable(
                f"peer {number} was {UUID(bytes=known.identity)} and comes back as {UUID(bytes=identity)}: its folder "
                "was emptied or exchanged, so it may not vote as itself. Remove that peer and let it join anew"
            )
        self._put(msgspec.structs.replace(known, identity=identity))

    def learn(self, known: Known) -> bool:
        """What the metadata lane says of a peer; True when that is news."""
        if self.peers.get(known.number) == known:
            return False
        self._put(known)
        return True

    def _put(self, known: Known) -> None:
        self.peers[known.number] = known
        self._write()

    def _read(self) -> None:
        damage: list[StorageDamaged] = []
        for name in _NAMES:
            data = read_whole(self._files, name)
            if data is None:
                continue
            try:
                page = _decoder.decode(checked.unseal(_MAGIC, data, file=name))
            except StorageDamaged as flaw:
                damage.append(flaw)
                continue
            self.number, self.founders = page.number, page.founders
            self.peers = {known.number: known for known in page.peers}
            return
        if damage:
            raise damage[0]

    def _write(self) -> None:
        page = _Page(self.number, self.founders, tuple(self.peers.values()))
        sealed = checked.seal(_MAGIC, msgspec.msgpack.encode(page))
        for name in _NAMES:  # one after the other: a crash in between leaves one that is whole
            write_whole(self._files, f"{name}.new", [sealed])
            self._files.rename(old=f"{name}.new", new=name)
        self._files.sync_folder(".")
