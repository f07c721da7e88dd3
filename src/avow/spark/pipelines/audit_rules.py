"""Judges one id by how often each stage of the chain has it. Pure.

    business     rows of the service's own table            The first of these three that was read decides whether the
    barrier      rows with the reason `committed`           id was committed. Barrier rows and finished pledges are
    pledges      status of the gid at the coordinator       removed after some time, so a missing one proves nothing
    queue        messages
    table        rows

    lost         committed but not in the queue; or in the queue but not in the table
    doubled      more often in a stage than in the one before it
    orphaned     in the queue or the table, but not committed
    undecided    its pledge is not finished, so the audit cannot be complete

An id is reported only at the first stage at which it is wrong: one that is doubled in the queue is also doubled in the
table. A message that a pledge has yet to deliver is not lost.

A signature is the state of an id. There are few different ones, however many ids there are.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

Stage: TypeAlias = Literal["business", "barrier", "pledges", "queue", "table"]
Kind: TypeAlias = Literal["lost", "doubled", "orphaned", "undecided"]

STAGES: Final[tuple[Stage, ...]] = Stage.__args__  # type: ignore[attr-defined]
KINDS: Final[tuple[Kind, ...]] = Kind.__args__  # type: ignore[attr-defined]
COUNT_MAX: Final = 9  # a signature does not distinguish higher counts
OPEN: Final = ("prepared", "submitted", "dead")
_COMMITTED: Final = {"submitted": True, "succeeded": True, "dead": True, "prepared": False, "failed": False}


class Signature(Struct, frozen=True, kw_only=True):
    """How often an id is in each stage, up to COUNT_MAX; None if the stage was not read. `pledges`: a status or ""."""

    business: int | None = None
    barrier: int | None = None
    pledges: str | None = None
    queue: int | None = None
    table: int | None = None


class Found(Struct, frozen=True):
    """`stage`: the stage in which the error shows."""

    kind: Kind
    stage: Stage
    what: str


def judge(seen: Signature) -> list[Found]:
    found = [*_undecided(seen), *_lost(seen), *_doubled(seen), *_orphaned(seen)]
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def committed(seen: Signature) -> bool | None:
    """None if unknown."""
    if seen.business is not None:
        return seen.business > 0
    if seen.barrier is not None:
        return seen.barrier > 0
    return _COMMITTED.get(seen.pledges or "")


def _undecided(seen: Signature) -> list[Found]:
    if seen.pledges not in OPEN:
        return []
    texts = {
        "prepared": "its pledge waits for its transaction, or for its checkback",
        "submitted": "its pledge is not delivered yet",
        "dead": "the delivery of its pledge was given up (dead): redrive or stop it",
    }
    return [Found("undecided", "pledges", texts[seen.pledges])]


def _lost(seen: Signature) -> list[Found]:
    if seen.queue:
        return [Found("lost", "table", "in the queue, not in the table")] if seen.table == 0 else []
    if not committed(seen) or seen.pledges in OPEN:
        return []
    why = f"; its pledge is {seen.pledges}" if seen.pledges else ""
    if seen.queue is None:
        return [Found("lost", "table", f"committed, not in the table{why}")] if seen.table == 0 else []
    if seen.table:
        why = ", although in the table: audit a trimmed queue with its archive"
    return [Found("lost", "queue", f"committed, not in the queue{why}")]


def _doubled(seen: Signature) -> list[Found]:
    found, before = list[Found](), 1
    places: tuple[tuple[Stage, int | None, str], ...] = (
        ("business", seen.business, "a business row"),
        ("queue", seen.queue, "in the queue"),
        ("table", seen.table, "in the table"),
    )
    for stage, count, where in places:
        if count is not None and count > before:
            times = f"at least {count} times" if count == COUNT_MAX else f"{count} times"
            found.append(Found("doubled", stage, f"{where} {times}"))
        before = max(before, count or 0)
    return found


def _orphaned(seen: Signature) -> list[Found]:
    known = committed(seen)
    if known is None:
        fed = seen.queue is not None and not seen.queue
        return [Found("orphaned", "table", "in the table, not in the queue")] if seen.table and fed else []
    if known:
        return []
    places: list[tuple[Stage, str]] = [("queue", "in the queue"), ("table", "in the table")]
    if seen.business is not None:
        places.insert(0, ("barrier", "committed by its barrier row"))
    there = [(stage, where) for stage, where in places if getattr(seen, stage)]
    if not there:
        return []
    missing = "without a business row" if seen.business is not None else "not committed"
    return [Found("orphaned", there[0][0], f"{' and '.join(where for _, where in there)}, {missing}")]
