"""Values that storage passes to the cores: what it found at start, the place of a record, and the proof of a sync.

A peer that acknowledges a write before it is on disk will eventually lose an acknowledged write. Storage therefore
reports durability in exactly one way: a `Synced`, passed to the callback of `write`. Only storage makes one
(`synced_receipt` is used only in `avow.storage`; a test checks the imports), so a function that takes a `Synced` cannot
be called too early by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from avow.errors import StorageDamaged
from avow.replication.effects import LaneImage

_SEAL: Final = object()


class Synced:
    """Proof of one sync. `group` counts the syncs of this run, from 1. Only storage makes these."""

    __slots__ = ("group",)

    def __init__(self, group: int, *, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError("only storage makes a Synced receipt, after a sync; use the one passed to `then`")
        self.group = group

    def __repr__(self) -> str:
        return f"Synced(group={self.group})"


def synced_receipt(group: int) -> Synced:
    """Only for stores: call it after the sync returned."""
    return Synced(group, seal=_SEAL)


class StoreImage(Struct, gc=False):
    """What a store found at start. `damage` lists all damage found, including what a second copy repaired.

    `lost_below` > 0: the store lost a part of its log. A lane with a lower number that is not in `lanes` may have been
    here, with promises up to the ballot `lost_promised`.
    """

    incarnation: int
    lanes: dict[int, LaneImage]
    damage: list[StorageDamaged]
    lost_below: int = 0
    lost_promised: int = 0


class LaneImages(dict[int, LaneImage]):
    """What storage found of the lanes that are not open yet. A lane that is opened is taken out."""

    __slots__ = ("lost_below", "lost_promised")

    def __init__(self, found: Mapping[int, LaneImage], *, lost_below: int = 0, lost_promised: int = 0) -> None:
        """`lost_below`, `lost_promised`: as in StoreImage."""
        super().__init__(found)
        self.lost_below, self.lost_promised = lost_below, lost_promised

    def take(self, number: int) -> LaneImage | None:
        """The lane's image. Of a lane that may have been lost as a whole: one that lost all its entries, may have
        promised, and may have been fenced."""
        image = self.pop(number, None)
        if image is None and number < self.lost_below:
            return LaneImage(promised=self.lost_promised, damaged_from=1, fenced=True)
        return image


#: Of a store that lost a part of its log and does not know yet which lanes are younger than the loss.
LOST_UNBOUNDED: Final = 1 << 62


class Place(Struct, frozen=True, gc=False):
    """The place of a record, and its header. `full`: the file will not be written again."""

    position: int
    path: str
    full: bool
    offset: int
    header: bytes
