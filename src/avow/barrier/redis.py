"""The barrier on Redis, with redis-py, blocking and asyncio.

barrier = Barrier("{stock-7}-" + order)
barrier.check_adjust(client, "{stock-7}", -1)        DONE, DUPLICATE (done before: continue), SHORT (abort)
barrier.insert(client, ("DECR", key), ("SADD", buyers, user))     any commands, as the pledge's own work
check_back(client, gid)                              in the handler of the checkback

barrier = Barrier.from_query(request.args)           in the handler of a branch
barrier.once(client, ("INCR", key))                  False: done before
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, overload

from avow.barrier import redis_scripts as scripts
from avow.barrier.key import OWN_BRANCH, OWN_OP, Call, Key, Question, Verdict
from avow.barrier.redis_scripts import Adjusted
from avow.errors import NotInstalled

try:
    import redis
    import redis.asyncio
except ImportError as cause:
    raise NotInstalled("the barrier in Redis", extra="redis") from cause

Client: TypeAlias = "redis.Redis | redis.RedisCluster"
AsyncClient: TypeAlias = "redis.asyncio.Redis | redis.asyncio.RedisCluster"
Command: TypeAlias = Sequence[Any]


class RedisCall(Call):
    """`expire_s`: None: the key never expires. Transaction and checkback of a service must use the same value."""

    def __init__(
        self,
        gid: str,
        branch_id: str = OWN_BRANCH,
        op: str = OWN_OP,
        *,
        trans_type: str = "msg",
        prepared_ms: int | None = None,
        expire_s: int | None = None,
    ) -> None:
        super().__init__(gid, branch_id, op, trans_type=trans_type, prepared_ms=prepared_ms)
        self.expire_s = expire_s

    def _key(self) -> Key:
        return self.key_to_commit() if self.op == OWN_OP else self.next_key()

    def _adjust(self, key: Key, name: str, amount: int) -> tuple[str, list[str], list[Any]]:
        arguments = scripts.adjust_arguments(key, amount=amount, expire_s=self.expire_s)
        return scripts.CHECK_ADJUST, [scripts.name_of(key), name], arguments

    def _run(self, key: Key, commands: Sequence[Command], keys: Sequence[str]) -> tuple[str, list[str], list[Any]]:
        names = [scripts.name_of(key), *(keys or [str(command[1]) for command in commands if len(command) > 1])]
        return scripts.RUN, names, scripts.run_arguments(key, commands, expire_s=self.expire_s)

    def _check_back(self, key: Key) -> tuple[str, list[str], list[Any]]:
        arguments = scripts.check_back_arguments(prepared_ms=self.prepared_ms, expire_s=self.expire_s)
        return scripts.CHECK_BACK, [scripts.name_of(key)], arguments


class Barrier(RedisCall):
    def check_adjust(self, client: Client, name: str, amount: int) -> Adjusted:
        """Add to the number at `name`, unless it would become negative. For a pledge's own work and for branches."""
        key = self._key()
        return scripts.read_adjusted(key, _call(client, *self._adjust(key, name, amount)))

    def insert(self, client: Client, *commands: Command, keys: Sequence[str] = ()) -> bool:
        """The pledge's own work. False: it was done before, possibly by this call, if the client library retried it.

        `keys`: all keys of the commands, if they are not the first word after each command's name. Put commands that
        can fail because of a type first: if a later command fails, the effects of earlier ones remain.
        """
        key = self.key_to_commit()
        return not scripts.was_done(key, _call(client, *self._run(key, commands, keys)))

    def once(self, client: Client, *commands: Command, keys: Sequence[str] = ()) -> bool:
        """A branch's work. False: an earlier delivery has done it."""
        key = self.next_key()
        return not scripts.was_done(key, _call(client, *self._run(key, commands, keys)))

    def check_back(self, client: Client) -> Verdict:
        key = self.own_key()
        return scripts.read_verdict(key, _call(client, *self._check_back(key)))


class AsyncBarrier(RedisCall):
    """As Barrier, on redis.asyncio."""

    async def check_adjust(self, client: AsyncClient, name: str, amount: int) -> Adjusted:
        key = self._key()
        return scripts.read_adjusted(key, await _call_async(client, *self._adjust(key, name, amount)))

    async def insert(self, client: AsyncClient, *commands: Command, keys: Sequence[str] = ()) -> bool:
        key = self.key_to_commit()
        return not scripts.was_done(key, await _call_async(client, *self._run(key, commands, keys)))

    async def once(self, client: AsyncClient, *commands: Command, keys: Sequence[str] = ()) -> bool:
        key = self.next_key()
        return not scripts.was_done(key, await _call_async(client, *self._run(key, commands, keys)))

    async def check_back(self, client: AsyncClient) -> Verdict:
        key = self.own_key()
        return scripts.read_verdict(key, await _call_async(client, *self._check_back(key)))


def _call(client: Any, script: str, keys: list[str], arguments: list[Any]) -> object:
    """Calls the script by its hash; redis-py loads it if the server does not have it."""
    return client.register_script(script)(keys=keys, args=arguments)


async def _call_async(client: Any, script: str, keys: list[str], arguments: list[Any]) -> object:
    return await client.register_script(script)(keys=keys, args=arguments)


def check_back(client: Client, gid: str, *, prepared_ms: int | None = None, expire_s: int | None = None) -> Verdict:
    """The outcome of the pledge's work in Redis."""
    return Barrier(gid, prepared_ms=prepared_ms, expire_s=expire_s).check_back(client)


async def check_back_async(
    client: AsyncClient, gid: str, *, prepared_ms: int | None = None, expire_s: int | None = None
) -> Verdict:
    return await AsyncBarrier(gid, prepared_ms=prepared_ms, expire_s=expire_s).check_back(client)


@overload
def checkback(client: Client, *, expire_s: int | None = None) -> Callable[[Question], Verdict]: ...


@overload
def checkback(client: AsyncClient, *, expire_s: int | None = None) -> Callable[[Question], Awaitable[Verdict]]: ...


def checkback(client: Client | AsyncClient, *, expire_s: int | None = None) -> Callable[[Question], Any]:
    """For the routes in avow.barrier.web; with an asyncio client, for asynchronous ones."""

    def answer(question: Question) -> Any:
        if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            return check_back_async(client, question.gid, prepared_ms=question.prepared_ms, expire_s=expire_s)
        return check_back(client, question.gid, prepared_ms=question.prepared_ms, expire_s=expire_s)

    return answer
