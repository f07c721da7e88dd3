"""When a new cluster may begin: once every founder has been there.

A founder whose folder is new cannot tell a cluster that begins from one that was founded before, and whose folder it
does not see: a volume that was not mounted, a folder that was emptied. Two such founders of three would be a quorum of
an empty cluster, beside a peer that has everything. So a new founder takes part in nothing before it heard from others:

    from every founder a Welcome       each is new as this one is, or has accepted this folder: the cluster begins
    from one founder anything else     only a running node sends that, and only over a link whose Hello it accepted: the
                                       cluster runs, and this founder belongs to it

A peer refuses the Hello of a founder that it once met with another folder, so it sends neither. Then this founder
waits, says for whom, and takes no writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from avow.node.lane_set import is_new
from avow.node.metadata_lane import METADATA_LANE
from avow.replication.durable import StoreImage
from avow.wire.messages import Message, Welcome


class Founding:
    """`waiting_for`: founders that were not heard; empty: this peer takes part."""

    def __init__(self, *, me: int, founders: Sequence[int], image: StoreImage) -> None:
        found = image.lanes.get(METADATA_LANE)
        begins = not image.lost_below and (found is None or is_new(found))
        self.waiting_for = [peer for peer in founders if peer != me] if begins else []

    def heard(self, source: int, message: Message) -> None:
        if type(message) is not Welcome:
            self.waiting_for = []
        elif source in self.waiting_for:
            self.waiting_for.remove(source)
