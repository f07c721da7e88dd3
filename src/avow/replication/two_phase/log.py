"""The lane's log as one peer holds it in memory: entries since a base, and who votes according to them.

    base          the newest snapshot's position; everything at or before it is applied and committed
    base+1..end   entries, each with the ballot (origin) that first appended it

Two logs that have the same origin at the same position are equal up to there: that is the invariant every comparison
below rests on. Entries older than the base are not kept here; `read` (storage) may still have them for peers that are
behind. A cut takes membership entries with it, so `members` is always that of the newest one in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from avow.replication.membership import Members, decode_members
from avow.wire.messages import Entry, Kind, Snapshot

Read: TypeAlias = Callable[[int, int], Sequence[Entry]]  # (after, max_entries) -> entries that storage still holds


class LaneLog:
    __slots__ = ("_entries", "_history", "_read", "base", "base_origin", "end", "members", "members_at")

    def __init__(self, *, snapshot: Snapshot | None, entries: Sequence[Entry], read: Read | None = None) -> None:
        self._read = read
        self._entries: list[Entry] = []
        self._history: list[tuple[int, Members]] = []  # (position, members before the entry there)
        self.reset(snapshot or Snapshot(0, 0, (), (), b""))
        for entry in entries:
            self.append(entry)

    def reset(self, snapshot: Snapshot) -> None:
        """The log becomes the snapshot and nothing else."""
        self._entries.clear()
        self._history.clear()
        self.base = self.end = snapshot.position
        self.base_origin = snapshot.origin
        self.members = Members(snapshot.voters, snapshot.learners)
        self.members_at = snapshot.position

    def origin(self, position: int) -> int:
        """Of the entry at `position`, which must lie in base..end; -1 when it does not."""
        if position > self.base:
            return self._entries[position - self.base - 1].origin if position <= self.end else -1
        return self.base_origin if position == self.base else -1

    def entry(self, position: int) -> Entry:
        return self._entries[position - self.base - 1]

    def slice(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """At most `max_entries` entries that follow `after` (from the base on)."""
        start = after - self.base
        return tuple(self._entries[start : start + max_entries])

    def older(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """Entries before the base, if storage still has them: the origin check needs the one at `after`, too."""
        return tuple(self._read(after, max_entries)) if self._read is not None else ()

    def append(self, entry: Entry) -> None:
        assert entry.position == self.end + 1, f"entry {entry.position} does not follow {self.end}"
        self._entries.append(entry)
        self.end = entry.position
        if entry.kind == Kind.MEMBERS:
            self._history.append((entry.position, self.members))
            self.members = decode_members(entry.control)
            self.members_at = entry.position

    def cut(self, end: int) -> None:
        """Drop what lies after `end`."""
        assert end >= self.base, f"cut at {end} would remove committed entries up to {self.base}"
        del self._entries[end - self.base :]
        self.end = end
        while self._history and self._history[-1][0] > end:
            _, self.members = self._history.pop()
            self.members_at = self._history[-1][0] if self._history else self.base

    def members_as_of(self, position: int) -> Members:
        """In force after the entry at `position` (which must lie in base..end)."""
        members = self.members
        for at, before in reversed(self._history):
            if at <= position:
                break
            members = before
        return members

    def compact(self, upto: int) -> None:
        """Forget entries up to `upto`, which a snapshot covers."""
        if upto <= self.base:
            return
        origin = self.origin(upto)
        del self._entries[: upto - self.base]
        self.base, self.base_origin = upto, origin
        self._history = [item for item in self._history if item[0] > upto]
