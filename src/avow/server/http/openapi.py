"""The OpenAPI 3.1 document, generated from the table of routes and the types in `schemas`.

A parameter's bounds in the document are the bounds with which it is checked. The statuses of an operation follow from
its errors, and from whether it needs a token, has a body, or can be answered BUSY.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec.json import schema_components
from msgspec.structs import fields

from avow.errors import (
    AvowError,
    Busy,
    DiskFull,
    Forbidden,
    InvalidRequest,
    NotAuthenticated,
    Offline,
    TooLarge,
    TooMany,
    Unknown,
)
from avow.server.http.route import BATCH, JSON, Route
from avow.server.http.routes import ROUTES
from avow.server.http.schemas import ErrorAnswer

_REFERENCE: Final = "#/components/schemas/{name}"
_HTTP_ONLY: Final = {406: "none of the accepted types is available", 408: "the request arrived too slowly"}
_ERROR: Final = {"$ref": _REFERENCE.format(name=ErrorAnswer.__name__)}
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def document(*, version: str, routes: Sequence[Route] = ROUTES) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body, route.answer) if kind not in (None, str, Any)]
    _, schemas = schema_components([*types, ErrorAnswer], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Avow", "version": version, "description": "Queues that a quorum has stored."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route),
        "security": [] if route.right is None else [{"token": []}, {}],
    }
    if route.body is not None:
        operation["requestBody"] = {"required": route.body_needed, "content": _request_content(route)}
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for field in fields(route.parameters):
        (schema,), _ = schema_components([field.type], ref_template=_REFERENCE)
        in_path = "{" + field.name + "}" in route.path
        needed = in_path or field.required
        schema = _without_null(schema)
        if field.default not in (msgspec.NODEFAULT, None):
            schema = {**schema, "default": field.default}
        where = "path" if in_path else "query"
        found.append({"name": field.encode_name, "in": where, "required": needed, "schema": schema})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query leaves out a parameter instead of sending null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def _request_content(route: Route) -> dict[str, Any]:
    (schema,), _ = schema_components([route.body], ref_template=_REFERENCE)
    binary = {"type": "string", "format": "binary"}
    return {kind: {"schema": binary if kind == BATCH else schema} for kind in route.body_types}


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.statuses:
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if not route.upgrades:
            response["content"] = _answer_content(route)
        if route.headers:
            response["headers"] = {
                name: {"description": text, "schema": {"type": "integer"}} for name, text in route.headers
            }
        responses[str(status)] = response
    for status, text in sorted(_problems(route).items()):
        responses[str(status)] = {"description": text, "content": {JSON: {"schema": _ERROR}}}
    return responses


def _answer_content(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in route.answer_types:
        bare = kind.partition(";")[0]
        if route.answer is Any:
            content[bare] = {"schema": {"type": "object"}}
        elif route.answer is str:
            content[bare] = {"schema": {"type": "string"}}
        else:
            (schema,), _ = schema_components([route.answer], ref_template=_REFERENCE)
            content[bare] = {"schema": schema}
    return content


def _problems(route: Route) -> dict[int, str]:
    """Status -> the error codes with this status."""
    errors: set[type[AvowError]] = {InvalidRequest, Offline, *route.errors}
    if route.right is not None:
        errors |= {NotAuthenticated, Forbidden}
    if route.waits:
        errors |= {Busy, Unknown}
    if route.body is not None or route.method in _WRITES:
        errors |= {TooLarge, TooMany, DiskFull}
    found: dict[int, list[str]] = {}
    for error in errors:
        found.setdefault(error.http_status, []).append(error.code)
    problems = {status: ", ".join(sorted(codes)) for status, codes in found.items()}
    problems |= _HTTP_ONLY
    if route.body is not None:
        problems[415] = "the content type of the body is not supported"
    if route.raw:
        problems[409] = "NOT_COORDINATOR: these clients do not follow redirects"
    if route.upgrades:
        problems[426] = "the request did not ask for an upgrade"
    return problems | {431: "the request's head is too large", 500: "STORAGE_DAMAGED, ERROR"}
