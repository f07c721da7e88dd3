"""The common part of the three SQL stores: tables, the version of their layout, and the query of `find`.

All other statements differ, because databases differ in how many rows a statement can change and in what it reports
about them, so each store has its own. Values are put into a statement only with `mark`, which each store implements.

    avow_pledges   one row per pledge; columns as in operations.Row
    avow_topics    name, subscribers, version, created_ms, updated_ms
    avow_meta      one row: the version of this layout
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from avow.errors import Refused
from avow.pledge.record import UNFINISHED
from avow.pledge.stores.operations import READ_COLUMNS, Find

SCHEMA_VERSION: Final = 1
STOPPED: Final = "status IN ('failed', 'dead')"  # few, and often queried: they have their own index
UNDER_WAY: Final = f"status IN ({str(UNFINISHED)[1:-1]})"
READ: Final = ", ".join(READ_COLUMNS)
TOPIC_COLUMNS: Final = "name, subscribers, version, created_ms, updated_ms"

Mark: TypeAlias = Callable[[Any], str]


def check_version(found: int, *, where: str) -> None:
    if found != SCHEMA_VERSION:
        raise Refused(
            f"the tables in {where} have layout {found}, but this version of Avow needs layout {SCHEMA_VERSION}; "
            "nothing was changed. Use the version of Avow that created them, or another database"
        )


class Hints(NamedTuple):
    """Index hints after the table's name, for a database that would sort instead; `is_stopped`: a condition with which
    the index of failed and dead pledges can be used."""

    newest: str = ""
    stopped: str = ""
    is_stopped: str = STOPPED


def finding(find: Find, mark: Mark, hints: Hints = Hints()) -> str:  # noqa: B008 - frozen
    """Newest first, one row more than the limit. A position is compared as (created_ms, gid), which is unique."""
    conditions, hint = _conditions(find, mark), ""
    statuses = set(find.wanted.statuses)
    if statuses and statuses <= {"failed", "dead"}:
        conditions.append(hints.is_stopped)
        hint = hints.stopped
    elif not statuses:
        hint = hints.newest
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return (
        f"SELECT gid, created_ms, {READ} FROM avow_pledges {'' if find.gid else hint} {where} "
        f"ORDER BY created_ms DESC, gid DESC LIMIT {find.limit + 1}"
    )


def _conditions(find: Find, mark: Mark) -> list[str]:
    wanted, conditions = find.wanted, list[str]()
    if find.gid:
        conditions.append(f"gid = {mark(find.gid)}")
    if wanted.statuses:
        conditions.append(f"status IN ({', '.join(mark(status) for status in wanted.statuses)})")
    if wanted.created_from_ms is not None:
        conditions.append(f"created_ms >= {mark(wanted.created_from_ms)}")
    if wanted.created_to_ms is not None:
        conditions.append(f"created_ms <= {mark(wanted.created_to_ms)}")
    if find.position is not None:
        created_ms, gid = find.position
        at = mark(created_ms)
        before = f"created_ms < {mark(created_ms)} OR gid < {mark(gid)}"
        conditions.append(f"created_ms <= {at} AND ({before})")
    return conditions


class Marks:
    """Placeholders of one style, and their values in order."""

    def __init__(self, placeholder: str) -> None:
        self._placeholder = placeholder
        self.values: list[Any] = []

    def __call__(self, value: Any) -> str:
        self.values.append(value)
        return self._placeholder


def listed(names: Sequence[str]) -> str:
    return ", ".join(names)
