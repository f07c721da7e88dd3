"""Removing old rows without turning committed into rolled back.

A pledge may stay prepared for as long as its coordinator, or the way to it, is down. If its row `msg` is removed
meanwhile, the checkback that comes at last finds nothing, and takes a committed transaction for one that never started.
No horizon is long enough to exclude that. So a clean-up leaves a proof behind: one row, the *mark*, that says up to
which time rows have been removed. It is committed before the first row goes, and only ever rises.

    a checkback finds no row, and            then
    nothing was ever cleaned up              it never started: FAILURE
    it was prepared after the mark           it never started: FAILURE
    it was prepared before, or who knows     no verdict (TRIMMED): a person decides; the coordinator keeps asking

When it was prepared is told by the coordinator (`prepared_ms`). dtm's server does not tell: with it, clean nothing up,
or have such pledges decided by hand. The same mark guards `once` in branch handlers where `prepared_ms` is known.

Rows without create_time (PostgreSQL, written by dtm's own clients) are never removed.
"""

from __future__ import annotations

from typing import Final

from avow.barrier.dialects import CLEANED_OP
from avow.barrier.key import HORIZON_MIN_S, MARGIN_S, Key, is_surely_kept
from avow.barrier.session import Session, text
from avow.errors import Busy, InvalidRequest

ROWS_MAX: Final = 100_000  # for one call
_BATCH: Final = 500
_WAIT_S: Final = 5.0
_BUSY: Final = "others hold the database's locks; what was removed so far stays removed. Call again"
_MARK: Final = Key("avow-clean-up", "00", CLEANED_OP, trans_type=CLEANED_OP)


def clean_up_rows(session: Session, *, older_than_s: float, rows_max: int = ROWS_MAX) -> int:
    """In transactions of its own. How many were removed; as many as `rows_max`: call again."""
    if not older_than_s >= HORIZON_MIN_S:  # nor NaN
        raise InvalidRequest(
            f"barrier rows are proofs and must be kept for {HORIZON_MIN_S} s or longer, not {older_than_s} s; nothing "
            "was removed"
        )
    before_s = _raise_mark(session, older_than_s=older_than_s)
    removed = 0
    while removed < rows_max:
        count = _remove(session, before_s=before_s, rows=min(_BATCH, rows_max - removed))
        if not count:
            break
        removed += count
    return removed


def _raise_mark(session: Session, *, older_than_s: float) -> int:
    _begin(session)
    try:
        now_s = int(session.execute(session.statements.clock).rows[0][0])
        before_s = now_s - int(older_than_s)
        session.execute(session.statements.raise_mark, _MARK.columns(f"{before_s:020d}"))
        _commit(session)
        return before_s
    finally:
        session.rollback()


def _remove(session: Session, *, before_s: int, rows: int) -> int:
    _begin(session)
    try:
        found = session.execute(session.statements.find_old, {"before": float(before_s), "rows": rows}).rows
        if found:
            session.execute(session.statements.delete([int(row[0]) for row in found]))
        _commit(session)
        return len(found)
    finally:
        session.rollback()


def is_maybe_cleaned(session: Session, prepared_ms: int | None, *, joined: bool = False) -> bool:
    """Whether a row of a pledge prepared then may have been removed. Asked after the row was missed, never before.

    `joined`: in a transaction of the caller, whose snapshot may be older than the mark.
    """
    if is_surely_kept(prepared_ms):
        return False
    read = session.statements.read_joined if joined else session.statements.read
    rows = session.execute(read, _MARK.columns("")).rows
    if not rows:
        return False
    cleaned_to_s = int(text(rows[0][-1]))
    return prepared_ms is None or prepared_ms < (cleaned_to_s + MARGIN_S) * 1000


def _begin(session: Session) -> None:
    if session.begin(wait_s=_WAIT_S, write=True):
        raise Busy(_BUSY)


def _commit(session: Session) -> None:
    if session.commit():
        raise Busy(_BUSY)
