"""Removes old rows, without turning committed transactions into rolled-back ones.

A pledge may stay prepared for as long as its coordinator, or the network, is down. If its row `msg` is removed
meanwhile, a later checkback finds no row, and a committed transaction looks like one that never started. No retention
time is long enough to exclude that. So a clean-up leaves one row, the *mark*, with the time up to which rows were
removed. It is committed before the first row is removed, and it only grows.

    a checkback finds no row, and       then
    there was no clean-up               the transaction never started: FAILURE
    it was prepared after the mark      the transaction never started: FAILURE
    it was prepared before, or unknown  no verdict (TRIMMED): an operator decides; the coordinator keeps asking

The coordinator sends the time of prepare (`prepared_ms`). dtm's server does not: with it, do not clean up, or decide
such pledges by hand. The same mark protects `once` in branch handlers if `prepared_ms` is known.

Rows without create_time (PostgreSQL, written by dtm's own clients) are never removed.
"""

from __future__ import annotations

from typing import Final

from avow.barrier.db_connection import Session, text
from avow.barrier.dialects import CLEANED_OP
from avow.barrier.key import HORIZON_MIN_S, MARGIN_S, Key, is_surely_kept
from avow.errors import Busy, InvalidRequest

ROWS_MAX: Final = 100_000  # per call
_BATCH: Final = 500
_WAIT_S: Final = 5.0
_BUSY: Final = "other transactions hold locks; rows removed so far stay removed. Call again"
_MARK: Final = Key("avow-clean-up", "00", CLEANED_OP, trans_type=CLEANED_OP)


def clean_up_rows(session: Session, *, older_than_s: float, rows_max: int = ROWS_MAX) -> int:
    """Runs its own transactions. Returns the number of removed rows; if it is `rows_max`, call again."""
    if not older_than_s >= HORIZON_MIN_S:  # nor NaN
        raise InvalidRequest(
            f"older_than_s is {older_than_s}, but barrier rows must be kept for at least {HORIZON_MIN_S} s; nothing "
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
    """Whether the row of a pledge prepared then may have been removed. Call it after the row was not found, not before.

    `joined`: within a transaction of the caller, whose snapshot may be older than the mark.
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
