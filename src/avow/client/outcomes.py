"""What became of a call: done, refused or unknown, from the bytes of an answer.

A peer answers with JSON: the outcome, or one error shape (`{"error": {"code", "message", "definite", ...}}`). A client
raises the very class the peer raised, found by its code, so that `except NotEqual` works on both sides of the wire and
the message is the peer's. Codes of a newer peer, and answers of something that is no peer at all (a proxy that says 502
in HTML), become the nearest class that claims no more than is known: definite only where the answer says so.

`Unknown` gets two facts that its class has no constructor for: `write_id`, to ask again with, and for a pub-sub queue
the `lane` the write was bound to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from avow.client.http import Answer, Lost
from avow.errors import AvowError, Busy, InvalidRequest, Malformed, NotEqual, Offline, Unknown
from avow.wire.failures import decode_failure

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Done(Struct, frozen=True, gc=False):
    """It happened: these versions of this lane are the messages of the call."""

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
    """The body of a 200 to a write; the other fields are those of staged and published writes."""

    write_id: str = ""
    written: tuple[Span, ...] = ()
    published: tuple[Span, ...] = ()


def reader_of(kind: type[T]) -> Callable[[bytes | bytearray], T]:
    """Decodes the body of a success. Whatever is not in the words of the API is Malformed, not the decoder's error."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes | bytearray) -> T:
        try:
            return decode(body)
        except msgspec.MsgspecError as cause:
            raise Malformed("answer of a peer", expected=kind.__name__, found=f"{bytes(body[:80])!r}") from cause

    return read


read_written: Final = reader_of(Written)


def span_of(answer: Answer | Lost) -> Span | Answer | Lost:
    """Where a write went; or the answer, when it is no success. A success that does not say is as good as no answer."""
    if type(answer) is not Answer or answer.status != 200:
        return answer
    try:
        return read_written(answer.body).written[0]
    except (Malformed, IndexError):
        return Lost(sent=True, reason=f"HTTP {answer.status} that does not say what was written")


def error_of(answer: Answer) -> AvowError:
    """The error in an answer that is not a success."""
    return decode_failure(answer.body) or _foreign(answer)


def _foreign(answer: Answer) -> AvowError:
    text = bytes(answer.body[:200]).decode("utf-8", "replace")
    said = f"HTTP {answer.status} that is no answer of a peer: {text!r}"
    if answer.status in (429, 503):
        return Busy(f"{said}; the call was not passed on. Try again")
    if 400 <= answer.status < 500:
        return InvalidRequest(f"{said}; nothing was changed. Check the address")
    return Unknown(f"{said}; it may or may not have happened. Repeat it with the same write id")


def unknown(message: str, *, write_id: bytes, lane: int | None, cause: BaseException | None) -> Unknown:
    error = Unknown(message)
    error.__dict__.update(write_id=write_id, lane=lane)
    error.__cause__ = cause
    return error


def final(error: AvowError, *, maybe: bool, write_id: bytes = b"", lane: int | None = None) -> AvowError:
    """What to raise when no further attempt is made. `maybe`: an earlier attempt may have happened.

    NOT_EQUAL stays definite when the lane has passed the expected version: no attempt that is still on its way can
    succeed any more, and one that had succeeded would have been answered with its outcome.
    """
    if isinstance(error, NotEqual) and error.current > error.expected:
        return error
    if not maybe and error.definite:
        return error
    text = f"no attempt was confirmed, the last one said: {error}. It may or may not have happened"
    return unknown(text, write_id=write_id, lane=lane, cause=error)


def unreachable(peers: str, reason: str) -> Offline:
    return Offline(f"no peer answered at {peers} ({reason}); nothing was changed. Start one, or check the addresses")
