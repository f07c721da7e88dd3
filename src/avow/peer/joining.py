"""How a new peer gets a place in a cluster: it asks a member over the API, with an identity it will keep.

The answer is a number nobody had before, and the peers to link to. Asking again with the same identity gives the same
number, so a peer that died between asking and writing it down simply asks again.
"""

from __future__ import annotations

import os
import ssl
import time
import urllib.error
import urllib.request
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest, Offline
from avow.peer.book import Known
from avow.peer.settings import Settings, address, address_text

_TRY_FOR_S: Final = 30.0
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


class Place(Struct, frozen=True):
    cluster: UUID
    number: int
    peers: tuple[Known, ...]


def ask_for_place(settings: Settings, identity: UUID) -> Place:
    """Raises InvalidRequest when the cluster refuses, Offline when no member could answer in time."""
    host, port = address(settings.peer_listen, name="peer_listen")
    link = address_text(settings.advertise or host, port)
    body = msgspec.json.encode({"identity": identity.hex, "link": link, "api": ""})
    until = time.monotonic() + _TRY_FOR_S
    problem = "no address was given"
    while time.monotonic() < until:
        for member in settings.join.split(","):
            try:
                return _place(_post(settings, member.strip().rstrip("/"), body))
            except _TryAgain as reason:
                problem = f"{member}: {reason}"
        time.sleep(_EVERY_S)
    raise Offline(f"no member gave this peer a place in {_TRY_FOR_S:g} s ({problem}); nothing was changed. Try again")


class _TryAgain(Exception):
    pass


def _post(settings: Settings, member: str, body: bytes) -> bytes:
    request = urllib.request.Request(f"{member}/v1/peers", data=body, method="POST")
    request.add_header("Content-Type", "application/json")
    if token := os.environ.get(_TOKEN):
        request.add_header("Authorization", f"Bearer {token}")
    context = None
    if member.startswith("https"):
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        if error.code in (307, 503, 504):
            raise _TryAgain(text) from error
        raise InvalidRequest(f"{member} refused this peer ({error.code}): {text}") from error
    except (OSError, ValueError) as error:
        raise _TryAgain(str(error)) from error


def _place(answer: bytes) -> Place:
    try:
        found = msgspec.json.decode(answer, type=_Answer)
        peers = tuple(
            Known(peer.number, peer.link, bytes.fromhex(peer.identity), peer.api, gone=peer.state == "gone")
            for peer in found.peers
        )
        return Place(UUID(hex=found.cluster), found.number, peers)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"a member answered something else than a place in the cluster: {error}") from error
