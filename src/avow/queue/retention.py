"""What may be removed from a lane, and what may not whatever the rules say.

Removing has two halves. Readers are told by a TRIM entry in the log, so that the lowest readable version is the same on
every peer and a cursor below it is answered TRIMMED everywhere. Files are deleted by each peer for itself, later, once
nothing in them is needed. The first half is proposed here by the coordinator, which knows the time and the sizes; the
entry carries the result, never the rule, so applying it needs neither.

Storage knows its files by position, readers know versions, and the orders differ where a staged batch was published
late. A proposal therefore takes the longest run of oldest files that the rules give up and asks the state for the last
version before which everything lies in them.

    age      files whose newest message is older than `age_s`
    size     oldest files, as long as the files that remain still hold `size_bytes`; never more than was asked for
    passed   what every subscriber has passed
    none     nothing

Pins beat rules: the cursor of a subscriber with a hold; the newest snapshot, since entries after it are replayed at
the next start; and, for files only, batches of a transaction that is still open. Holds are looked at again when the
TRIM entry is applied, because a hold may have been committed in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from avow.queue.commands import RetentionRules, TrimCommand, TrimRule
from avow.queue.state import QueueState


class StoredFile(Struct, frozen=True, gc=False):
    """One file of a lane. `newest_ms` is the latest creation time of its messages, since 1970."""

    last_position: int
    size_bytes: int
    newest_ms: int


def trim_proposal(
    state: QueueState,
    files: Sequence[StoredFile],
    *,
    now_ms: int,
    rules: RetentionRules,
    snapshot_position: int,
) -> TrimCommand | None:
    """The TRIM to log, or None if nothing can go. `files` are in the order of positions, oldest first."""
    best, why = 0, None
    for rule, version in _given_up(state, files, now_ms=now_ms, rules=rules):
        if version > best:
            best, why = version, rule
    if why is None:
        return None
    target = state.trim_limit(min(best, state.visible.last_version_within(snapshot_position)))
    return TrimCommand(target, why) if target > state.trimmed_to else None


def log_deletable_to(state: QueueState, *, snapshot_position: int) -> int:
    """Entries up to this position may be deleted from disk: not readable, not staged, covered by the snapshot."""
    return min(state.log_needed_from() - 1, snapshot_position)


def _given_up(
    state: QueueState, files: Sequence[StoredFile], *, now_ms: int, rules: RetentionRules
) -> list[tuple[TrimRule, int]]:
    """For each rule that is set, the last version it no longer asks to keep."""
    proposals: list[tuple[TrimRule, int]] = []
    if rules.age_s is not None:
        aged = aged_to(files, before_ms=now_ms - 1000 * rules.age_s)
        proposals.append(("age", state.visible.last_version_within(aged)))
    if rules.size_bytes is not None:
        surplus = surplus_to(files, keep_bytes=rules.size_bytes)
        proposals.append(("size", state.visible.last_version_within(surplus)))
    if rules.passed:
        proposals.append(("passed", state.subscribers.passed_by_all()))
    return proposals


def aged_to(files: Sequence[StoredFile], *, before_ms: int) -> int:
    """The last position of the oldest files that are older than this without exception."""
    position = 0
    for file in files:
        if file.newest_ms >= before_ms:
            break
        position = file.last_position
    return position


def surplus_to(files: Sequence[StoredFile], *, keep_bytes: int) -> int:
    """The last position of the oldest files without which `keep_bytes` are still there."""
    position, left = 0, sum(file.size_bytes for file in files)
    for file in files:
        left -= file.size_bytes
        if left < keep_bytes:
            break
        position = file.last_position
    return position
