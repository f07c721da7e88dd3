"""What may be removed from one pub-sub lane, by the rules of its queue.

As for two-phase lanes (`queue.retention`): storage knows files by position, readers know versions, and a rule gives up
the oldest files. Any rule that is set allows removal on its own; holds beat all of them. Here the cursors are vectors
and in the metadata lane, and so is the result: a TRIM entry there, which every peer follows for itself.

A lane ends with its owner's run, and one that was trimmed to its end is forgotten. Then nobody can tell any more what
became of a write to it. So a lane that has just ended keeps its last message for a while; its writers may still ask.
One that has ended, holds nothing any more and is past that time is given up whatever the rules say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from avow.peer.pubsub_book import LaneBook
from avow.queue.catalog import VectorCursor
from avow.queue.commands import LaneTrimCommand, RetentionRules, TrimRule
from avow.queue.retention import StoredFile, aged_to, surplus_to


def lane_trim(
    number: int,
    book: LaneBook,
    files: Sequence[StoredFile],
    *,
    now_ms: int,
    rules: RetentionRules,
    subscribers: Collection[VectorCursor],
    keeps_lane: bool,
) -> LaneTrimCommand | None:
    """The TRIM to propose, or None. `keeps_lane`: it is open, or ended so lately that its writers may still ask."""
    cursors = [(cursor.versions.get(number, 0), cursor.hold) for cursor in subscribers]
    given_up = _given_up(book, files, now_ms=now_ms, rules=rules, cursors=[version for version, _ in cursors])
    best, why = max(given_up, default=(0, "age"), key=lambda item: item[0])
    target = min([best, *(version for version, hold in cursors if hold)])
    trimmed_to, end = max(book.trimmed_to, book.index.trimmed_to), book.index.end
    if not keeps_lane and trimmed_to >= end:
        return LaneTrimCommand(number, end, why)
    if keeps_lane:
        target = min(target, end - 1)
    return LaneTrimCommand(number, target, why) if target > trimmed_to else None


def _given_up(
    book: LaneBook, files: Sequence[StoredFile], *, now_ms: int, rules: RetentionRules, cursors: Sequence[int]
) -> Iterator[tuple[int, TrimRule]]:
    """For each rule that is set, the last version it no longer asks to keep."""
    index = book.index
    if rules.age_s is not None:
        yield index.last_version_within(aged_to(files, before_ms=now_ms - 1000 * rules.age_s)), "age"
    if rules.size_bytes is not None:
        yield index.last_version_within(surplus_to(files, keep_bytes=rules.size_bytes)), "size"
    if rules.passed and cursors:
        yield min(*cursors, index.end), "passed"
