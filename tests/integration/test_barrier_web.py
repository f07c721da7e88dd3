"""The checkback's routes, in each framework, over HTTP as a coordinator asks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import django  # type: ignore[import-untyped]
import httpx
import pytest
import redis
import redis.asyncio
from django.conf import settings  # type: ignore[import-untyped]
from fastapi import FastAPI
from flask import Flask
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from tests.integration.barrier_databases import Database, new_gid
from tests.services import Server

from avow.barrier import redis as in_redis
from avow.barrier import sql
from avow.barrier import sqlalchemy as on_sqlalchemy
from avow.barrier.key import Question, Verdict, now_ms
from avow.barrier.sql import Barrier
from avow.barrier.web import django_checkback, django_path, flask_blueprint, starlette_route

PATH = "/avow/checkback"
ON_POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
Ask = Callable[..., tuple[int, dict[str, Any]]]

urlpatterns: list[Any] = []  # Django's, filled by the tests


def read(answer: Any) -> tuple[int, dict[str, Any]]:
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["cache-control"] == "no-store"
    body = answer.content if hasattr(answer, "content") else answer.data
    return answer.status_code, json.loads(body)


def query_of(gid: str, **more: str) -> dict[str, str]:
    return {"gid": gid, "trans_type": "msg", "branch_id": "00", "op": "msg", **more}


def ask_asgi(app: Any, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
    async def go() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            return await client.get(PATH, params=query)

    return read(asyncio.run(go()))


def in_starlette(checkback: Any) -> Ask:
    return lambda query: ask_asgi(Starlette(routes=[starlette_route(PATH, checkback)]), query)


def in_fastapi(checkback: Any) -> Ask:
    app = FastAPI()
    app.router.routes.append(starlette_route(PATH, checkback))
    return lambda query: ask_asgi(app, query)


def in_flask(checkback: Any) -> Ask:
    app = Flask("service")
    app.register_blueprint(flask_blueprint(PATH, checkback))
    return lambda query: read(app.test_client().get(PATH, query_string=query))


def in_django(checkback: Any) -> Ask:
    configure_django()
    from django.test import Client  # type: ignore[import-untyped]
    from django.urls import clear_url_caches  # type: ignore[import-untyped]

    urlpatterns[:] = [django_path(PATH.lstrip("/"), checkback)]
    clear_url_caches()
    return lambda query: read(Client().get(PATH, query))


def configure_django() -> None:
    if not settings.configured:
        databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "ATOMIC_REQUESTS": True}}
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DATABASES=databases, SECRET_KEY="of a test")
        django.setup()


FRAMEWORKS = pytest.mark.parametrize("framework", [in_starlette, in_fastapi, in_flask, in_django])


@ON_POSTGRESQL
@FRAMEWORKS
def test_each_verdict_has_its_status_and_its_text(database: Database, framework: Callable[[Any], Ask]) -> None:
    ask = framework(sql.checkback(database.connect))
    committed, open_one, holder = new_gid(), new_gid(), database.connect()
    with Barrier(committed).transaction(database.connect()):
        pass
    Barrier(open_one).insert(holder)
    assert ask(query_of(committed)) == (200, {"dtm_result": "SUCCESS"})
    assert ask(query_of(new_gid())) == (409, {"dtm_result": "FAILURE"})
    assert ask(query_of(open_one)) == (425, {"dtm_result": "ONGOING"})
    holder.commit()
    assert ask({"gid": open_one}) == (200, {"dtm_result": "SUCCESS"})
    assert ask(query_of(new_gid(), prepared_ms=str(now_ms()))) == (409, {"dtm_result": "FAILURE"})


@FRAMEWORKS
def test_an_error_is_not_a_verdict_and_its_text_is_logged_but_not_sent(
    framework: Callable[[Any], Ask], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(question: Question) -> Verdict:
        raise ValueError("it says FAILURE, SUCCESS and ONGOING")

    status, body = framework(fail)(query_of("FAILURE-gid"))
    assert (status, body) == (500, {"message": "no verdict: ValueError"})
    assert any(record.name == "avow.barrier" and record.exc_info for record in caplog.records)


@FRAMEWORKS
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"gid": ""},
        {"gid": "g" * 129},
        {"gid": "g", "op": "action"},
        {"gid": "g", "branch_id": "01"},
        {"gid": "g", "trans_type": "saga"},
        {"gid": "g", "prepared_ms": "yesterday"},
    ],
)
def test_a_request_that_is_not_a_checkback_gets_no_verdict(
    framework: Callable[[Any], Ask], query: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "avow.barrier")
    asked: list[Question] = []

    def checkback(question: Question) -> Verdict:
        asked.append(question)
        Barrier(question.gid)
        return Verdict.SUCCESS

    assert framework(checkback)(query) == (500, {"message": "no verdict: INVALID_REQUEST"})
    assert all(len(question.gid) > 128 for question in asked)


@FRAMEWORKS
def test_a_result_that_is_not_a_verdict_is_not_passed_on(framework: Callable[[Any], Ask]) -> None:
    assert framework(lambda _: "SUCCESS")(query_of("g")) == (500, {"message": "no verdict: INVALID_REQUEST"})
    assert framework(lambda _: None)(query_of("g")) == (500, {"message": "no verdict: INVALID_REQUEST"})


@pytest.mark.parametrize("framework", [in_flask, in_django])
def test_an_asyncio_checkback_in_a_sync_framework_is_not_a_verdict(framework: Callable[[Any], Ask]) -> None:
    async def checkback(question: Question) -> Verdict:
        return Verdict.SUCCESS

    assert framework(checkback)(query_of("g")) == (500, {"message": "no verdict: INVALID_REQUEST"})


@ON_POSTGRESQL
@FRAMEWORKS
def test_an_unreachable_database_is_not_a_verdict(database: Database, framework: Callable[[Any], Ask]) -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    assert framework(on_sqlalchemy.checkback(engine))(query_of(new_gid())) == (
        500,
        {"message": "no verdict: OperationalError"},
    )
    assert framework(sql.checkback(database.connect, table="no.table"))(query_of(new_gid()))[0] == 500


@ON_POSTGRESQL
def test_engines_and_redis_answer_through_the_same_route(database: Database, redis_server: Server) -> None:
    gid = new_gid()
    with Barrier(gid).transaction(database.connect()):
        pass
    engine, async_engine = create_engine(database.url("psycopg")), create_async_engine(database.url("asyncpg"))
    client = redis.Redis.from_url(redis_server.dsn)
    in_redis.Barrier(gid).insert(client, ("INCR", new_gid()))

    async def go() -> None:
        in_async = redis.asyncio.Redis.from_url(redis_server.dsn)
        checkbacks: list[Callable[[Question], Any]] = [
            on_sqlalchemy.checkback(engine),
            on_sqlalchemy.checkback(async_engine),
            in_redis.checkback(client),
            in_redis.checkback(in_async),
        ]
        for checkback in checkbacks:
            app = Starlette(routes=[starlette_route(PATH, checkback)])
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as asking:
                assert read(await asking.get(PATH, params=query_of(gid))) == (200, {"dtm_result": "SUCCESS"})
                assert read(await asking.get(PATH, params=query_of(new_gid())))[0] == 409
        await in_async.aclose()
        await async_engine.dispose()

    asyncio.run(go())
    client.close()
    engine.dispose()


def test_django_answers_on_its_own_connection_and_its_atomic_blocks_are_joined() -> None:
    """With ATOMIC_REQUESTS, so a tombstone would be lost with a request that fails later."""
    ask = in_django(django_checkback())
    from django.db import connection, transaction  # type: ignore[import-untyped]

    sql.create_table(connection)
    committed, failed, late = new_gid(), new_gid(), new_gid()
    with transaction.atomic():
        Barrier(committed).insert(connection)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        insert_and_fail(connection, failed)
    assert ask(query_of(committed)) == (200, {"dtm_result": "SUCCESS"})
    assert ask(query_of(failed)) == (409, {"dtm_result": "FAILURE"})
    assert ask(query_of(late)) == (409, {"dtm_result": "FAILURE"})
    with connection.cursor() as cursor:
        cursor.execute("select reason from barrier where gid = %s", [late])
        assert cursor.fetchone() == ("rollback",)
        with transaction.atomic():
            assert Barrier(committed, "01", "action").once(cursor)
    connection.close()


def insert_and_fail(connection: Any, gid: str) -> None:
    Barrier(gid).insert(connection)
    raise ZeroDivisionError
