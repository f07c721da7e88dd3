"""Chooses the barrier for a caller's engine, session, connection, Redis client or MongoDB client.

The choice depends on the library that the object's class comes from, so no library is imported unless it is in use. A
barrier is created before its pledge is prepared: it records the time, and refuses to begin a day later.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from avow.errors import InvalidRequest

Library: TypeAlias = Literal["sqlalchemy", "redis", "pymongo", "db-api"]
_LIBRARIES: Final[dict[str, Library]] = {"sqlalchemy": "sqlalchemy", "redis": "redis", "pymongo": "pymongo"}


def library_of(source: Any) -> tuple[Library, bool]:
    """The library of an object, and whether the object is for asyncio."""
    for kind in type(source).__mro__:
        library = _LIBRARIES.get(kind.__module__.partition(".")[0])
        if library is not None:
            parts = kind.__module__.split(".")
            return library, "asyncio" in parts or "asynchronous" in parts
    return "db-api", hasattr(source, "__aenter__")


def blocking_barrier(source: Any, gid: str) -> Any:
    library, is_async = library_of(source)
    if is_async:
        raise InvalidRequest(
            f"{_name(source)} is for asyncio, but this client is blocking; nothing was sent. Use avow.connect, or a "
            "blocking source"
        )
    if library == "sqlalchemy":
        from avow.barrier.sqlalchemy import Barrier as SqlAlchemyBarrier

        return SqlAlchemyBarrier(gid)
    if library == "redis":
        from avow.barrier.redis import Barrier as RedisBarrier

        return RedisBarrier(gid)
    if library == "pymongo":
        from avow.barrier.mongo import Barrier as MongoBarrier

        return MongoBarrier(gid)
    from avow.barrier.sql import Barrier

    return Barrier(gid)


def async_barrier(source: Any, gid: str) -> Any:
    library, is_async = library_of(source)
    if is_async and library == "sqlalchemy":
        from avow.barrier.sqlalchemy import AsyncBarrier as SqlAlchemyBarrier

        return SqlAlchemyBarrier(gid)
    if is_async and library == "redis":
        from avow.barrier.redis import AsyncBarrier as RedisBarrier

        return RedisBarrier(gid)
    how = "is not supported by the barrier" if is_async else "would block the event loop"
    raise InvalidRequest(
        f"{_name(source)} {how}; nothing was sent. Use an AsyncEngine, AsyncConnection or AsyncSession of SQLAlchemy, "
        "a client of redis.asyncio, or avow.connect_blocking"
    )


def must_have_transactions(barrier: Any, source: Any) -> None:
    if not hasattr(barrier, "transaction"):
        raise InvalidRequest(
            f"{_name(source)} has no transactions that `transaction` could open; nothing was sent. Use do_and_submit"
        )


def _name(source: Any) -> str:
    return f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"
