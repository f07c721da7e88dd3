"""One connection to Redis: pipelines, the meaning of its errors, and reconnection.

redis-py's client resends a command when the connection is lost; its lower-level connections do not. This module uses
the connections, because the caller must decide about commands without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from avow import limits
from avow.errors import AvowError, Busy, DiskFull, InvalidRequest, NotInstalled, Offline, Refused
from avow.pledge.stores import redis_scripts as scripts

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, OutOfMemoryError
    from redis.exceptions import ReadOnlyError as ReadOnly
    from redis.exceptions import ResponseError as Refusal
    from redis.retry import Retry
except ImportError as cause:
    raise NotInstalled("the Redis store", extra="redis") from cause

__all__ = ["LOST", "Command", "Connecting", "Discarded", "ReadOnly", "Refusal", "error_text", "refusal"]

Command: TypeAlias = tuple[bytes | int | str, ...]

LOST: Final = (redis.RedisError, OSError)
_NOT_NOW: Final = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")


class Discarded(Exception):
    """A command of a transaction was refused, with `refusal`, before any was executed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def error_text(error: BaseException) -> str:
    return " ".join(str(error).split())[: limits.PLEDGE_ERROR_CHARS_MAX]


def refusal(error: Refusal) -> AvowError:
    """For a command that the server refused to execute."""
    text = f"Redis refused the command ({error_text(error)}); nothing was changed"
    if isinstance(error, OutOfMemoryError):
        return DiskFull(f"{text}. Give it more memory, then try again")
    if isinstance(error, ReadOnly) or str(error).startswith(_NOT_NOW):
        return Offline(f"{text}. Try again")
    if str(error).startswith("BUSY"):
        return Busy(f"{text}. Try again")
    return Refused(text)


class Connecting:
    """One connection and its pipelines. Connects when needed, and reconnects after a loss."""

    def __init__(self, url: str) -> None:
        try:
            self._pool = redis.ConnectionPool.from_url(
                url,
                socket_timeout=limits.STORE_ANSWER_TIMEOUT_S,
                socket_connect_timeout=limits.STORE_CONNECT_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise InvalidRequest(f"the URL of a Redis store must be like redis://host:port/0: {error}") from error
        self._connection: Any = None
        self.connects = 0

    def connect(self) -> None:
        """Raises Offline. A connection that was closed while idle is replaced. A new one loads the scripts."""
        try:
            if self._connection is not None and self._hung_up():
                self.drop()
            if self._connection is None:
                connection: Any = self._pool.make_connection()
                connection.connect()
                self._connection = connection
                self.connects += 1
                self._load_scripts()
        except LOST as error:
            self.drop()
            raise Offline(f"cannot connect to Redis ({error_text(error)}); nothing was changed") from error

    def _hung_up(self) -> bool:
        """An idle connection gets no data, so if it is readable the server has closed it."""
        try:
            return bool(self._connection.can_read(timeout=0))
        except LOST:
            return True

    def _load_scripts(self) -> None:
        for answer in self._exchange([(b"SCRIPT", b"LOAD", script.text) for script in scripts.ALL]):
            if isinstance(answer, Refusal):
                raise answer

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """An answer for each command, which may be a Refusal. Raises one of LOST if the connection is lost.

        If the server has lost the scripts (SCRIPT FLUSH, a fail-over) they are loaded again, and the commands that it
        refused for that reason are repeated."""
        return self._with_scripts(self._exchange, commands)

    def send_together(self, commands: Sequence[Command], *, wait: Command | None = None) -> list[Any]:
        """As one transaction, so that Redis executes and syncs them together even if they arrive in pieces.

        `wait` is sent after them; its answer is the last. Raises Discarded if Redis refused one of them."""
        return self._with_scripts(partial(self._transact, wait=wait), commands)

    def _with_scripts(
        self, perform: Callable[[Sequence[Command]], list[Any]], commands: Sequence[Command]
    ) -> list[Any]:
        answers = perform(commands)
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if not unknown:
            return answers
        self._load_scripts()
        again = perform([commands[n] for n in unknown])
        for n, answer in zip(unknown, again, strict=False):
            answers[n] = answer
        return answers[: len(commands)] + again[len(unknown) :]

    def _transact(self, commands: Sequence[Command], *, wait: Command | None) -> list[Any]:
        behind = [] if wait is None else [wait]
        if len(commands) == 1:
            return self._exchange([*commands, *behind])
        answers = self._exchange([(b"MULTI",), *commands, (b"EXEC",), *behind])
        done = answers[len(commands) + 1]
        if isinstance(done, Refusal):
            raise Discarded(next((answer for answer in answers if isinstance(answer, Refusal)), done))
        return [*done, *answers[len(commands) + 2 :]]

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._connection
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [self._answer(connection) for _ in commands]

    def _answer(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except Refusal as error:
            return error

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
