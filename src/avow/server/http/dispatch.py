"""Finds the route of a request and parses its parameters.

The result depends only on the method and the URL, so it is cached: writing clients use the same few URLs all the time,
and a lookup costs a tenth of parsing. The cache is bounded and cleared when it is full. Each pledge has its own URL,
but the parts before and after its gid are constant: for such URLs the route is cached, and only the name is parsed.

Errors of the request itself are checked in this order, before anything is looked up or stored: unknown path (404),
method (405), parameters (400), token (401, 403), content type of the body (415), accepted types (406), body (400).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest
from avow.server.http.error_reply import Reply, reply_of
from avow.server.http.route import Route
from avow.server.http.routes import ROUTES

_CACHED_MAX: Final = 4_096
_CACHED_SIZE_BYTES_MAX: Final = 512  # longer URLs are parsed each time
_QUERY_FIELDS_MAX: Final = 32
_ANY: Final = "{}"  # stands for the last part of a path that ends with a name
_PLAIN: Final = re.compile(rb"[^%?#]+")  # a name without escapes
_AROUND: Final = re.compile(r"([^{]+/)\{(\w+)\}(/[^/{]+)")  # a path with one name, as its last but one part

_Shape: TypeAlias = tuple[int, str, str]


class Call(Struct, frozen=True, gc=False):
    """A route and the parameters of a request, which have the route's parameter type."""

    route: Route
    parameters: Any
    queue: str  # whose rights count; empty: no particular queue
    waits: bool


class Dispatcher:
    def __init__(self, routes: Sequence[Route] = ROUTES) -> None:
        self._patterns: dict[_Shape, list[tuple[re.Pattern[str], Route]]] = {}
        for route in routes:
            parts = route.path.split("/")
            last = _ANY if parts[-1].startswith("{") else parts[-1]
            self._patterns.setdefault(_shape(parts, last), []).append((re.compile(_pattern(route.path)), route))
        self._known: dict[tuple[bytes, bytes], Call] = {}
        self._around: dict[tuple[bytes, bytes, bytes], tuple[Call, str]] = {}  # (method, before a name, after it)

    def find(self, method: bytes, url: bytes) -> Call | Reply:
        known = self._known.get((method, url))
        if known is not None:
            return known
        behind = url.rfind(b"/")
        before = url.rfind(b"/", 0, behind) + 1
        around = self._around.get((method, url[:before], url[behind:]))
        if around is not None and _PLAIN.fullmatch(url, before, behind):
            like, name = around
            return _named(like, {name: url[before:behind].decode("latin-1")})
        found = self._find(method, url)
        if isinstance(found, Call) and len(url) <= _CACHED_SIZE_BYTES_MAX:
            self._cache(method, url, found)
        return found

    def _cache(self, method: bytes, url: bytes, found: Call) -> None:
        route = found.route
        if not route.raw and not route.queue:
            if len(self._known) >= _CACHED_MAX:
                self._known.clear()
            self._known[method, url] = found
            return
        fixed = _AROUND.fullmatch(route.path)
        if fixed is not None and fixed[2] != "queue":
            self._around[method, fixed[1].encode(), fixed[3].encode()] = (found, fixed[2])

    def _find(self, method: bytes, url: bytes) -> Call | Reply:
        path, query = _split(url)
        parts = path.split("/")
        near = self._patterns
        candidates = [*near.get(_shape(parts, parts[-1]), ()), *near.get(_shape(parts, _ANY), ())]
        matches = [(route, match) for pattern, route in candidates if (match := pattern.fullmatch(path))]
        if not matches:
            return reply_of(InvalidRequest(f"no such path: {path[:200]!r}; see /v1/openapi.json"), status=404)
        wanted = "GET" if method == b"HEAD" else method.decode("latin-1")
        for route, match in matches:
            if route.method == wanted:
                if route.raw:
                    return Call(route, route.parameters(), "", route.waits)
                return _parsed(route, match.groupdict(), query)
        return _wrong_method(method, [route.method for route, _ in matches])


def _shape(parts: list[str], last: str) -> _Shape:
    """A key that tells most paths apart: number of parts, the noun (never a name), the last part."""
    return len(parts), parts[2] if len(parts) > 2 else "", last


def _pattern(path: str) -> str:
    return re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))


def _split(url: bytes) -> tuple[str, str]:
    """Path and query. A proxy may send the whole URL; its host is ignored."""
    text = url.decode("latin-1")
    if text[:1] == "/" and "?" not in text and "#" not in text:
        return text, ""
    if text.startswith(("http://", "https://")):
        text = "/" + text.partition("://")[2].partition("/")[2]
    path, _, query = text.partition("#")[0].partition("?")
    return path, query


def _wrong_method(method: bytes, allowed: list[str]) -> Reply:
    names = sorted({*allowed, *(["HEAD"] if "GET" in allowed else [])})
    error = InvalidRequest(
        f"method {method.decode('latin-1')} is not allowed here; use {' or '.join(names)}. Nothing was done"
    )
    return reply_of(error, status=405, headers=f"allow: {', '.join(names)}\r\n".encode())


def _parsed(route: Route, in_path: dict[str, str], query: str) -> Call | Reply:
    try:
        values = {name: _unquoted(text) for name, text in in_path.items()}
        asked = parse_qsl(query, errors="strict", max_num_fields=_QUERY_FIELDS_MAX) if query else ()
    except ValueError as cause:
        return reply_of(InvalidRequest(f"the URL cannot be parsed: {cause}; nothing was done"))
    known = route.parameters.__struct_encode_fields__
    for name, text in asked:
        if name not in known or name in values:
            taken = ", ".join(field for field in known if field not in in_path) or "none"
            return reply_of(InvalidRequest(f"query parameter {name[:100]!r} is unknown or given twice; known: {taken}"))
        values[name] = text
    try:
        parameters = msgspec.convert(values, route.parameters, strict=False)
        return Call(route, parameters, getattr(parameters, "queue", route.queue), route.waits)
    except msgspec.ValidationError as cause:
        return _wrong_parameter(cause)


def _named(like: Call, values: dict[str, str]) -> Call | Reply:
    """The call `like`, with another name."""
    try:
        parameters = msgspec.convert(values, like.route.parameters, strict=False)
        return Call(like.route, parameters, like.queue, like.waits)
    except msgspec.ValidationError as cause:
        return _wrong_parameter(cause)


def _wrong_parameter(cause: msgspec.ValidationError) -> Reply:
    return reply_of(InvalidRequest(f"invalid parameter: {cause}; nothing was done"))


def _unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8") if "%" in text else text


# ---------------------------------------------------------------------- content types


def media_type(content_type: bytes) -> str:
    return content_type.partition(b";")[0].strip().lower().decode("latin-1")


def unsupported(route: Route, sent: str) -> Reply:
    error = InvalidRequest(
        f"content type {sent[:100] or '(none)'} is not supported here; send {_or(route.body_types)}. Nothing was done"
    )
    return reply_of(error, status=415, headers=f"accept: {', '.join(route.body_types)}\r\n".encode())


def not_acceptable(route: Route) -> Reply:
    return reply_of(InvalidRequest(f"this call answers with {_or(route.answer_types)} only"), status=406)


def negotiate(accept: bytes, offered: Sequence[str]) -> str | None:
    """The first offered type among those with the highest weight; None: none is accepted."""
    best, best_weight = None, 0.0
    ranges = [_media_range(item) for item in accept.decode("latin-1").split(",")[:_QUERY_FIELDS_MAX]]
    for offer in offered:
        bare = offer.partition(";")[0]
        family = bare.partition("/")[0] + "/*"
        for exactness in (bare, family, "*/*"):
            weights = [weight for name, weight in ranges if name == exactness]
            if weights:
                if max(weights) > best_weight:
                    best, best_weight = offer, max(weights)
                break
    return best


def _media_range(item: str) -> tuple[str, float]:
    name, *arguments = (part.strip().lower() for part in item.split(";"))
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "q":
            try:
                return name, min(1.0, max(0.0, float(value)))
            except ValueError:
                return name, 0.0
    return name, 1.0


def _or(types: Sequence[str]) -> str:
    return " or ".join(types)
