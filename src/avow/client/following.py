"""Following a queue: every lane's messages as they become visible, in one stream.

A peer pushes them (`pushed`). Order holds within a lane. The lanes of a pub-sub queue come and go with its peers; the
channel follows them. When a channel is over, the next one, to another peer, begins behind what was given out in each
lane: nothing twice, nothing missing.

A subscriber's cursor is where it starts, and moves when a batch is committed: what was read and not committed is read
again next time. That is at-least-once; exactly-once is a matter of storing the version with the result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from avow.client.pushed import Commit, Lanes, positions, pushed, read_pushed
from avow.client.reading import ReadBatch

if TYPE_CHECKING:
    from avow.client.cluster import Cluster


class Follower:
    """`after`: the version to begin after, of lanes that are not read from their beginning. `only` this lane."""

    def __init__(
        self, cluster: Cluster, *, queue: str, after: Mapping[int, int], only: int | None, commit: Commit | None
    ) -> None:
        self._cluster, self._queue, self._only, self._commit = cluster, queue, only, commit
        self._after = {lane: version for lane, version in after.items() if only in (None, lane)}

    async def pages(self) -> AsyncGenerator[list[ReadBatch], None]:
        async with aclosing(pushed(self._cluster, self._parameters, self._read)) as groups:
            async for batches in groups:
                if batches:
                    yield batches
                    self._after.update({batch.lane: batch.last_version for batch in batches})

    def _read(self, value: memoryview) -> list[ReadBatch]:
        found = read_pushed(value)
        return [] if isinstance(found, Lanes) else [ReadBatch(one, self._commit) for one in found]

    def _parameters(self) -> dict[str, str]:
        found = {"role": "reader", "queue": self._queue, "format": "ranges", "from": "start"}
        if self._only is not None:
            found["lane"] = str(self._only)
        if self._after:
            found["after"] = positions(self._after)
        return found
