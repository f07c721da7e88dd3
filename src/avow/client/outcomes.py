"""Decodes the outcome of a call from an answer: done, refused or unknown.

A peer answers with JSON: the outcome, or one error shape (`{"error": {"code", "message", "definite", ...}}`). A client
raises the same class that the peer raised, found by its code, with the peer's message, so `except NotEqual` works on
both sides of the wire. Codes of a newer peer, and answers of a server that is not a peer (a proxy's 502 in HTML),
become the nearest class that claims no more than is known: definite only if the answer says so.

`Unknown` gets two attributes that its constructor does not take: `write_id`, to query the outcome with, and for a
pub-sub queue the `lane` the write was bound to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from avow.errors import AvowError, Busy, InvalidRequest, Malformed, NotEqual, Offline, Unknown
from avow.wire.error_body import decode_failure
from avow.wire.http import Answer, Lost

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Done(Struct, frozen=True, gc=False):
    """The write is done: the messages have these versions of this lane."""

    queue: str
    lane: int
    first_version: int
    last_version: int
    write_id: bytes


class Span(Struct, frozen=True, gc=False):
    lane: int
    first_version: int = 0
    last_version: int = 0


class Written(Struct, frozen=True, gc=False):
    """The body of a 200 answer to a write; `published` is set by publishing a transaction."""

    write_id: str = ""
    written: tuple[Span, ...] = ()
    published: tuple[Span, ...] = ()


def reader_of(kind: type[T]) -> Callable[[bytes | bytearray], T]:
    """A decoder for the body of a success. Raises Malformed, not the decoder's own error, for an invalid body."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes | bytearray) -> T:
        try:
            return decode(body)
        except msgspec.MsgspecError as cause:
            raise Malformed("the answer of a peer", expected=kind.__name__, found=f"{bytes(body[:80])!r}") from cause

    return read


read_written: Final = reader_of(Written)


def span_of(answer: Answer | Lost) -> Span | Answer | Lost:
    """The versions of a write; or the answer if it is not a success. An undecodable success counts as no answer."""
    if type(answer) is not Answer or answer.status != 200:
        return answer
    try:
        return read_written(answer.body).written[0]
    except (Malformed, IndexError):
        return Lost(sent=True, reason=f"HTTP {answer.status} without the versions that were written")


def error_of(answer: Answer) -> AvowError:
    """The error in an answer that is not a success."""
    return decode_failure(answer.body) or _foreign(answer)


def _foreign(answer: Answer) -> AvowError:
    text = bytes(answer.body[:200]).decode("utf-8", "replace")
    summary = f"HTTP {answer.status} from a server that is not an Avow peer: {text!r}"
    if answer.status in (429, 503):
        return Busy(f"{summary}; the call did not reach a peer. Try again")
    if 400 <= answer.status < 500:
        return InvalidRequest(f"{summary}; nothing was changed. Check the address")
    return Unknown(f"{summary}; the call may or may not have happened. Repeat it with the same write id")


def unknown(message: str, *, write_id: bytes, lane: int | None, cause: BaseException | None) -> Unknown:
    error = Unknown(message)
    error.__dict__.update(write_id=write_id, lane=lane)
    error.__cause__ = cause
    return error


def final(error: AvowError, *, maybe: bool, write_id: bytes = b"", lane: int | None = None) -> AvowError:
    """The error to raise when no further attempt is made. `maybe`: an earlier attempt may have happened.

    NOT_EQUAL stays definite if the lane has passed the expected version.
    """
    if isinstance(error, NotEqual) and is_foreclosed(error):
        return error
    if not maybe and error.definite:
        return error
    text = f"no attempt was confirmed; the call may or may not have happened. Last error: {error}"
    return unknown(text, write_id=write_id, lane=lane, cause=error)


def is_foreclosed(error: NotEqual) -> bool:
    """Whether the lane has passed the expected version: then no attempt in flight can succeed any more, and one that
    had succeeded would have been answered with its outcome."""
    return error.current > error.expected


def unreachable(peers: str, reason: str) -> Offline:
    return Offline(
        f"no peer answered at {peers} ({reason}); nothing was changed. Check the addresses and that a peer is running"
    )
