"""From an error to an HTTP answer, in one place.

Everything that goes wrong between a client and this peer ends here: errors raised while a request is read or checked,
refusals that a lane answered, answers that did not come. All get the one JSON shape of docs/reference/http-api.md, and
the class in `avow.errors` with the same code decides status, `definite` and `retriable`.

A lane answers with a code and numbers only (`peer.answers.Refusal`); the sentence a person reads is added here. HTTP
has statuses that are no error of Avow's (405, 406, 415, ...): they are passed beside the error and replace its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.json import Encoder

from avow.errors import AvowError, Busy, NotAuthenticated, NotCoordinator, Offline, Unknown
from avow.peer.answers import Answer, Done, Refusal
from avow.wire.failures import errors_from

JSON: Final = b"application/json"

_encoder: Final = Encoder()


class Reply(Struct, frozen=True, gc=False):
    """`headers` are whole lines, each with its CRLF."""

    status: int
    body: bytes
    headers: bytes = b""
    content_type: bytes = JSON


def _tree(error: type[AvowError]) -> Iterator[type[AvowError]]:
    yield error
    for below in error.__subclasses__():
        yield from _tree(below)


ERRORS: Final[dict[str, type[AvowError]]] = {error.code: error for error in _tree(AvowError)}

_HEADERS: Final[dict[type[AvowError], bytes]] = {
    Offline: b"retry-after: 1\r\n",
    Busy: b"retry-after: 1\r\n",
    NotAuthenticated: b'www-authenticate: Bearer realm="avow"\r\n',
}

_SENTENCES: Final[dict[str, str]] = {
    "NOT_EQUAL": "the lane does not end at the expected version; nothing was stored. `cursor` is its end",
    "OFFLINE": "this peer hears no quorum for the lane; nothing was stored. Try again, or ask another peer",
    "INVALID_REQUEST": "the lane refuses this command as it stands; nothing was changed",
    "UNKNOWN_QUEUE": "there is no queue of this name; nothing was changed",
    "UNKNOWN_TRANSACTION": "the lane knows no transaction of this name; nothing was changed",
    "UNKNOWN_PEER": "no peer has this number; nothing was changed",
    "ALREADY_DECIDED": "the transaction was decided already; nothing was changed. `cursor` is the last version it got",
    "INCOMPLETE": "a part has not the number of staged messages that was named; nothing was published. Stage it again",
    "LANE_ENDED": "the lane has ended without this write; it is not in it and never will be. Write it to another lane",
    "FENCED": "another reader took over; the cursor was not moved. What it has not passed is delivered there",
    "TOO_MANY": "a bound of what this peer or lane keeps is reached; nothing was changed. Try again later",
    "ALREADY_EXISTS": "there is such a queue with other properties; nothing was changed",
    "FOLDER_UNUSABLE": "this identity belongs to a peer that left, or its number to another; nothing was changed",
    "MEMBERSHIP_BUSY": "an earlier change of members is not through yet; nothing was changed. Try again",
    "DISK_FULL": "a peer's disk is full; nothing was stored. Free space or trim, then try again",
}
_UNKNOWN: Final = (
    "no answer came in time; it may or may not have happened. Repeat it with the same write id to find out"
)


def reply_of(
    error: AvowError, *, status: int = 0, headers: bytes = b"", details: dict[str, Any] | None = None
) -> Reply:
    """`status` replaces the error's own, for what only HTTP has a word for."""
    kind = type(error)
    facts = {**error.details(), **(details or {})}
    return Reply(status or kind.http_status, _body(kind, str(error), facts), headers + _HEADERS.get(kind, b""))


def reply_of_answer(answer: Answer, *, details: dict[str, Any] | None = None) -> Reply:
    """The answer of a lane that is not Done. Anything but a refusal leaves open what happened."""
    assert not isinstance(answer, Done), "what is done is no error"
    if not isinstance(answer, Refusal):
        return Reply(Unknown.http_status, _body(Unknown, _UNKNOWN, details or {}))
    kind = ERRORS.get(answer.code, AvowError)
    message = sentence_of(answer)
    facts = dict(details or {})
    if answer.cursor or answer.code == "NOT_EQUAL":
        facts["cursor"] = answer.cursor
    if answer.code not in ERRORS:
        facts["answered"] = answer.code
    return Reply(kind.http_status, _body(kind, message, facts), _HEADERS.get(kind, b""))


def error_of_answer(answer: Answer) -> AvowError:
    """The same as an error, where there is no HTTP to answer."""
    if not isinstance(answer, Refusal):
        return Unknown(_UNKNOWN)
    return errors_from(answer.code, sentence_of(answer), {"definite": True, "cursor": answer.cursor})


def sentence_of(refusal: Refusal) -> str:
    return refusal.reason or _SENTENCES.get(refusal.code, f"refused with {refusal.code}; nothing was changed")


def elsewhere(error: NotCoordinator, target: str) -> Reply:
    """The same request, at the peer that can do it. Without an address there is nowhere to go: then it is OFFLINE."""
    if not error.api:
        return reply_of(Offline(str(error)), details=error.details())
    address = error.api.rstrip("/").splitlines()[0]  # what another peer announced stays one line here
    location = f"location: {address}{target}\r\n".encode("latin-1", "replace")
    return reply_of(error, headers=location)


def _body(kind: type[AvowError], message: str, details: dict[str, Any]) -> bytes:
    shape = {"code": kind.code, "message": message, "definite": kind.definite, "retriable": kind.retriable}
    return _encoder.encode({"error": {**details, **shape}})
