"""Pledges for code without an event loop: the same ones, on the client's thread; transactions on the caller's.

    pledge = client.pledge().call("http://bank-b/trans-in", {"amount": 30})
    with pledge.transaction(engine, checkback="http://bank-a/avow/checkback") as connection:
        connection.execute(...)
    pledge.outcome

A source is an Engine, a Connection or a Session of SQLAlchemy, or a DB-API connection: sqlite3, psycopg, PyMySQL, and
Django's. For `do_and_submit` also a client of redis-py or pymongo.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from avow import errors
from avow.barrier.key import Verdict
from avow.client.pledge import Ask, PledgeCalls, too_early
from avow.client.pledge_barriers import blocking_barrier, must_have_transactions
from avow.client.pledge_outcomes import Outcome, OutcomeUnknown, committed_outcome

if TYPE_CHECKING:
    from avow.client.loop_thread import LoopThread


class BlockingPledge:
    """Used by one thread."""

    def __init__(self, thread: LoopThread, calls: PledgeCalls) -> None:
        self._thread, self._calls = thread, calls
        self.gid = calls.gid
        self._barrier: Any = None
        self._joined: Any = None

    @property
    def outcome(self) -> Outcome | None:
        return self._calls.outcome

    def call(self, url: str, payload: Any = None, *, headers: Mapping[str, str] | None = None) -> Self:
        self._calls.call(url, payload, headers=headers)
        return self

    def publish(self, queue: str, payload: Any, *, key: bytes | str | None = None) -> Self:
        self._calls.publish(queue, payload, key=key)
        return self

    def topic(self, name: str, payload: Any = None) -> Self:
        self._calls.topic(name, payload)
        return self

    def prepare(self, checkback: str) -> None:
        self._thread.run(self._calls.prepare(checkback))

    def abort(self) -> Outcome:
        return self._thread.run(self._calls.abort())

    def current(self) -> Outcome:
        return self._thread.run(self._calls.current())

    @contextmanager
    def transaction(self, source: Any, *, checkback: str, ask: Ask | None = None) -> Iterator[Any]:
        """As `Pledge.transaction`: gives the Connection, the Session, or a cursor of the DB-API connection."""
        must_have_transactions(barrier := blocking_barrier(source, self.gid), source)
        self.prepare(checkback)
        worked = False
        try:
            with barrier.transaction(source) as place:
                yield place
                worked = True
        except Exception as error:
            outcome = self._decided(error, self._ask(partial(barrier.check_back, source), ask))
            self._calls.settle(error, outcome, worked=worked)
        except BaseException:
            self._interrupted()
            raise
        else:
            self._thread.run(self._calls.committed())

    def do_and_submit_db(
        self, source: Any, work: Callable[[Any], Any], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        must_have_transactions(blocking_barrier(source, self.gid), source)

        def within(barrier: Any) -> Any:
            with barrier.transaction(source) as place:
                return work(place)

        return self.do_and_submit(source, within, checkback=checkback, ask=ask)

    def do_and_submit(
        self, source: Any, work: Callable[[Any], Any], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        barrier = blocking_barrier(source, self.gid)
        self.prepare(checkback)
        try:
            result = work(barrier)
        except Exception as error:
            return self._decided(error, self._ask(partial(barrier.check_back, source), ask))
        except BaseException:
            self._interrupted()
            raise
        return self._thread.run(self._calls.committed(result=result))

    def join(self, place: Any, *, checkback: str) -> None:
        barrier = blocking_barrier(place, self.gid)
        self.prepare(checkback)
        try:
            barrier.insert(place)
        except BaseException:
            self._abandon()
            raise
        self._barrier, self._joined = barrier, place

    def submit(self, *, ask: Ask | None = None) -> Outcome:
        """As `Pledge.submit`."""
        if self._joined is None:
            return self._thread.run(self._submit())
        verdict = self._ask(partial(self._barrier.check_back, self._joined), ask)
        if isinstance(verdict, errors.InvalidRequest) or verdict is Verdict.ONGOING:
            raise too_early(self.gid, verdict)
        return self._decided(errors.AlreadyDecided(f"the transaction of pledge {self.gid} is not there"), verdict)

    async def _submit(self) -> Outcome:
        self._calls.outcome = committed_outcome(await self._calls.send_submit())
        return self._calls.outcome

    def _decided(self, error: Exception, verdict: Verdict | Exception) -> Outcome:
        return self._thread.run(self._calls.decided(error, verdict))

    def _interrupted(self) -> None:
        """Without waiting: whoever interrupts wants out."""
        self._calls.outcome = OutcomeUnknown(self.gid, reason="interrupted")
        self._abandon()

    def _abandon(self) -> None:
        if self._thread.running:
            self._thread.post((self._calls.abandon,))

    def _ask(self, own: Callable[[], Verdict], ask: Ask | None) -> Verdict | Exception:
        try:
            said = own() if ask is None else ask(self._calls.question())
        except Exception as trouble:  # the edge to a driver: whatever it is, it is no verdict
            return trouble
        if inspect.isawaitable(said):
            return errors.InvalidRequest("`ask` is for asyncio, and this client is not")
        return said
