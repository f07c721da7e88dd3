"""Handlers about the peer and the cluster: health, status, peers, metrics and the OpenAPI document.

`/healthz` is for supervisors that restart processes: it only says that this one serves. `/readyz` is for load
balancers: it says that this peer takes part in the cluster, so it fails in a minority. Both are answered under any
load.

Joining and leaving are entries of the metadata lane, forwarded to its coordinator. They change the table of peers. The
members of each lane follow it step by step, which is why leaving is answered with 202.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from avow.errors import InvalidRequest, UpgradeUnfinished
from avow.node.answers import Done
from avow.queue.commands import LevelCommand, PeerCommand, encode
from avow.server.http import schemas
from avow.server.http.api import Api
from avow.server.http.error_reply import reply_of_answer
from avow.server.http.openapi import document
from avow.server.http.request import HttpRequest
from avow.server.http.route import METRICS
from avow.server.settings import address
from avow.wire.messages import Kind
from avow.wire.versions import NEWEST

_ALIVE: Final = msgspec.json.encode(schemas.Health("alive"))
_SCHEMES: Final = ("http://", "https://")


def _package_version() -> str:
    try:
        return version("avow")
    except PackageNotFoundError:
        return "0"


VERSION: Final = _package_version()
_DOCUMENT: Final = msgspec.json.encode(document(version=VERSION))


def health(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    request.answer(200, _ALIVE)


def ready(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    """Ready: in contact with a coordinator of the metadata lane, and all entries known as committed are applied."""
    api.check_current()
    api.answer(request, schemas.Health("ready"))


def metrics(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    text = api.metrics.text()
    request.answer(200, text, content_type=METRICS.encode())


def openapi(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    request.answer(200, _DOCUMENT)


def cluster(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    """Lanes of queues that the token may not read are left out."""
    token = api.token(request)
    status = api.node.status()
    status["lanes"] = [lane for lane in status["lanes"] if token.may("read", lane["queue"])]
    status |= {
        "removed": api.peer.removed,
        "cluster": api.peer.cluster.hex,
        "version": VERSION,
        "waiting_for_founders": api.peer.founding.waiting_for,
        "storage": api.peer.statistics()["storage"],
    }
    request.answer(200, msgspec.json.encode(status))


def show_me(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    token = api.token(request)
    api.answer(request, schemas.Me(token.name, api.tokens.needed, token.admin, token.rights))


def list_peers(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    api.answer(request, schemas.Peers(_peers(api), api.node.metadata.state.level))


async def join_peer(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: schemas.Join) -> None:  # noqa: ARG001
    address(content.link, name="link")
    _check_api(content.api)
    if not content.link.isprintable() or " " in content.link:
        raise InvalidRequest("`link` must be host:port without spaces; nothing was done")
    identity = bytes.fromhex(content.identity)
    command = PeerCommand("join", identity=identity, link=content.link, api=content.api)
    answer = await api.command(Kind.PEER, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        request.reply(reply_of_answer(answer))
        return
    api.answer(request, schemas.Joined(api.peer.cluster.hex, answer.last_version, _peers(api)))


async def remove_peer(api: Api, request: HttpRequest, asked: schemas.PeerParameters, content: None) -> None:  # noqa: ARG001
    command = PeerCommand("leave", asked.number)
    answer = await api.command(Kind.PEER, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        request.reply(reply_of_answer(answer, details={"number": asked.number}))
        return
    known = api.node.metadata.state.peers.by_number.get(asked.number)
    gone = known is not None and known.state == "gone"
    api.answer(request, schemas.Leaving(asked.number, "gone" if gone else "leaving"), status=202)


async def raise_level(
    api: Api,
    request: HttpRequest,
    asked: schemas.NoParameters,  # noqa: ARG001
    content: schemas.RaiseLevel,
) -> None:
    """Every member must be linked to this peer at this moment: what a silent one can read is not known."""
    wanted, state = content.level or NEWEST, api.node.metadata.state
    if wanted > NEWEST:
        raise InvalidRequest(
            f"this release reads the protocol up to version {NEWEST}, not {wanted}; nothing was changed"
        )
    behind = [
        f"peer {peer.number} " + (f"reads up to {peer.newest}" if peer.connected else "is not connected")
        for peer in _peers(api)
        if peer.state != "gone" and (not peer.connected or peer.newest < wanted)
    ]
    if behind and wanted > state.level:
        raise UpgradeUnfinished(
            f"the level stays at {state.level}: {', '.join(behind)}; nothing was changed. Start every peer with a "
            f"release that reads version {wanted}, or remove it from the cluster"
        )
    if wanted > state.level:
        answer = await api.command(Kind.LEVEL, encode(LevelCommand(wanted)), write_id=os.urandom(16))
        if not isinstance(answer, Done):
            request.reply(reply_of_answer(answer))
            return
    api.answer(request, schemas.ClusterLevel(max(wanted, state.level)))


def _peers(api: Api) -> list[schemas.Peer]:
    state, peer = api.node.metadata.state, api.peer
    linked = set(peer.links.connected) if peer.links is not None else set()
    return [
        schemas.Peer(
            number=info.number,
            identity=info.identity.hex(),
            link=info.link,
            api=info.api,
            state=info.state,
            voter=info.number in state.voters,
            connected=info.number in linked or info.number == api.node.me,
            newest=NEWEST if info.number == api.node.me else peer.newest.get(info.number, 0),
        )
        for info in state.peers.by_number.values()
    ]


def _check_api(url: str) -> None:
    """It is sent to clients in a header, so it must be one line of visible characters."""
    if url and not (url.startswith(_SCHEMES) and url.isascii() and url.isprintable() and " " not in url):
        raise InvalidRequest(
            "`api` must be the URL of the peer's API, http://host:port or https://host:port; nothing was done"
        )
