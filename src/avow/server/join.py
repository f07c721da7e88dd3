"""A new peer joins a cluster: it asks a member over the API for a number, with an identity that it keeps.

The answer is a number that no peer had before, and the list of peers to link to. The same identity always gets the same
number, so a peer that crashed before it stored the answer asks again.
"""

from __future__ import annotations

import os
import ssl
import time
from http import HTTPStatus
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest, Offline, is_transient
from avow.server.peer_registry import KnownPeer
from avow.server.settings import Settings, address, address_text
from avow.transport.blocking import BlockingConnection
from avow.wire.error_body import decode_failure
from avow.wire.http import Lost, address_of

_TRY_FOR_S: Final = 30.0
_ANSWER_S: Final = 5.0
_EVERY_S: Final = 0.5
_TOKEN: Final = "AVOW_TOKEN"


class _Peer(Struct):
    number: int
    identity: str = ""
    link: str = ""
    api: str = ""
    state: str = ""


class _Answer(Struct):
    cluster: str
    number: int
    peers: list[_Peer]


class Assignment(Struct, frozen=True):
    cluster: UUID
    number: int
    peers: tuple[KnownPeer, ...]


def ask_to_join(settings: Settings, identity: UUID) -> Assignment:
    """Raises InvalidRequest when the cluster refuses, Offline when no member could answer in time."""
    host, port = address(settings.peer_listen, name="peer_listen")
    link = address_text(settings.advertise or host, port)
    body = msgspec.json.encode({"identity": identity.hex, "link": link, "api": ""})
    until = time.monotonic() + _TRY_FOR_S
    problem = "no address was given"
    while time.monotonic() < until:
        for member in settings.join.split(","):
            try:
                return _assignment(_post(settings, member.strip().rstrip("/"), body))
            except _TryAgain as reason:
                problem = f"{member}: {reason}"
        time.sleep(_EVERY_S)
    raise Offline(
        f"no member of the cluster let this peer join within {_TRY_FOR_S:g} s ({problem}); "
        "nothing was changed. Try again"
    )


class _TryAgain(Exception):
    pass


def _post(settings: Settings, member: str, body: bytes) -> bytes:
    try:
        where, path = address_of(member)
    except InvalidRequest as error:
        raise _TryAgain(str(error)) from error
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get(_TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    tls = _trust(settings) if where.tls else None
    with BlockingConnection(where, tls=tls, connect_timeout_s=_ANSWER_S) as connection:
        answer = connection.request("POST", f"{path}/v1/peers", headers=headers, body=body, timeout_s=_ANSWER_S)
    if isinstance(answer, Lost):
        raise _TryAgain(answer.reason)
    text = answer.body.decode("utf-8", "replace")
    if not answer.ok:
        failure = decode_failure(answer.body)
        if is_transient(failure.code) if failure is not None else answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _TryAgain(text)  # the error is transient, or it comes from a proxy that reached no member
        raise InvalidRequest(f"{member} refused to let this peer join (HTTP {answer.status}): {text}")
    return bytes(answer.body)


def _trust(settings: Settings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:
        raise _TryAgain(str(error)) from error


def _assignment(answer: bytes) -> Assignment:
    try:
        found = msgspec.json.decode(answer, type=_Answer)
        peers = tuple(
            KnownPeer(peer.number, peer.link, bytes.fromhex(peer.identity), peer.api, gone=peer.state == "gone")
            for peer in found.peers
        )
        return Assignment(UUID(hex=found.cluster), found.number, peers)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(
            f"the answer to the request to join cannot be read: {error}. Check that `join` is the API of an Avow peer"
        ) from error
