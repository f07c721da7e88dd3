"""Turns an error into an HTTP answer.

All errors of requests come here: those raised while a request is parsed or checked, refusals from a lane, and missing
answers. All get the same JSON shape, see docs/reference/http-api.md. The class in `avow.errors` with the same code
gives the status, `definite` and `retriable`.

A lane answers with a code and numbers only; `node.answers` makes a message of them. Statuses that only HTTP has (405,
406, 415, ...) are passed as an argument and replace the error's own.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from msgspec.json import Encoder

from avow.errors import BY_CODE, AvowError, Busy, NotAuthenticated, NotCoordinator, Offline, Unknown
from avow.node.answers import NO_ANSWER, Answer, Done, Refusal, sentence_of

JSON: Final = b"application/json"

_encoder: Final = Encoder()


class Reply(Struct, frozen=True, gc=False):
    """`headers` are complete lines, each with its CRLF."""

    status: int
    body: bytes
    headers: bytes = b""
    content_type: bytes = JSON


_HEADERS: Final[dict[type[AvowError], bytes]] = {
    Offline: b"retry-after: 1\r\n",
    Busy: b"retry-after: 1\r\n",
    NotAuthenticated: b'www-authenticate: Bearer realm="avow"\r\n',
}


def reply_of(
    error: AvowError, *, status: int = 0, headers: bytes = b"", details: dict[str, Any] | None = None
) -> Reply:
    """`status` replaces the error's own, for statuses that only HTTP has."""
    kind = type(error)
    facts = {**error.details(), **(details or {})}
    return Reply(status or kind.http_status, _body(kind, str(error), facts), headers + _HEADERS.get(kind, b""))


def reply_of_answer(answer: Answer, *, details: dict[str, Any] | None = None, partly: bool = False) -> Reply:
    """For an answer of a lane that is not Done. Anything but a refusal is UNKNOWN. `partly`: other lanes are done, so
    the refusal is not definite for the request."""
    assert not isinstance(answer, Done), "Done is not an error"
    if not isinstance(answer, Refusal):
        return Reply(Unknown.http_status, _body(Unknown, NO_ANSWER, details or {}))
    kind = BY_CODE.get(answer.code, AvowError)
    message = sentence_of(answer)
    facts = dict(details or {})
    if answer.cursor or answer.code == "NOT_EQUAL":
        facts["cursor"] = answer.cursor
    if answer.code not in BY_CODE:
        facts["answered"] = answer.code
    if partly:
        message = f"one lane refused its part of the request, and the lanes that the answer lists did theirs. {message}"
    return Reply(kind.http_status, _body(kind, message, facts, partly=partly), _HEADERS.get(kind, b""))


def elsewhere(error: NotCoordinator, target: str) -> Reply:
    """A redirect of the request to the peer that can answer it. Without an address of that peer it is OFFLINE."""
    if not error.api:
        return reply_of(Offline(str(error)), details=error.details())
    address = error.api.rstrip("/").splitlines()[0]  # announced by another peer: it must not add header lines
    location = f"location: {address}{target}\r\n".encode("latin-1", "replace")
    return reply_of(error, headers=location)


def _body(kind: type[AvowError], message: str, details: dict[str, Any], *, partly: bool = False) -> bytes:
    definite = kind.definite and not partly
    shape = {"code": kind.code, "message": message, "definite": definite, "retriable": kind.retriable}
    return _encoder.encode({"error": {**details, **shape}})
