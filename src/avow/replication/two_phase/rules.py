"""The rules of two-phase replication, one method each, with the reason.

They have no state; the roles call them. A test replaces this object by one that breaks a rule, to check that the
violation is detected (see `roles`).
"""

from __future__ import annotations

from avow.ids import REPAIRING
from avow.replication.quorum import quorum
from avow.replication.two_phase.state import LaneLog


class Rules:
    def quorum(self, n: int) -> int:
        """Any two quorums share a voter: more than half of the membership, however many answer."""
        return quorum(n)

    def continues(self, log: LaneLog, after: int, origin: int) -> bool:
        """The previous-entry check: this log has the coordinator's entry at `after`, hence its whole prefix."""
        if after < log.base:
            return True  # everything before the base is committed, hence equal
        return log.origin(after) == origin

    def may_stamp(self, *, matched: int, required: int) -> bool:
        """No stamp without the whole take-over log: a stamp means that this peer holds every entry committed before."""
        return matched >= required

    def end_at_stamp(self, *, matched: int, committed: int, end: int) -> int:  # noqa: ARG002
        """Where the log ends once it is stamped: entries beyond the match must not look like entries of this ballot.

        A late message may match less than repair has fetched since; repaired entries are committed and stay.
        """
        return max(matched, committed)

    def required(self, *, takeover_end: int, match: int) -> int:
        """What a peer must hold before it takes this ballot's stamp: the take-over log, and everything it was counted
        for.

        The second matters for a peer that was damaged after it acknowledged entries.
        """
        return max(takeover_end, match)

    def counts(self, *, stamped: bool) -> bool:
        """A copy counts only on a stamped peer: a claim looks for committed entries only there."""
        return stamped

    def is_told(self, *, confirmed: int, cursor: int) -> bool:
        """A peer needs no more heartbeats once it said, under this ballot, that it has the whole committed log."""
        return confirmed >= cursor

    def known_committed(self, *, cursor: int, matched: int, persisted: int) -> int:
        """How far a follower may move its cursor: only over entries that match the coordinator's log and are synced.

        An entry beyond the match may come from an earlier coordinator.
        """
        return min(cursor, matched, persisted)

    def donor(self, promises: dict[int, tuple[int, int]], *, me: int, ballot: int, freshness: tuple[int, int]) -> int:  # noqa: ARG002
        """The peer whose log a claim must adopt: the freshest of a quorum. 0: the claimant's own is as fresh.

        Freshness is (stamp, end of the log). The freshest of a quorum holds every committed entry.
        """
        freshest = max(promises, key=lambda peer: (promises[peer], peer == me, peer))
        return 0 if promises[freshest] <= freshness else freshest

    def is_damaged(self, stamped: int) -> bool:
        """A log that lost entries is not just short: it may have been counted for them."""
        return stamped == REPAIRING
