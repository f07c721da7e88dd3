"""How commands reach a cluster: HTTP requests for those that manage it, a client for those that handle messages.

Every peer can answer a request, so the addresses are tried in turn. After a failure the next peer is tried only if that
is safe: if no connection could be made, nothing was sent, and a GET changes nothing; a peer that answers that it is
offline or was removed has done nothing. The latter names the peers to ask instead. A request that was sent and not
answered may have been executed; this is reported as `Unknown` and not repeated.

A client retries with write ids until its timeout. That is right for a service, but not for a person who forgot to start
a cluster, so one request is made before the client connects.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from avow.cli.options import DEFAULT_API
from avow.errors import AvowError, InvalidRequest, Offline, PeerRemoved, Unknown
from avow.transport.blocking import BlockingConnection, connection_to
from avow.wire.error_body import errors_from
from avow.wire.http import Answer, Lost

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient


CONNECT_S: Final = 3.0


class Api:
    """`address` is the peer that answered last; empty before the first answer."""

    __slots__ = ("_trust", "address", "addresses", "ca", "timeout_s", "token")

    def __init__(self, addresses: str, *, token: str = "", ca: str = "", timeout_s: float = 30.0) -> None:
        self.addresses = tuple(_checked(part.strip()) for part in addresses.split(",") if part.strip())
        if not self.addresses:
            raise InvalidRequest("no peer address was given; nothing was done. Use --api http://host:port")
        self.token, self.ca, self.timeout_s = token, ca, timeout_s
        self.address = ""
        self._trust = _trust(ca) if any(part.startswith("https:") for part in self.addresses) else None

    def only(self, address: str, *, timeout_s: float) -> Api:
        """The same token and CA, for one peer."""
        return Api(address, token=self.token, ca=self.ca, timeout_s=timeout_s)

    def asking(self, addresses: Sequence[str]) -> Api:
        """The same token and CA, for these peers, in this order."""
        return Api(",".join(addresses), token=self.token, ca=self.ca, timeout_s=self.timeout_s)

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Returns the decoded answer, or raises an error of `avow.errors`."""
        failures: list[str] = []
        refusal: AvowError | None = None
        addresses = list(self.addresses)
        for address in addresses:  # it may grow
            with connection_to(address, tls=self._trust, connect_timeout_s=CONNECT_S) as connection:
                answer = self._exchange(connection, method, path, body)
            if isinstance(answer, Lost):
                if answer.sent and method != "GET":
                    raise Unknown(_lost(address, method, path, answer.reason))
                failures.append(f"{address}: {answer.reason}")
                continue
            self.address = address
            try:
                return _decoded(answer.status, bytes(answer.body))
            except Offline as error:
                refusal = refusal or error
            except PeerRemoved as error:
                refusal = refusal or error
                addresses += [_checked(other) for other in error.peers if _checked(other) not in addresses]
        if refusal is not None:
            raise refusal
        raise Offline(f"no peer answered ({'; '.join(failures)}); nothing was done. {ADVICE}")

    def _exchange(self, connection: BlockingConnection, method: str, path: str, body: object) -> Answer | Lost:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        content = b"" if body is None else msgspec.json.encode(body)
        if content:
            headers["Content-Type"] = "application/json"
        return connection.request(method, path, headers=headers, body=content, timeout_s=self.timeout_s)


ADVICE: Final = "Start a cluster (avow up), or give the addresses of its peers with --api or AVOW_API"


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
            f"the server that answered is not an Avow peer (status {status}, {body[:40]!r}); Avow changed nothing. "
            "Check the address in --api"
        ) from error
    if status < 300:
        return value
    body_error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(body_error, dict):
        raise InvalidRequest(
            f"the server answered with status {status} but without an Avow error; check that --api is a peer's address"
        )
    rest = {name: part for name, part in body_error.items() if name not in ("code", "message", "definite", "retriable")}
    raise errors_from(str(body_error.get("code", "")), str(body_error.get("message", "")), rest)


def _lost(address: str, method: str, path: str, reason: str) -> str:
    return (
        f"{address} did not answer {method} {path} ({reason}); the request may or may not have been executed. "
        "Check with a list or show command, or repeat it: a repetition does no harm"
    )


def _checked(address: str) -> str:
    """scheme://host:port; http:// is optional."""
    full = address if "://" in address else f"http://{address}"
    parts = urlsplit(full)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        usable = False
    if not usable:
        raise InvalidRequest(f"{address!r} is not a peer address such as http://127.0.0.1:7400; nothing was done")
    return f"{parts.scheme}://{parts.netloc}"


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(f"--ca {ca} cannot be used: {error}; nothing was done") from error


# ---------------------------------------------------------------------- clients


def reachable(addresses: str, *, token: str, ca: str, timeout_s: float) -> str:
    """The addresses to pass to a client. Raises Offline at once if no peer listens at any of them."""
    cluster = Api(addresses, token=token, ca=ca, timeout_s=timeout_s)
    cluster.get("/healthz")
    return cluster.address if addresses == DEFAULT_API else ",".join(cluster.addresses)


@contextmanager
def connected(addresses: str, *, token: str, ca: str, timeout_s: float) -> Iterator[BlockingClient]:
    import avow  # only these commands need the client

    known = reachable(addresses, token=token, ca=ca, timeout_s=timeout_s)
    with avow.connect_blocking(known, token=token or None, ca=ca or None, timeout_s=timeout_s) as client:
        yield client
