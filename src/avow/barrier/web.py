"""The route of the checkback: a coordinator, Avow's or dtm's, sends a GET and gets a verdict or an error.

    GET /avow/checkback?gid=..&trans_type=msg&branch_id=00&op=msg[&prepared_ms=..]

    200 {"dtm_result": "SUCCESS"}     the transaction committed
    409 {"dtm_result": "FAILURE"}     it was rolled back, or never started
    425 {"dtm_result": "ONGOING"}     it is still open
    500 {"message": ...}              no verdict, for any kind of error: the coordinator asks again

    Starlette   Starlette(routes=[starlette_route("/avow/checkback", checkback(engine))])
    FastAPI     FastAPI(routes=[...]), or app.router.routes.append(...)
    Flask       app.register_blueprint(flask_blueprint("/avow/checkback", checkback(engine)))
    Django      urlpatterns = [django_path("avow/checkback", django_checkback())]

`checkback` is the one of avow.barrier.sql, .sqlalchemy, .redis or .mongo. For other frameworks there are
`answer(query, checkback)` and, for a known verdict, `verdict_response(verdict)`.

The text of an error is logged and not sent: dtm's server searches the whole body for its keywords, and an id may
contain one. Answers must not be cached.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from avow.barrier.key import LOCK_TIMEOUT_S, OWN_BRANCH, OWN_OP, Question, Verdict, read_prepared_ms
from avow.errors import AvowError, InvalidRequest

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
    from django.urls import URLPattern  # type: ignore[import-untyped]
    from flask import Blueprint
    from flask import Response as FlaskResponse
    from starlette.requests import Request
    from starlette.responses import Response as StarletteResponse
    from starlette.routing import Route

Checkback: TypeAlias = Callable[[Question], Verdict]
AsyncCheckback: TypeAlias = Callable[[Question], Awaitable[Verdict]]

HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json", "cache-control": "no-store"}
_STATUS: Final = {Verdict.SUCCESS: 200, Verdict.FAILURE: 409, Verdict.ONGOING: 425}
_log: Final = logging.getLogger("avow.barrier")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]


def verdict_response(verdict: Verdict | Exception) -> Answer:
    if isinstance(verdict, Verdict):
        return Answer(_STATUS[verdict], json.dumps({"dtm_result": verdict.value}).encode(), HEADERS)
    name = verdict.code if isinstance(verdict, AvowError) else type(verdict).__name__
    return Answer(500, json.dumps({"message": f"no verdict: {name}"}).encode(), HEADERS)


def question_of(query: Mapping[str, str]) -> Question:
    gid = query.get("gid")
    if not gid:
        raise InvalidRequest("the request of a checkback must have a gid; nothing was changed")
    expected = {"trans_type": "msg", "branch_id": OWN_BRANCH, "op": OWN_OP}
    others = {name: query.get(name) for name, usual in expected.items() if query.get(name) not in (None, "", usual)}
    if others:
        raise InvalidRequest(f"not a request of a pledge's checkback: {others}; nothing was changed")
    return Question(gid, read_prepared_ms(query))


def answer(query: Mapping[str, str], checkback: Checkback) -> Answer:
    try:
        verdict = checkback(question_of(query))
        if not isinstance(verdict, Verdict):
            raise _not_a_verdict(verdict)
        return verdict_response(verdict)
    except Exception as error:  # the request's boundary: no error may look like a verdict
        return _no_verdict(query, error)


async def answer_async(query: Mapping[str, str], checkback: Checkback | AsyncCheckback) -> Answer:
    """A blocking checkback runs in a thread."""
    from starlette.concurrency import run_in_threadpool

    try:
        verdict: Any = await run_in_threadpool(checkback, question_of(query))
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if not isinstance(verdict, Verdict):
            raise _not_a_verdict(verdict)
        return verdict_response(verdict)
    except Exception as error:
        return _no_verdict(query, error)


def _no_verdict(query: Mapping[str, str], error: Exception) -> Answer:
    _log.error("the checkback of pledge %r failed; the coordinator will ask again", query.get("gid"), exc_info=error)
    return verdict_response(error)


def _not_a_verdict(found: object) -> InvalidRequest:
    if inspect.iscoroutine(found):
        found.close()
        return InvalidRequest("an asyncio checkback needs an asynchronous route, such as Starlette's or FastAPI's")
    return InvalidRequest(f"the checkback returned {type(found).__name__} instead of a Verdict")


def starlette_route(path: str, checkback: Checkback | AsyncCheckback, *, name: str = "avow-checkback") -> Route:
    """A route for Starlette and FastAPI."""
    from starlette.responses import Response
    from starlette.routing import Route

    async def endpoint(request: Request) -> StarletteResponse:
        given = await answer_async(request.query_params, checkback)
        return Response(given.body, given.status, dict(given.headers))

    return Route(path, endpoint, methods=["GET"], name=name)


def flask_blueprint(path: str, checkback: Checkback, *, name: str = "avow-checkback") -> Blueprint:
    from flask import Blueprint, Response, request

    blueprint = Blueprint(name, __name__)

    @blueprint.get(path)
    def endpoint() -> FlaskResponse:
        given = answer(request.args, checkback)
        return Response(given.body, given.status, dict(given.headers))

    return blueprint


def django_path(path: str, checkback: Checkback, *, name: str = "avow-checkback") -> URLPattern:
    """Runs outside a transaction also with ATOMIC_REQUESTS, because a tombstone must be kept if the request fails."""
    from django.db.transaction import non_atomic_requests  # type: ignore[import-untyped]
    from django.http import HttpResponse
    from django.urls import path as url_path
    from django.views.decorators.http import require_GET  # type: ignore[import-untyped]

    def endpoint(request: HttpRequest) -> HttpResponse:
        given = answer(cast(Mapping[str, str], request.GET), checkback)
        return HttpResponse(given.body, status=given.status, headers=dict(given.headers))

    return url_path(path, non_atomic_requests(require_GET(endpoint)), name=name)


def django_checkback(using: str = "default", *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = "") -> Checkback:
    """A checkback on one of Django's own connections."""

    def ask(question: Question) -> Verdict:
        from django.db import connections  # type: ignore[import-untyped]

        from avow.barrier.sql import check_back

        return check_back(
            connections[using],
            question.gid,
            prepared_ms=question.prepared_ms,
            lock_timeout_s=lock_timeout_s,
            table=table,
        )

    return ask
