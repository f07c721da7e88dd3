"""Pledges: messages that are delivered if and only if a transaction of the caller commits.

    pledge = client.pledge().call("http://bank-b/trans-in", {"amount": 30}).publish("transfers", {"amount": 30})
    async with pledge.transaction(async_engine, checkback="http://bank-a/avow/checkback") as connection:
        await connection.execute(...)
    pledge.outcome

The order is prepare, transaction (barrier row and work, one commit), submit. If a step fails:

    prepare                 it raises; no work was done
    the work, or its commit the local barrier is asked. `rolled back` is definite, because asking leaves a tombstone;
    the
                            pledge is then aborted in the background. If the barrier says committed, the commit's error
                            was wrong and delivery continues
    asking the barrier      the outcome is unknown. The coordinator asks the checkback until it knows
    submit                  committed, pending: the coordinator asks the checkback and delivers

`transaction` reports failures as exceptions: an error of the work or of a failed commit is raised unchanged; if the
outcome is open it raises errors.Unknown. `do_and_submit` and `do_and_submit_db` return outcomes and raise only what
prepare raises. Both set `pledge.outcome`. A pledge is for one transaction.

The client does not wait for aborts: the coordinator would call the checkback of a service that may be blocked by it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from avow import errors
from avow.barrier.key import Question, Verdict
from avow.client.descriptions import path_of
from avow.client.peer_connection import JSON
from avow.client.pledge_barriers import async_barrier, must_have_transactions
from avow.client.pledge_draft import Draft, Options
from avow.client.pledge_outcomes import (
    Committed,
    CommittedPending,
    Delivered,
    Outcome,
    OutcomeUnknown,
    PledgeAnswer,
    RolledBack,
    Stopped,
    committed_outcome,
    current_outcome,
    read_answer,
)

if TYPE_CHECKING:
    from avow.client.cluster import Cluster

__all__ = [
    "Committed",
    "CommittedPending",
    "Delivered",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "Pledge",
    "RolledBack",
    "Stopped",
]

Ask: TypeAlias = Callable[[Question], Verdict | Awaitable[Verdict]]
RESULT_S: Final = 30.0  # how long a coordinator may delay its answer to wait for a result
ABORT_S: Final = 10.0


class PledgeCalls(Draft):
    """Shared by the async and the blocking pledge: calls to the coordinator, and handling of commits and errors."""

    def __init__(self, cluster: Cluster, gid: str | None, options: Options) -> None:
        super().__init__(gid, options)
        self._cluster = cluster
        self._checkback = ""
        self.outcome: Outcome | None = None

    async def prepare(self, checkback: str) -> None:
        """Prepare the pledge at the coordinator. Raises its refusal, or errors.Unknown; no work was done then."""
        if self._checkback:
            raise errors.InvalidRequest(f"pledge {self.gid} is already prepared; nothing was sent. Begin another")
        await self._send("prepare", self.request(checkback=checkback))
        self._checkback = checkback

    async def send_submit(self) -> PledgeAnswer:
        return await self._send("submit", self.request(checkback=self._checkback), wait=self._options.wait_result)

    async def abort(self) -> Outcome:
        """Ask the coordinator to abort the pledge. It asks the checkback first and keeps a committed pledge."""
        try:
            self.outcome = current_outcome(await self._send("abort", b"", wait=True))
        except errors.AlreadyDecided:
            self.outcome = await self.current()
        return self.outcome

    async def current(self) -> Outcome:
        """The pledge's outcome as the coordinator knows it now. Raises UnknownPledge."""
        return current_outcome(read_answer((await self._cluster.call(b"GET", path_of("pledges", self.gid))).body))

    async def _send(self, what: str, body: bytes, *, wait: bool = False) -> PledgeAnswer:
        answer = await self._cluster.call(
            b"POST",
            path_of("pledges", self.gid, what),
            headers=JSON if body else b"",
            body=body,
            wait_s=RESULT_S if wait else 0.0,
        )
        return read_answer(answer.body)

    # ------------------------------------------------------------------------------------- outcomes

    async def committed(self, *, result: Any = None) -> Committed:
        """Submit a pledge whose transaction is committed. Never raises an AvowError, because it stays committed."""
        pending = CommittedPending(self.gid, "prepared", "not submitted yet", result=result)
        self.outcome = pending
        try:
            outcome = committed_outcome(await self.send_submit(), result=result)
        except errors.AlreadyDecided as refusal:
            outcome = Stopped(self.gid, str(refusal), result)
        except errors.AvowError as error:
            outcome = CommittedPending(self.gid, "prepared", str(error), result=result)
        self.outcome = outcome
        return outcome

    async def decided(self, error: Exception, verdict: Verdict | Exception) -> Outcome:
        """The outcome after the work or its commit raised `error`; `verdict` is the barrier's answer or its error."""
        if verdict is Verdict.SUCCESS:
            return await self.committed()
        if verdict is Verdict.FAILURE:
            self.outcome = RolledBack(self.gid, error, str(error))
        else:
            reason = "its transaction is still open" if verdict is Verdict.ONGOING else f"asking the barrier: {verdict}"
            self.outcome = OutcomeUnknown(self.gid, error, f"{error}; {reason}")
        self.abandon()
        return self.outcome

    def interrupted(self) -> None:
        self.outcome = OutcomeUnknown(self.gid, reason="interrupted")
        self.abandon()

    def abandon(self) -> None:
        """Ask the coordinator in the background to abort, so that it asks the checkback soon. On the client's loop."""
        if not self._cluster.closed:
            self._cluster.spawn(self._abort_quietly())

    async def _abort_quietly(self) -> None:
        with suppress(errors.AvowError):  # the coordinator asks the checkback in any case, only later
            await self._cluster.call(b"POST", path_of("pledges", self.gid, "abort"), wait_s=RESULT_S, timeout_s=ABORT_S)

    def report_failure(self, error: Exception, outcome: Outcome, *, worked: bool) -> None:
        """How `transaction` reports a failure: returns if the transaction committed anyway, otherwise raises.

        `worked`: the caller's block had ended, so the error is from the commit.
        """
        if outcome.committed and worked:
            return
        if outcome.committed:
            error.add_note(f"the transaction of pledge {self.gid} was committed nevertheless; the pledge is delivered")
        elif outcome.committed is None and worked:
            raise errors.Unknown(
                f"the commit for pledge {self.gid} failed ({error}) and its barrier could not be asked; the "
                "transaction may or may not have committed. If it did, the pledge is delivered: the coordinator asks "
                "the checkback"
            ) from error
        raise error

    def question(self) -> Question:
        return Question(self.gid)


class Pledge(PledgeCalls):
    """Of `avow.connect`. Used by one task."""

    _barrier: Any = None
    _joined: Any = None

    @asynccontextmanager
    async def transaction(self, source: Any, *, checkback: str, ask: Ask | None = None) -> AsyncIterator[Any]:
        """A transaction of SQLAlchemy's asyncio API: yields the connection or session to work with.

        `checkback` is the URL where the coordinator asks for the transaction's outcome. `ask` is called after an error
        instead of asking the source's barrier; pass the `checkback(...)` function that the service also routes.
        """
        must_have_transactions(barrier := async_barrier(source, self.gid), source)
        await self.prepare(checkback)
        worked = False
        try:
            async with barrier.transaction(source) as place:
                yield place
                worked = True
        except Exception as error:
            outcome = await self.decided(error, await self._ask(partial(barrier.check_back, source), ask))
            self.report_failure(error, outcome, worked=worked)
        except BaseException:
            self.interrupted()
            raise
        else:
            await self.committed()

    async def do_and_submit_db(
        self, source: Any, work: Callable[[Any], Awaitable[Any]], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` receives what `transaction` yields. If it raises, the transaction rolls back and the outcome has the
        exception."""
        must_have_transactions(async_barrier(source, self.gid), source)

        async def within(barrier: Any) -> Any:
            async with barrier.transaction(source) as place:
                return await work(place)

        return await self.do_and_submit(source, within, checkback=checkback, ask=ask)

    async def do_and_submit(
        self, source: Any, work: Callable[[Any], Awaitable[Any]], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` receives the barrier of `source` and includes it in its own transaction, or in a Redis script.

        If `work` returns, it has committed. If it raises, the barrier is asked whether it has committed.
        """
        barrier = async_barrier(source, self.gid)
        await self.prepare(checkback)
        try:
            result = await work(barrier)
        except Exception as error:
            return await self.decided(error, await self._ask(partial(barrier.check_back, source), ask))
        except BaseException:
            self.interrupted()
            raise
        return await self.committed(result=result)

    async def join(self, place: Any, *, checkback: str) -> None:
        """Prepare, and insert the barrier row into the open transaction of `place`. Commit that, then call `submit`.

        If this raises AlreadyDecided or AlreadyExists, roll back.
        """
        barrier = async_barrier(place, self.gid)
        await self.prepare(checkback)
        try:
            await barrier.insert(place)
        except BaseException:
            self.abandon()
            raise
        self._barrier, self._joined = barrier, place

    async def submit(self, *, ask: Ask | None = None) -> Outcome:
        """Submit the pledge: without a prepare as a plain message, or after the commit of the transaction it joined.

        After `join` the barrier is asked first: if the transaction is still open this raises InvalidRequest, and if it
        rolled back this returns RolledBack and nothing is delivered. May be repeated.
        """
        if self._joined is None:
            self.outcome = committed_outcome(await self.send_submit())
            return self.outcome
        verdict = await self._ask(partial(self._barrier.check_back, self._joined), ask)
        if isinstance(verdict, errors.InvalidRequest) or verdict is Verdict.ONGOING:
            raise too_early(self.gid, verdict)
        refusal = errors.AlreadyDecided(f"the transaction of pledge {self.gid} was not committed")
        return await self.decided(refusal, verdict)

    async def _ask(self, own: Callable[[], Awaitable[Verdict]], ask: Ask | None) -> Verdict | Exception:
        try:
            verdict = own() if ask is None else ask(self.question())
            return await verdict if inspect.isawaitable(verdict) else verdict
        except Exception as trouble:  # from a database driver: any error means that there is no verdict
            return trouble


def too_early(gid: str, cause: Verdict | Exception) -> errors.InvalidRequest:
    refusal = errors.InvalidRequest(
        f"the transaction that pledge {gid} joined is still open; nothing was submitted. Commit it first"
    )
    refusal.__cause__ = cause if isinstance(cause, Exception) else None
    return refusal
