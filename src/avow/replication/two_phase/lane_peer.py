"""What one peer knows of one two-phase lane, and what it wants done: the ground the roles stand on.

Durable: `promised`, `stamped`, the log. Everything else is lost with the process and found again by listening.

Effects are collected between two drains. A send that depends on durable state waits for every sync that is still
outstanding, also when the drain that carries it persists nothing itself: what it depends on may have gone before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from avow.ids import REPAIRING, round_of
from avow.replication.effects import Effects, LaneImage, Persist, SaveState
from avow.replication.membership import Members
from avow.replication.quorum import quorum
from avow.replication.tuning import Tuning
from avow.replication.two_phase.claim import Claiming
from avow.replication.two_phase.log import LaneLog, Read
from avow.replication.two_phase.progress import Progress
from avow.replication.two_phase.reads import ReadRounds
from avow.wire.messages import Message

FOLLOWER: Final = 0
PROBING: Final = 1
CLAIMING: Final = 2
COORDINATOR: Final = 3
ROLES: Final = ("follower", "probing", "claiming", "coordinator")


class LanePeer(ABC):
    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
    ) -> None:
        self.me, self.lane, self.tuning = me, lane, tuning
        self._rng = rng
        self.log = LaneLog(snapshot=image.snapshot, entries=image.entries, read=read)
        self.snapshot = image.snapshot  # the newest, for peers that are behind it
        self.reset_at = 0  # the position of the last snapshot that replaced this peer's log
        self.snapshot_wanted = False  # a peer needs one newer than that: storage cannot give it what it lacks
        self.promised = image.promised
        self.stamped = image.stamped
        self.committed = self.log.base
        self.persisted_end = self.log.end
        self.persisted_stamp = image.stamped
        self.role = FOLLOWER
        self.coordinator = 0  # heard last
        self.takeover_end = 0
        self.progress: dict[int, Progress] = {}
        self.claim: Claiming | None = None
        self.reads = ReadRounds()
        self.reads_done: list[tuple[int, int]] = []  # (request, cursor), -1: not the coordinator any more
        self.accepted: dict[int, int] = {}  # peer -> the cursor it reported
        self.heard: dict[int, float] = {}
        self.cursor_seen = 0  # the highest committed cursor anybody reported
        # equal to the log of `promised`'s coordinator up to here; whoever has its stamp holds nothing else
        self._matched = self.log.end if self.promised and self.promised == self.stamped else 0
        self._accept = 0  # the cursor that coordinator gave; together they say what is committed here
        self._coordinator_heard = self._online_at = -1e9
        self._round_seen = round_of(self.promised)
        self._no_coordinator: set[int] = set()
        self.full = False  # the disk takes no entries; promises and answers go on
        self._repair_after = -1
        self._beat_at = now
        self._claim_at = now + self._claim_delay()
        self._ticket = self.persisted_ticket = 0
        self._pending: deque[tuple[int, int, int]] = deque()  # (ticket, end, stamp) waiting for their sync
        self._now: list[tuple[int, Message]] = []
        self._synced: list[tuple[int, Message]] = []
        self._ready_at = -1  # where in `_synced` the last Ready stands
        self._persist: list[Persist] = []
        if image.damaged_from and self.stamped != REPAIRING:
            self._save_state(promised=self.promised, stamped=REPAIRING)
        self._on = self._handlers()

    @abstractmethod
    def _handlers(self) -> dict[type, Callable[..., None]]:
        """Which method takes which message."""

    def drain(self) -> Effects | None:
        """Everything to do since the last call, or None."""
        if self._persist or (self._synced and self.persisted_ticket < self._ticket):
            self._ticket += 1
            self._pending.append((self._ticket, self.log.end, self.stamped))
            effects = Effects(self._ticket, self._now, self._persist, self._synced)
            self._now, self._persist, self._synced = [], [], []
            self._ready_at = -1
            return effects
        if self._synced:  # all they depend on is durable already
            self._now += self._synced
            self._synced = []
            self._ready_at = -1
        if not self._now:
            return None
        effects = Effects(0, self._now, [], [])
        self._now = []
        return effects

    def say(self, peer: int, message: Message) -> None:
        """Send at once, beside the core's own messages: for the composition's questions and answers."""
        self._now.append((peer, message))

    def keep(self, operation: Persist) -> None:
        """Persist beside the core's own, with `next_ticket`: for what the composition stores."""
        self._persist.append(operation)

    @property
    def next_ticket(self) -> int:
        """Of the next drain that persists something; synced when `persisted_ticket` has reached it."""
        return self._ticket + 1

    @property
    def members(self) -> Members:
        return self.log.members

    @property
    def is_voter(self) -> bool:
        return self.me in self.log.members.voters

    @property
    def repairing(self) -> bool:
        return self.stamped == REPAIRING

    def online(self, now: float) -> bool:
        """A quorum of voters, this peer included, was heard within the freshness time."""
        if now == self._online_at:  # asked for every write of one moment
            return True
        oldest, me, heard = now - self.tuning.heartbeat_fresh_s, self.me, self.heard
        voters = self.log.members.voters
        fresh = sum(peer == me or heard.get(peer, -1e9) >= oldest for peer in voters)
        if fresh < self._quorum(len(voters)):
            return False
        self._online_at = now
        return True

    def live_coordinator(self, now: float) -> int:
        """The coordinator this peer has heard lately (or is); 0: none."""
        if self.role == COORDINATOR:
            return self.me
        heard_lately = now - self._coordinator_heard < self.tuning.heartbeat_fresh_s
        return self.coordinator if heard_lately else 0

    def stored_by(self, position: int) -> tuple[int, ...]:
        """Peers known to hold the entry at `position`."""
        known = {peer for peer, cursor in self.accepted.items() if cursor >= position}
        known |= {p.peer for p in self.progress.values() if p.match >= position}
        if self.persisted_end >= position:
            known.add(self.me)
        return tuple(sorted(known))

    def statistics(self) -> dict[str, object]:
        return {
            "role": ROLES[self.role],
            "promised": self.promised,
            "stamped": self.stamped,
            "coordinator": self.coordinator,
            "end": self.log.end,
            "committed": self.committed,
            "voters": self.log.members.voters,
            "learners": self.log.members.learners,
            "repairing": self.repairing,
            "match": {peer: p.match for peer, p in self.progress.items()},
        }

    def _claim_delay(self) -> float:
        return self.tuning.claim_delay_s + self._rng() * self.tuning.claim_jitter_s

    def _all_synced(self) -> bool:
        return not self._persist and self.persisted_ticket >= self._ticket

    def _save_state(self, *, promised: int, stamped: int) -> None:
        self.promised, self.stamped = promised, stamped
        self._persist.append(SaveState(self.lane, promised, stamped))

    def _to_voters(self, sends: list[tuple[int, Message]], message: Message) -> None:
        sends.extend((peer, message) for peer in self.log.members.voters if peer != self.me)

    @abstractmethod
    def _step_down(self, now: float) -> None:
        """Whatever this peer was, it is a follower now."""

    @abstractmethod
    def _promise(self, ballot: int, now: float) -> None:
        """Store nothing under a lower ballot from now on."""

    @abstractmethod
    def _fetch_piece(self) -> None:
        """Claimant: ask the donor for what follows."""

    # ------------------------------------------------------------------ rules

    def _quorum(self, n: int) -> int:
        return quorum(n)

    def _piece(self) -> int:
        return self.tuning.piece_entries
