"""Peers of a local cluster that come from a nursery: the same peer, without its imports and its command line's parser.

with Nursery(PEER) as nursery, NurseryCluster(3, nursery=nursery) as cluster: ...
"""

from __future__ import annotations

import sys
from typing import Any, Final

from avow.limits import MIB
from avow.peer.serve import run
from avow.peer.settings import load
from avow.storage.recovery import Sizes
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_process import Child, PeerProcess, environment_of
from avow.testing.nursery import Nursery

PEER: Final = "avow.testing.nursery_peers"
SIZES: Final = Sizes(wal_segment_bytes=16 * MIB)


def main() -> None:
    """`avow serve` as a local cluster starts it: every flag has a value, none comes from the environment."""
    given = sys.argv[1:]
    flags = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(given[::2], given[1::2], strict=True)
    }
    sys.exit(run(load(flags, environment={}), SIZES))


class NurseryPeer(PeerProcess):
    __slots__ = ("_nursery",)

    def __init__(self, nursery: Nursery, like: PeerProcess) -> None:
        super().__init__(folder=like.folder, flags=like.flags, token=like.token)
        self._nursery = nursery

    def _spawn(self) -> Child:
        environment = environment_of(self.token)
        return self._nursery.begin(["-m", PEER, *self.words()], out=self.out, log=self.log, environment=environment)


class NurseryCluster(LocalCluster):
    """As LocalCluster; its founders are the nursery's, and `prefix` has no meaning for them."""

    def __init__(self, peers: int = 3, *, nursery: Nursery, **given: Any) -> None:
        super().__init__(peers, **given)
        self._nursery = nursery

    def _founder(self, number: int) -> PeerProcess:
        return NurseryPeer(self._nursery, super()._founder(number))
