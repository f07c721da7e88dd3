"""Retention of a two-phase lane: which versions the rules allow to remove, and what must be kept in any case.

Removal has two steps. A TRIM entry in the log moves the lowest readable version, so that it is the same on every peer
and a cursor below it gets TRIMMED everywhere. Each peer deletes files by itself, later, when nothing in them is needed.
The coordinator, which knows the time and the sizes, proposes the TRIM here. The entry contains the result and not the
rule, so applying it needs neither.

Storage knows its files by position, readers know versions, and the orders differ where a staged batch was published
late. A proposal therefore takes the longest run of oldest files that a rule releases, and asks the state for the last
version such that all versions up to it are in these files.

    age      files whose newest message is older than `age_s`
    size     oldest files, as long as the remaining files still hold `size_bytes`
    passed   versions that every subscriber has passed
    none     nothing

Three things are kept regardless of the rules: versions after the cursor of a subscriber with a hold; entries after the
newest snapshot, which are replayed at the next start; and, in files only, batches of an open transaction. Holds are
checked again when the TRIM entry is applied, because a hold may have been committed in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from avow.queue.commands import RetentionRules, TrimCommand, TrimRule
from avow.queue.records import StoredFile
from avow.queue.state import QueueState


def trim_proposal(
    state: QueueState,
    files: Sequence[StoredFile],
    *,
    now_ms: int,
    rules: RetentionRules,
    snapshot_position: int,
) -> TrimCommand | None:
    """The TRIM to append, or None if nothing can be removed. `files` are ordered by position, oldest first."""
    best, why = 0, None
    for rule, version in _released(state, files, now_ms=now_ms, rules=rules):
        if version > best:
            best, why = version, rule
    if why is None:
        return None
    target = state.trim_limit(min(best, state.visible.last_version_within(snapshot_position)))
    return TrimCommand(target, why) if target > state.trimmed_to else None


def log_deletable_to(state: QueueState, *, snapshot_position: int) -> int:
    """Entries up to this position may be deleted from disk: not readable, not staged, covered by the snapshot."""
    return min(state.log_needed_from() - 1, snapshot_position)


def _released(
    state: QueueState, files: Sequence[StoredFile], *, now_ms: int, rules: RetentionRules
) -> list[tuple[TrimRule, int]]:
    """For each rule that is set, the last version it allows to remove."""
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
    """The last position of the longest run of oldest files that are all older than this."""
    position = 0
    for file in files:
        if file.newest_ms >= before_ms:
            break
        position = file.last_position
    return position


def surplus_to(files: Sequence[StoredFile], *, keep_bytes: int) -> int:
    """The last position of the oldest files that can be removed so that `keep_bytes` remain."""
    position, left = 0, sum(file.size_bytes for file in files)
    for file in files:
        left -= file.size_bytes
        if left < keep_bytes:
            break
        position = file.last_position
    return position
