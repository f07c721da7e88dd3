"""The peers that this peer knows: number, identity and addresses of each, stored in its own data folder.

The metadata lane holds the same data. There are two reasons for a second copy. A starting peer must reach the others
before it has replayed anything. And a founder uses its number from the first link on, before any entry could bind that
number to an identity: every peer remembers the identity that it first saw under a number, and refuses any other. So a
peer whose folder was emptied is refused by every peer it ever connected to, and cannot vote a second time.

    peers, peers-copy   own number, then all known peers; rewritten and synced at each change, before it takes effect.
                        The copy with the higher `change` counts; a copy that is older, missing or damaged is replaced
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from avow.errors import FolderUnusable, PeerRemoved, StorageDamaged
from avow.storage import checked
from avow.storage.files import Files, read_whole, write_whole
from avow.wire.versions import FIRST, NEWEST

_MAGIC: Final = b"AVpb"
_RAISED: Final = b"AVpl"  # once the level was raised: the first release refuses it, because it cannot read the log
PATHS: Final = ("peers", "peers-copy")


class KnownPeer(Struct, frozen=True):
    """`identity` is empty for a founder that has not connected yet. `gone`: it left the cluster and is refused."""

    number: int
    link: str
    identity: bytes = b""
    api: str = ""
    gone: bool = False


class _Content(Struct, frozen=True):
    number: int
    founders: tuple[int, ...]
    peers: tuple[KnownPeer, ...]
    level: int = FIRST
    change: int = 0


_decoder: Final = msgspec.msgpack.Decoder(_Content)


class PeerRegistry:
    """`number` is 0 until the first write."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.number = 0
        self.founders: tuple[int, ...] = ()
        self.level = FIRST  # the highest level of the cluster that was seen; for founders, the one it begins with
        self.peers: dict[int, KnownPeer] = {}
        self.damage: list[StorageDamaged] = []  # of one copy; the other one was intact
        self._change = 0
        self._read()

    @property
    def is_alone(self) -> bool:
        """Whether no other peer belongs to the cluster."""
        return all(known.gone or known.number == self.number for known in self.peers.values())

    def begin(self, number: int, peers: dict[int, KnownPeer], founders: tuple[int, ...]) -> None:
        """The first write in a new folder."""
        self.number, self.founders, self.peers = number, founders, dict(peers)
        self.level = NEWEST if founders else FIRST
        self._write()

    def raise_to(self, level: int) -> None:
        self.level = level
        self._write()

    def meet(self, number: int, identity: bytes) -> None:
        """A peer said Hello. Raises FolderUnusable when its identity is not the one known by that number, PeerRemoved
        when it was removed."""
        known = self.peers.get(number)
        if known is None:
            raise FolderUnusable(f"peer {number} is not a known member of this cluster; it must join first")
        if known.gone:
            raise self.refusal(number)
        if known.identity == identity:
            return
        if known.identity:
            raise FolderUnusable(
                f"peer {number} had identity {UUID(bytes=known.identity)} and now has {UUID(bytes=identity)}: its "
                "folder was emptied or replaced, so it may not vote under this number. Remove that peer from the "
                "cluster and let it join again"
            )
        self._put(msgspec.structs.replace(known, identity=identity))

    def refusal(self, number: int) -> PeerRemoved:
        """What a removed peer is told."""
        return PeerRemoved(
            f"peer {number} was removed from the cluster, and its number is not used again. To use its machine again, "
            "start a peer with an empty folder and --join"
        )

    def learn(self, known: KnownPeer) -> bool:
        """Stores what the metadata lane says about a peer. True: it was not known yet."""
        if self.peers.get(known.number) == known:
            return False
        self._put(known)
        return True

    def _put(self, known: KnownPeer) -> None:
        self.peers[known.number] = known
        self._write()

    def _read(self) -> None:
        found: list[_Content] = []
        absent: list[StorageDamaged] = []
        for name in PATHS:
            data = read_whole(self._files, name)
            if data is None:
                absent.append(StorageDamaged(file=name, position=0, expected="the list of peers", found="no such file"))
                continue
            try:
                found.append(
                    _decoder.decode(checked.unseal(_RAISED if data[:4] == _RAISED else _MAGIC, data, file=name))
                )
            except StorageDamaged as flaw:
                self.damage.append(flaw)
        newest = max(found, key=lambda content: content.change, default=None)
        if newest is None:
            if self.damage:
                raise self.damage[0]
            return  # a new folder
        if newest.change > 1:  # otherwise the first write was cut off
            self.damage += absent
        self.number, self.founders, self.level = newest.number, newest.founders, newest.level
        self.peers = {known.number: known for known in newest.peers}
        self._change = newest.change
        if len(found) < len(PATHS) or any(content != newest for content in found):
            self._write()

    def _write(self) -> None:
        self._change += 1
        content = _Content(self.number, self.founders, tuple(self.peers.values()), self.level, self._change)
        sealed = checked.seal(_MAGIC if self.level == FIRST else _RAISED, msgspec.msgpack.encode(content))
        for name in PATHS:
            write_whole(self._files, f"{name}.new", [sealed])
        for name in PATHS:  # one after the other: a crash in between leaves one copy intact
            self._files.rename(old=f"{name}.new", new=name)
            self._files.sync_folder(".")
