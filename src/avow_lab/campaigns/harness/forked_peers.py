"""A local cluster whose peers are started by a fork server, without importing and without `avow serve`'s parser.

with ForkServer(PEER) as fork_server, ForkedCluster(3, fork_server=fork_server) as cluster: ...
"""

from __future__ import annotations

import sys
from typing import Any, Final

from avow.limits import MIB
from avow.server.serve import run
from avow.server.settings import load
from avow.storage.store import Sizes
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_process import Child, PeerProcess, environment_of
from avow_lab.campaigns.harness.fork_server import ForkServer

PEER: Final = "avow_lab.campaigns.harness.forked_peers"
SIZES: Final = Sizes(wal_segment_bytes=16 * MIB)


def main() -> None:
    """As `avow serve` with the flags of a local cluster: every flag has a value, none comes from the environment."""
    given = sys.argv[1:]
    flags = {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(given[::2], given[1::2], strict=True)
    }
    sys.exit(run(load(flags, environment={}), SIZES))


class ForkedPeer(PeerProcess):
    __slots__ = ("_fork_server",)

    def __init__(self, fork_server: ForkServer, like: PeerProcess) -> None:
        super().__init__(folder=like.folder, flags=like.flags, token=like.token)
        self._fork_server = fork_server

    def _spawn(self) -> Child:
        environment = environment_of(self.token)
        return self._fork_server.start_program(
            ["-m", PEER, *self.words()], out=self.out, log=self.log, environment=environment
        )


class ForkedCluster(LocalCluster):
    """As LocalCluster, but the fork server starts the founders. `prefix` has no effect on them."""

    def __init__(self, peers: int = 3, *, fork_server: ForkServer, **given: Any) -> None:
        super().__init__(peers, **given)
        self._fork_server = fork_server

    def _founder(self, number: int) -> PeerProcess:
        return ForkedPeer(self._fork_server, super()._founder(number))
