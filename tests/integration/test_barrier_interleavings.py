"""Every order of events between a pledge's transaction and its checkbacks, on every database.

Two grains. Coarse: whole checkbacks before and after each step of the transaction, in all combinations, against a model
of a few lines. Fine: the steps of the transaction between the single statements of one checkback, in all combinations.
In the end the verdict is final, and says committed if and only if the work is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import pytest
from tests.integration.barrier_databases import KINDS, Database, new_gid

from avow.barrier import sql_rules
from avow.barrier.db_connection import DbApiSession, Outcome
from avow.barrier.dialects import Trouble
from avow.barrier.key import Call, Verdict
from avow.barrier.sql import Barrier, check_back
from avow.errors import Refused

SHORT_S = 0.02
STEPS = ("begin", "insert", "work", "end")


pytestmark = pytest.mark.parametrize("kind", KINDS)


class Local:
    """A pledge's transaction, step by step. `ended`: how it was; a step that fails rolls it back."""

    def __init__(self, database: Database, connection: Any, gid: str, *, commits: bool) -> None:
        self._database, self._connection, self._gid, self._commits = database, connection, gid, commits
        self._barrier = Barrier(gid)
        self.open = self.inserted = False
        self.ended = ""

    def step(self, name: str) -> None:
        if self.ended:
            return
        try:
            getattr(self, f"_{name}")()
        except (Refused, self._connection.Error):
            self._connection.rollback()
            self.open, self.ended = False, "rolled back"

    def _begin(self) -> None:
        if self._database.dialect == "sqlite":
            self._connection.execute("begin")
        else:
            self._connection.cursor().execute("select 1")
        self.open = True

    def _insert(self) -> None:
        self._barrier.insert(self._connection)
        self.inserted = True

    def _work(self) -> None:
        self._database.work(self._connection, self._gid)

    def _end(self) -> None:
        if self._commits:
            self._connection.commit()
            self.ended = "committed"
        else:
            self._connection.rollback()
            self.ended = "rolled back"
        self.open = False


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_checkback_at_any_step_of_the_transaction_agrees_with_the_model(database: Database, *, commits: bool) -> None:
    own, asking = database.connect(wait_s=0.2), database.connect()
    for asked in every_subset(range(len(STEPS) + 1)):
        gid = new_gid()
        local, buried = Local(database, own, gid, commits=commits), False
        for number, name in enumerate((*STEPS, "")):
            if number in asked:
                verdict = check_back(asking, gid, lock_timeout_s=SHORT_S)
                assert verdict == expected(local, buried=buried), (asked, number)
                buried = buried or verdict is Verdict.FAILURE
            if name:
                local.step(name)
        last = check_back(asking, gid)
        assert last == (Verdict.SUCCESS if local.ended == "committed" else Verdict.FAILURE), asked
        assert database.worked(gid) == (last is Verdict.SUCCESS), asked
        assert local.ended == ("committed" if commits and not buried else "rolled back"), asked


def expected(local: Local, *, buried: bool) -> Verdict:
    if local.ended == "committed":
        return Verdict.SUCCESS
    if local.open and local.inserted and not buried:
        return Verdict.ONGOING
    return Verdict.FAILURE


def every_subset(of: Iterable[int]) -> Iterator[tuple[int, ...]]:
    members = tuple(of)
    for size in range(len(members) + 1):
        yield from combinations(members, size)


class SteppedSession(DbApiSession):
    """Calls `before` ahead of every statement."""

    def __init__(self, connection: Any, before: Callable[[], None]) -> None:
        super().__init__(connection)
        self._before = before

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        self._before()
        return super().execute(sql, parameters, expected=expected)


def test_a_transaction_interleaved_with_a_checkback_has_one_outcome(database: Database) -> None:
    """`slots`: before which of the checkback's statements the insert (with the work) and the end happen."""
    own, asking = database.connect(wait_s=0.0), database.connect()
    statements = len(run_checkback(database, own, asking, slots=(99, 99), commits=True).verdicts_at)
    assert statements >= 3
    for slots, commits in product(combinations_with_replacement(range(statements + 2), 2), (True, False)):
        run = run_checkback(database, own, asking, slots=slots, commits=commits)
        final = check_back(asking, run.gid)
        assert final is not Verdict.ONGOING
        assert run.verdict in (final, Verdict.ONGOING), (slots, commits)
        assert (final is Verdict.SUCCESS) == (run.local.ended == "committed") == (database.worked(run.gid) == 1), slots


class Run:
    def __init__(self, gid: str, local: Local) -> None:
        self.gid, self.local = gid, local
        self.verdicts_at: list[int] = []
        self.verdict = Verdict.ONGOING


def run_checkback(database: Database, own: Any, asking: Any, *, slots: tuple[int, int], commits: bool) -> Run:
    gid = new_gid()
    run = Run(gid, Local(database, own, gid, commits=commits))

    def before() -> None:
        at = len(run.verdicts_at)
        run.verdicts_at.append(at)
        take(run.local, at, slots)

    session = SteppedSession(asking, before)
    with sql_rules.short_waits(session, SHORT_S):
        run.verdict = sql_rules.check_back(sql_rules.Checkback(session, Call(gid), lock_timeout_s=SHORT_S))
    for at in range(len(run.verdicts_at), len(run.verdicts_at) + 100):
        take(run.local, at, slots)
    return run


def take(local: Local, at: int, slots: tuple[int, int]) -> None:
    if at == slots[0]:
        for name in STEPS[:-1]:
            local.step(name)
    if at == slots[1]:
        local.step("end")
