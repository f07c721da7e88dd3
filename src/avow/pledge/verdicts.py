"""Turns a service's answer into a verdict. Only a field with a known name and an exact value counts, never free text.

Answers of checkbacks and of branches have different rules.

*Checkback* (did the transaction commit?): a wrong decision loses a message or sends one that was not committed, so only
an explicit verdict counts. Everything else is ERROR, which decides nothing and is retried.

    status   verdict   result          the verdict is the JSON body's `dtm_result`, or a header dtm-result or
    2xx      any       the verdict     avow-result; if several are given they must agree. Known dtm clients'
    409      FAILURE   FAILURE         handlers send this. A bare 409 may come from anything between (a proxy,
    425      ONGOING   ONGOING         an error handler), so it is not a verdict
    other              ERROR           also a 200 with a stack trace, and a 500 with {"dtm_result": "FAILURE"}

*Branch* (was it delivered?): a wrong decision only costs a repeated call, and services answer in many ways.

    2xx      none or SUCCESS           SUCCESS
    2xx      FAILURE, ONGOING          the verdict; any other value is ERROR
    409                                FAILURE, and 425 ONGOING, as in dtm; 409 with ONGOING is ONGOING
    other                              ERROR

gRPC and JSON-RPC have their own verdicts: a status code, an error code, a `result` with the id of the call. A branch
that answers FAILURE is retried like ERROR, with back-off, because a submitted pledge must be delivered.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from avow.limits import PLEDGE_ERROR_CHARS_MAX

Result: TypeAlias = Literal["SUCCESS", "FAILURE", "ONGOING", "ERROR"]

VERDICT_HEADERS: Final = (b"dtm-result", b"avow-result")
UNREACHED: Final = frozenset({429, 502, 503, 504})  # the service was not reached, or is overloaded

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
    """`text`: for operators, why it is not SUCCESS. `reached`: the endpoint answered."""

    result: Result
    text: str = ""
    reached: bool = True


SUCCESS: Final = Verdict("SUCCESS")


def of_http(status: int, *, headers: tuple[bytes, ...], body: bytes, checkback: bool) -> Verdict:
    """`headers`: the values of those VERDICT_HEADERS that were sent."""
    given = _verdict_in(headers, body)
    if checkback:
        return _of_checkback(status, given, body)
    if 200 <= status < 300 and given in (_NONE, "SUCCESS"):
        return SUCCESS
    result: Result = "ERROR"
    if 200 <= status < 300 or (status == 409 and given == "ONGOING"):
        result = cast(Result, given) if given in _EXACT else "ERROR"
    elif status in (409, 425):
        result = "FAILURE" if status == 409 else "ONGOING"
    return Verdict(result, _excerpt(status, body), status not in UNREACHED)


def _of_checkback(status: int, given: str, body: bytes) -> Verdict:
    if given in _EXACT and (200 <= status < 300 or (status, given) in ((409, "FAILURE"), (425, "ONGOING"))):
        return Verdict(cast(Result, given), "" if given == "SUCCESS" else _excerpt(status, body))
    text = f'no verdict in the answer, such as {{"dtm_result": "SUCCESS"}}; {_excerpt(status, body)}'
    return Verdict("ERROR", shorten(text), status not in UNREACHED)


def of_jsonrpc(status: int, *, body: bytes, asked_id: str) -> Verdict:
    """For branches and checkbacks: an answer with this call's id is explicit."""
    reply = _object(body)
    if status != 200 or reply is None or reply.get("jsonrpc") != "2.0" or reply.get("id") != asked_id:
        return Verdict(
            "ERROR", f"not a JSON-RPC answer to this call; {_excerpt(status, body)}", status not in UNREACHED
        )
    error = reply.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        known: dict[Any, Result] = {JSONRPC_FAILURE: "FAILURE", JSONRPC_ONGOING: "ONGOING"}
        return Verdict(known.get(code, "ERROR"), _excerpt(status, body))
    if "result" not in reply:
        return Verdict("ERROR", f"neither result nor error; {_excerpt(status, body)}")
    value = reply["result"]
    given = value.get("dtm_result", "SUCCESS") if isinstance(value, dict) else "SUCCESS"
    if given == "SUCCESS":
        return SUCCESS
    result = cast(Result, given) if isinstance(given, str) and given in _EXACT else "ERROR"
    return Verdict(result, _excerpt(status, body))


def of_grpc(code: int, message: str) -> Verdict:
    """For branches and checkbacks: the handler itself chose the status."""
    if code == GRPC_OK:
        return SUCCESS
    result: Result = "ERROR"
    if code == GRPC_FAILED_PRECONDITION or (code == GRPC_ABORTED and message == "ONGOING"):
        result = "ONGOING"
    elif code == GRPC_ABORTED:
        result = "FAILURE"
    return Verdict(result, shorten(f"gRPC status {code}: {message}"), code not in (GRPC_DEADLINE, GRPC_UNAVAILABLE))


def unreached(reason: str) -> Verdict:
    """For a call without an answer: refused, lost, or timed out."""
    return Verdict("ERROR", shorten(reason), reached=False)


def shorten(text: str) -> str:
    return text if len(text) <= PLEDGE_ERROR_CHARS_MAX else text[: PLEDGE_ERROR_CHARS_MAX - 1] + "…"


def _verdict_in(headers: tuple[bytes, ...], body: bytes) -> str:
    """The verdict in the answer; empty for none; `?` if several differ or one is not known."""
    if not headers and not body:
        return _NONE
    values = [header.decode("latin-1") for header in headers]
    if b'"dtm_result"' in body:  # parses only a body that can have one
        found = _object(body)
        if found is not None and "dtm_result" in found:
            values.append(found["dtm_result"] if isinstance(found["dtm_result"], str) else _UNCLEAR)
    if not values:
        return _NONE
    first = values[0]
    return first if first in _EXACT and all(other == first for other in values) else _UNCLEAR


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _excerpt(status: int, body: bytes) -> str:
    text = body[:PLEDGE_ERROR_CHARS_MAX].decode("utf-8", "replace")
    return shorten(f"HTTP {status}: {' '.join(text.split())}")
