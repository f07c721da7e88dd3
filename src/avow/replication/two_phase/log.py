"""A lane's log in the memory of one peer: the entries since a base, and the membership they define.

    base          everything at or before it is applied and committed: the newest snapshot's position, or later, if
                  entries were dropped because memory is bounded
    base+1..end   entries, each with the ballot (origin) that first appended it

Two logs with the same origin at the same position are equal up to there. Every comparison below depends on this
invariant. Entries up to the base are not in memory; `read` (storage) may still have them for readers and for peers that
are behind. A cut also removes membership entries, so `members` always comes from the newest one in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from avow.errors import StorageDamaged, Trimmed
from avow.replication.membership import Members, decode_members
from avow.replication.pieces import entry_bytes, one_frame
from avow.wire.messages import Entry, Kind, Snapshot

# (after, max_entries) -> entries in storage, from after + 1 on. It may limit their bytes, but returns at least one
# entry if there is one. May raise Trimmed or StorageDamaged.
Read: TypeAlias = Callable[[int, int], Sequence[Entry]]


class LaneLog:
    __slots__ = ("_entries", "_history", "_read", "base", "base_origin", "end", "members", "members_at", "size_bytes")

    def __init__(self, *, snapshot: Snapshot | None, entries: Sequence[Entry], read: Read | None = None) -> None:
        self._read = read
        self._entries: list[Entry] = []
        self._history: list[tuple[int, Members]] = []  # (position, members before the entry there)
        self.reset(snapshot or Snapshot(0, 0, (), (), b""))
        for entry in entries:
            self.append(entry)

    @property
    def readable(self) -> bool:
        """Whether older entries can be read from storage."""
        return self._read is not None

    def reset(self, snapshot: Snapshot) -> None:
        """Replace the log by the snapshot."""
        self._entries.clear()
        self._history.clear()
        self.size_bytes = 0
        self.base = self.end = snapshot.position
        self.base_origin = snapshot.origin
        self.members = Members(snapshot.voters, snapshot.learners)
        self.members_at = snapshot.position

    def origin(self, position: int) -> int:
        """The origin of the entry at `position`; -1 if that is not in base..end."""
        if position > self.base:
            return self._entries[position - self.base - 1].origin if position <= self.end else -1
        return self.base_origin if position == self.base else -1

    def older_origin(self, position: int) -> int:
        """The origin of an entry before the base, from storage; -1: it was removed; 0: before the first entry."""
        found = self.older(position - 1, 1) if position else ()
        return found[0].origin if found else (-1 if position else 0)

    def entry(self, position: int) -> Entry:
        return self._entries[position - self.base - 1]

    def find(self, position: int) -> Entry | None:
        """The entry at `position`, from memory or storage; None: neither has it."""
        if position > self.base:
            return self._entries[position - self.base - 1] if position <= self.end else None
        found = self.older(position - 1, 1)
        return found[0] if found else None

    def slice(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """At most `max_entries` entries that follow `after` (from the base on), whatever their size."""
        start = after - self.base
        return tuple(self._entries[start : start + max_entries])

    def piece(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """The part of `slice` that fits into one frame."""
        return one_frame(self.slice(after, max_entries))

    def older(self, after: int, max_entries: int) -> tuple[Entry, ...]:
        """The entries after `after` and up to the base that fit into one frame, if storage still has them.

        Never beyond the base: a cut of later entries may not have reached storage yet.
        """
        wanted = min(max_entries, self.base - after)
        if self._read is None or wanted <= 0:
            return ()
        try:
            found = tuple(self._read(after, wanted))
        except (Trimmed, StorageDamaged):
            return ()
        return one_frame(found) if found and found[0].position == after + 1 else ()

    def append(self, entry: Entry) -> None:
        assert entry.position == self.end + 1, f"entry {entry.position} does not follow {self.end}"
        self._entries.append(entry)
        self.end = entry.position
        self.size_bytes += len(entry.batch) + len(entry.control)
        if entry.kind == Kind.MEMBERS:
            self._history.append((entry.position, self.members))
            self.members = decode_members(entry.control)
            self.members_at = entry.position

    def cut(self, end: int) -> None:
        """Drop the entries after `end`."""
        assert end >= self.base, f"cut at {end} would remove committed entries up to {self.base}"
        self.size_bytes -= sum(map(entry_bytes, self._entries[end - self.base :]))
        del self._entries[end - self.base :]
        self.end = end
        while self._history and self._history[-1][0] > end:
            _, self.members = self._history.pop()
            self.members_at = self._history[-1][0] if self._history else self.base

    def members_as_of(self, position: int) -> Members:
        """The membership in force after the entry at `position`, which must be in base..end."""
        members = self.members
        for at, before in reversed(self._history):
            if at <= position:
                break
            members = before
        return members

    def compact(self, upto: int) -> None:
        """Drop entries up to `upto` from memory; a snapshot covers them or storage has them."""
        if upto <= self.base:
            return
        origin = self.origin(upto)
        self.size_bytes -= sum(map(entry_bytes, self._entries[: upto - self.base]))
        del self._entries[: upto - self.base]
        self.base, self.base_origin = upto, origin
        self._history = [item for item in self._history if item[0] > upto]

    def surplus(self, *, max_entries: int, max_bytes: int) -> int:
        """The position up to which entries must be dropped so that a quarter of both limits is free again.

        A quarter, because dropping the first entry of thousands costs as much as dropping hundreds of them.
        """
        keep_entries, keep_bytes = max_entries - max_entries // 4, max_bytes - max_bytes // 4
        position, size = max(self.base, self.end - keep_entries), self.size_bytes
        if size <= keep_bytes:
            return position
        size -= sum(map(entry_bytes, self._entries[: position - self.base]))
        for entry in self._entries[position - self.base :]:
            if size <= keep_bytes:
                break
            size, position = size - entry_bytes(entry), position + 1
        return position
