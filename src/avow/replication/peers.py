"""What a peer knows of the other peers: when it heard them, their runs, what they read. All its lanes share it.

A process that sends anything is alive, whichever lane it is about. Time in which this process could not listen does not
count as the silence of others. The metadata lane's heartbeats go to every peer in
every interval, so the other lanes need none to know who is alive (`two_phase.core`).

At most `CLAIMS_MAX` lanes claim at a time: when a peer with a thousand lanes dies, the messages of as many claims would
delay the heartbeats of those that live.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from avow.limits import CLAIMS_MAX, LATE_TICK_S
from avow.wire.versions import FIRST, QUIET_LANES


class Peers:
    __slots__ = ("_refreshed_at", "changes", "claiming", "fresh", "heard", "level", "runs", "versions")

    def __init__(self, *, level: int = FIRST) -> None:
        """`level`: the version of the protocol that every peer of the cluster reads."""
        self.level = level
        self._refreshed_at = inf
        self.heard: dict[int, float] = {}  # peer -> time of its last message
        self.fresh: frozenset[int] = frozenset()  # those heard within the freshness time, as of the last `refresh`
        self.runs: dict[int, int] = {}
        self.versions: dict[int, int] = {}  # of those met: the newest version of frames to send them
        self.changes = 0  # of versions and the level
        self.claiming: set[int] = set()  # lanes

    def refresh(self, now: float, *, fresh_s: float) -> bool:
        """True: a peer fell silent or is heard again."""
        late_s, self._refreshed_at = now - self._refreshed_at, now
        if (
            late_s > LATE_TICK_S
        ):  # this process was suspended or its clock jumped: what was sent meanwhile is not read yet
            for peer in self.heard:
                self.heard[peer] += late_s
        fresh = frozenset(peer for peer, at in self.heard.items() if now - at < fresh_s)
        changed = fresh != self.fresh
        self.fresh = fresh
        return changed

    def met(self, peer: int, *, run: int, version: int) -> bool:
        """A link to this run of the peer was established. True: its last run has ended."""
        if run < self.runs.get(peer, 0):
            return False
        ended = run > self.runs.get(peer, run)
        self.runs[peer] = run
        if self.versions.get(peer) != version:
            self.versions[peer] = version
            self.changes += 1
        return ended

    def raise_to(self, level: int) -> None:
        if level != self.level:
            self.level = level
            self.changes += 1

    def read_quiet_lanes(self, peers: Iterable[int]) -> bool:
        """Whether all of them take a lane's coordinator for alive while they hear its process."""
        return all(self.versions.get(peer, self.level) >= QUIET_LANES for peer in peers)

    def may_claim(self, lane: int) -> bool:
        return lane in self.claiming or len(self.claiming) < CLAIMS_MAX
