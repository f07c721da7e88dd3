"""What an answer means. Strict: a verdict is a field of a known name with an exact value, never a word in a text.

Two questions are asked of services, and they are not read alike.

*Checkback* (did the transaction commit?): deciding wrongly loses a message or sends one that nobody committed, so only
an explicit verdict counts. Everything else is ERROR, which decides nothing and is asked again.

    status   verdict   result          the verdict is the JSON body's `dtm_result`, or a header dtm-result or
    2xx      any       the verdict     avow-result; all that are given must agree. This is what the known dtm
    409      FAILURE   FAILURE         clients' handlers send. A bare 409 may come from anything between (a proxy,
    425      ONGOING   ONGOING         an error handler): it is no verdict
    other              ERROR           also a 200 with a stack trace, and a 500 with {"dtm_result": "FAILURE"}

*Branch* (was it delivered?): being wrong costs a repetition, and services answer what they like.

    2xx      none or SUCCESS           SUCCESS
    2xx      FAILURE, ONGOING          the verdict; any other value is ERROR
    409                                FAILURE, and 425 ONGOING, as in dtm; 409 with ONGOING is ONGOING
    other                              ERROR

gRPC and JSON-RPC have verdicts of their own: a status code, an error code, a `result` with the id that was asked.
FAILURE of a branch is repeated like ERROR, with back-off: what was pledged is delivered.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from avow.limits import PLEDGE_ERROR_CHARS_MAX

Result: TypeAlias = Literal["SUCCESS", "FAILURE", "ONGOING", "ERROR"]

VERDICT_HEADERS: Final = (b"dtm-result", b"avow-result")
UNREACHED: Final = frozenset({429, 502, 503, 504})  # the service behind it was not reached, or takes no more now

GRPC_OK: Final = 0
GRPC_DEADLINE: Final = 4
GRPC_FAILED_PRECONDITION: Final = 9
GRPC_ABORTED: Final = 10
GRPC_UNAVAILABLE: Final = 14
JSONRPC_FAILURE: Final = -32901
JSONRPC_ONGOING: Final = -32902

_EXACT: Final = frozenset({"SUCCESS", "FAILURE", "ONGOING"})
_NONE: Final = ""
_UNCLEAR: Final = "?"


class Verdict(Struct, frozen=True, gc=False):
    """`text` is for people: why it is no success. `reached`: the endpoint was there and answered."""

    result: Result
    text: str = ""
    reached: bool = True


SUCCESS: Final = Verdict("SUCCESS")


def of_http(status: int, *, headers: tuple[bytes, ...], body: bytes, checkback: bool) -> Verdict:
    """`headers` are the values of VERDICT_HEADERS that were there."""
    said = _said(headers, body)
    if checkback:
        return _of_checkback(status, said, body)
    if 200 <= status < 300 and said in (_NONE, "SUCCESS"):
        return SUCCESS
    result: Result = "ERROR"
    if 200 <= status < 300 or (status == 409 and said == "ONGOING"):
        result = cast(Result, said) if said in _EXACT else "ERROR"
    elif status in (409, 425):
        result = "FAILURE" if status == 409 else "ONGOING"
    return Verdict(result, _excerpt(status, body), status not in UNREACHED)


def _of_checkback(status: int, said: str, body: bytes) -> Verdict:
    if said in _EXACT and (200 <= status < 300 or (status, said) in ((409, "FAILURE"), (425, "ONGOING"))):
        return Verdict(cast(Result, said), "" if said == "SUCCESS" else _excerpt(status, body))
    text = f'no verdict, as {{"dtm_result": "SUCCESS"}} would be one; {_excerpt(status, body)}'
    return Verdict("ERROR", shorten(text), status not in UNREACHED)


def of_jsonrpc(status: int, *, body: bytes, asked_id: str) -> Verdict:
    """For branch and checkback alike: the answer to exactly this call is explicit."""
    reply = _object(body)
    if status != 200 or reply is None or reply.get("jsonrpc") != "2.0" or reply.get("id") != asked_id:
        return Verdict("ERROR", f"no JSON-RPC answer to this call; {_excerpt(status, body)}", status not in UNREACHED)
    error = reply.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        known: dict[Any, Result] = {JSONRPC_FAILURE: "FAILURE", JSONRPC_ONGOING: "ONGOING"}
        return Verdict(known.get(code, "ERROR"), _excerpt(status, body))
    if "result" not in reply:
        return Verdict("ERROR", f"neither result nor error; {_excerpt(status, body)}")
    value = reply["result"]
    said = value.get("dtm_result", "SUCCESS") if isinstance(value, dict) else "SUCCESS"
    if said == "SUCCESS":
        return SUCCESS
    result = cast(Result, said) if isinstance(said, str) and said in _EXACT else "ERROR"
    return Verdict(result, _excerpt(status, body))


def of_grpc(code: int, message: str) -> Verdict:
    """For branch and checkback alike: the handler itself chose the status."""
    if code == GRPC_OK:
        return SUCCESS
    result: Result = "ERROR"
    if code == GRPC_FAILED_PRECONDITION or (code == GRPC_ABORTED and message == "ONGOING"):
        result = "ONGOING"
    elif code == GRPC_ABORTED:
        result = "FAILURE"
    return Verdict(result, shorten(f"gRPC status {code}: {message}"), code not in (GRPC_DEADLINE, GRPC_UNAVAILABLE))


def unreached(reason: str) -> Verdict:
    """No answer came: refused, lost, too late."""
    return Verdict("ERROR", shorten(reason), reached=False)


def shorten(text: str) -> str:
    return text if len(text) <= PLEDGE_ERROR_CHARS_MAX else text[: PLEDGE_ERROR_CHARS_MAX - 1] + "…"


def _said(headers: tuple[bytes, ...], body: bytes) -> str:
    """The one verdict that is given; empty for none; `?` when they differ or one has no meaning."""
    if not headers and not body:
        return _NONE
    said = [header.decode("latin-1") for header in headers]
    if b'"dtm_result"' in body:  # spares the parsing of what cannot have one
        found = _object(body)
        if found is not None and "dtm_result" in found:
            said.append(found["dtm_result"] if isinstance(found["dtm_result"], str) else _UNCLEAR)
    if not said:
        return _NONE
    first = said[0]
    return first if first in _EXACT and all(other == first for other in said) else _UNCLEAR


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _excerpt(status: int, body: bytes) -> str:
    text = body[:PLEDGE_ERROR_CHARS_MAX].decode("utf-8", "replace")
    return shorten(f"HTTP {status}: {' '.join(text.split())}")
