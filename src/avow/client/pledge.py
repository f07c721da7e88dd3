"""Pledges: messages that are delivered if and only if a transaction of the caller commits.

    pledge = client.pledge().call("http://bank-b/trans-in", {"amount": 30}).publish("transfers", {"amount": 30})
    async with pledge.transaction(async_engine, checkback="http://bank-a/avow/checkback") as connection:
        await connection.execute(...)
    pledge.outcome

The order is prepare, transaction (barrier row and work, one commit), submit. Whatever fails on the way:

    prepare                 it raises, and nothing has happened here
    the work, or its commit the own barrier is asked: `rolled back` is a proof, because the question leaves a tombstone.
                            The pledge is then aborted behind the caller's back. If it says committed after all, the
                            commit's error was wrong and delivery goes on
    the barrier's answer    unknown. The coordinator asks the checkback until it knows
    submit                  committed, pending: the coordinator asks the checkback and delivers

`transaction` speaks with exceptions: an error of the work or of a commit that failed comes out as it is; one that left
the outcome open is errors.Unknown. `do_and_submit` and `do_and_submit_db` speak with values and raise only what prepare
raises. `pledge.outcome` is there in both. A pledge is for one transaction.

Aborts are not waited for: the coordinator would call the checkback of a service that may be busy waiting for it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from avow import errors
from avow.barrier.key import Question, Verdict
from avow.client.links import JSON
from avow.client.metadata import path_of
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
RESULT_S: Final = 30.0  # how long a coordinator may take on purpose, where its answer waits for a result
ABORT_S: Final = 10.0


class PledgeCalls(Draft):
    """What both faces share: the calls to the coordinator, and what follows from a commit or from an error."""

    def __init__(self, cluster: Cluster, gid: str | None, options: Options) -> None:
        super().__init__(gid, options)
        self._cluster = cluster
        self._checkback = ""
        self.outcome: Outcome | None = None

    async def prepare(self, checkback: str) -> None:
        """Make the coordinator remember it. Raises what it was refused with, or errors.Unknown; nothing was done."""
        if self._checkback:
            raise errors.InvalidRequest(f"pledge {self.gid} is prepared already; nothing was sent. Begin another")
        await self._send("prepare", self.request(checkback=checkback))
        self._checkback = checkback

    async def send_submit(self) -> PledgeAnswer:
        return await self._send("submit", self.request(checkback=self._checkback), wait=self._options.wait_result)

    async def abort(self) -> Outcome:
        """Ask the coordinator to end it. It asks the checkback first: a pledge whose transaction committed stays."""
        try:
            self.outcome = current_outcome(await self._send("abort", b"", wait=True))
        except errors.AlreadyDecided:
            self.outcome = await self.current()
        return self.outcome

    async def current(self) -> Outcome:
        """What the coordinator knows of it now. Raises UnknownPledge."""
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

    # ------------------------------------------------------------------------------------- what follows

    async def committed(self, *, result: Any = None) -> Committed:
        """Submit what is known to be committed. Never raises an AvowError: it is committed, whatever is said."""
        pending = CommittedPending(self.gid, "prepared", "it is not submitted yet", result=result)
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
        """After the work or its commit raised `error`, and the barrier said this, or could not be asked."""
        if verdict is Verdict.SUCCESS:
            return await self.committed()
        if verdict is Verdict.FAILURE:
            self.outcome = RolledBack(self.gid, error, str(error))
        else:
            said = "its transaction is still open" if verdict is Verdict.ONGOING else f"asking failed: {verdict}"
            self.outcome = OutcomeUnknown(self.gid, error, f"{error}; {said}")
        self.abandon()
        return self.outcome

    def interrupted(self) -> None:
        self.outcome = OutcomeUnknown(self.gid, reason="interrupted")
        self.abandon()

    def abandon(self) -> None:
        """Have the checkback asked soon, without waiting for what comes of it. On the client's loop."""
        if not self._cluster.closed:
            self._cluster.spawn(self._abort_quietly())

    async def _abort_quietly(self) -> None:
        with suppress(errors.AvowError):  # the checkback is asked in any case, only later
            await self._cluster.call(b"POST", path_of("pledges", self.gid, "abort"), wait_s=RESULT_S, timeout_s=ABORT_S)

    def settle(self, error: Exception, outcome: Outcome, *, worked: bool) -> None:
        """What `transaction` makes of a failure: returns if it committed after all, else raises.

        `worked`: the caller's block had ended, so the error is the commit's.
        """
        if outcome.committed and worked:
            return
        if outcome.committed:
            error.add_note(f"but the transaction of pledge {self.gid} had been committed, and it is delivered")
        elif outcome.committed is None and worked:
            raise errors.Unknown(
                f"the commit of pledge {self.gid} gave no clear answer, and its barrier could not be asked; it may or "
                "may not have happened. It is delivered if it did: the coordinator asks the checkback"
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
        """A transaction of SQLAlchemy's asyncio: gives the connection, or the session, to work with.

        `checkback` is the URL where the coordinator may ask what became of it. `ask`: asked after an error instead of
        the source; a `checkback(...)` of the barrier that the service routes too.
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
            self.settle(error, outcome, worked=worked)
        except BaseException:
            self.interrupted()
            raise
        else:
            await self.committed()

    async def do_and_submit_db(
        self, source: Any, work: Callable[[Any], Awaitable[Any]], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` gets what `transaction` gives. An exception of it rolls back and is in the outcome."""
        must_have_transactions(async_barrier(source, self.gid), source)

        async def within(barrier: Any) -> Any:
            async with barrier.transaction(source) as place:
                return await work(place)

        return await self.do_and_submit(source, within, checkback=checkback, ask=ask)

    async def do_and_submit(
        self, source: Any, work: Callable[[Any], Awaitable[Any]], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` gets the barrier of `source` and ties it to what it does: a script of Redis, a transaction of its own.

        Returned, it is committed. An exception: the barrier is asked whether it is.
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
        """Prepare, and put the barrier row into the transaction that is open there. Commit it, then `submit`.

        Refused (AlreadyDecided, AlreadyExists): roll back.
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
        """Of a plain message, which needs no prepare; or after the commit of the transaction it was joined to.

        A joined one asks the barrier first: called too early it is refused (InvalidRequest), and called after a
        rollback it says RolledBack and delivers nothing. May be repeated.
        """
        if self._joined is None:
            self.outcome = committed_outcome(await self.send_submit())
            return self.outcome
        verdict = await self._ask(partial(self._barrier.check_back, self._joined), ask)
        if isinstance(verdict, errors.InvalidRequest) or verdict is Verdict.ONGOING:
            raise too_early(self.gid, verdict)
        return await self.decided(errors.AlreadyDecided(f"the transaction of pledge {self.gid} is not there"), verdict)

    async def _ask(self, own: Callable[[], Awaitable[Verdict]], ask: Ask | None) -> Verdict | Exception:
        try:
            said = own() if ask is None else ask(self.question())
            return await said if inspect.isawaitable(said) else said
        except Exception as trouble:  # the edge to a driver: whatever it is, it is no verdict
            return trouble


def too_early(gid: str, cause: Verdict | Exception) -> errors.InvalidRequest:
    refusal = errors.InvalidRequest(
        f"the transaction that pledge {gid} was joined to is still open; nothing was submitted. Commit it first"
    )
    refusal.__cause__ = cause if isinstance(cause, Exception) else None
    return refusal
