"""Asking a cluster, as the commands that manage it do: one call, any peer, an answer or an error.

Any peer can be asked, so addresses are tried in turn. Whether the next one may be tried after a failure depends on what
is known: a connection that could not be made carried nothing, and a GET changes nothing, so both go on to the next
peer. A call that was sent and not answered may have been carried out; that is `Unknown` and is told, not hidden by a
repetition. Messages are written and followed through `avow.connect_blocking` instead, which repeats with write ids.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from avow.errors import InvalidRequest, Offline, Unknown
from avow.wire.failures import errors_from

CONNECT_S: Final = 3.0
BODY_MAX: Final = 64 * 1024 * 1024


class Api:
    """`address` is the peer that answered last, empty before."""

    __slots__ = ("_trust", "address", "addresses", "ca", "timeout_s", "token")

    def __init__(self, addresses: str, *, token: str = "", ca: str = "", timeout_s: float = 30.0) -> None:
        self.addresses = tuple(_checked(part.strip()) for part in addresses.split(",") if part.strip())
        if not self.addresses:
            raise InvalidRequest("no address of a peer was given; nothing was done. Use --api http://host:port")
        self.token, self.ca, self.timeout_s = token, ca, timeout_s
        self.address = ""
        self._trust = _trust(ca) if any(part.startswith("https:") for part in self.addresses) else None

    def only(self, address: str, *, timeout_s: float) -> Api:
        """The same rights, one peer."""
        return Api(address, token=self.token, ca=self.ca, timeout_s=timeout_s)

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The decoded answer; an error of `avow.errors` otherwise."""
        failures: list[str] = []
        for address in self.addresses:
            connection = self._connection(address)
            try:
                answer = self._exchange(connection, method, path, body)
            except _NotConnected as error:
                failures.append(f"{address}: {error}")
            except (OSError, http.client.HTTPException) as error:
                if method != "GET":
                    raise Unknown(_lost(address, method, path, error)) from error
                failures.append(f"{address}: {_reason(error)}")
            else:
                self.address = address
                return answer
            finally:
                connection.close()
        raise Offline(f"no peer answered ({'; '.join(failures)}); nothing was done. {ADVICE}")

    def _exchange(self, connection: http.client.HTTPConnection, method: str, path: str, body: object) -> Any:
        try:
            connection.connect()
        except OSError as error:
            raise _NotConnected(_reason(error)) from error
        assert connection.sock is not None
        connection.sock.settimeout(self.timeout_s)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        return _decoded(response.status, response.read(BODY_MAX))

    def _connection(self, address: str) -> http.client.HTTPConnection:
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_S, context=self._trust)
        return http.client.HTTPConnection(host, parts.port, timeout=CONNECT_S)


ADVICE: Final = "Is a cluster running (avow up)? Name its peers with --api or AVOW_API"


class _NotConnected(Exception):
    """Nothing was sent."""


def path_of(*parts: str | int, query: Mapping[str, object] | None = None) -> str:
    """/v1/... with each part quoted, so that a queue may be called a/b."""
    path = "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _decoded(status: int, body: bytes) -> Any:
    try:
        value = msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"what answered is not a peer of Avow (status {status}, {body[:40]!r}); nothing is known to have changed. "
            "Check --api"
        ) from error
    if status < 300:
        return value
    said = value.get("error") if isinstance(value, dict) else None
    if not isinstance(said, dict):
        raise InvalidRequest(f"status {status} without an error of Avow; is --api the address of a peer?")
    rest = {name: part for name, part in said.items() if name not in ("code", "message", "definite", "retriable")}
    raise errors_from(str(said.get("code", "")), str(said.get("message", "")), rest)


def _lost(address: str, method: str, path: str, error: Exception) -> str:
    return (
        f"{address} did not answer {method} {path} ({_reason(error)}); it may or may not have happened. "
        "Look with a list or show command, or repeat it: repeating does no harm"
    )


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.lower() if text[1:].islower() else text


def _checked(address: str) -> str:
    """scheme://host:port; http:// may be left out."""
    full = address if "://" in address else f"http://{address}"
    parts = urlsplit(full)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequest(
            f"{address!r} is not the address of a peer, such as http://127.0.0.1:7400; nothing was done"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"--ca {ca} cannot be used: {error}; nothing was done") from error
