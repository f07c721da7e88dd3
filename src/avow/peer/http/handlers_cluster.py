"""Health, status, peers, and the document: what is asked about the peer rather than about a queue.

`/healthz` is for whoever restarts processes: it says only that this one serves. `/readyz` is for whoever sends traffic:
it says that this peer takes part in the cluster, so it fails in a minority. Both are answered however busy the peer is.

Joining and leaving are entries of the metadata lane, passed on to whoever coordinates it. They change the table of
peers; the members of each lane follow it step by step, which is why leaving is answered 202.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from avow.errors import InvalidRequest
from avow.peer.answers import Done
from avow.peer.http import shapes
from avow.peer.http.api import Api
from avow.peer.http.errors import reply_of_answer
from avow.peer.http.exchange import Exchange
from avow.peer.http.openapi import document
from avow.peer.http.route import METRICS
from avow.peer.settings import address
from avow.queue.commands import PeerCommand, encode
from avow.wire.messages import Kind

_ALIVE: Final = msgspec.json.encode(shapes.Health("alive"))
_SCHEMES: Final = ("http://", "https://")


def _package_version() -> str:
    try:
        return version("avow")
    except PackageNotFoundError:
        return "0"


VERSION: Final = _package_version()
_DOCUMENT: Final = msgspec.json.encode(document(version=VERSION))


def health(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    exchange.answer(200, _ALIVE)


def ready(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    """It hears a coordinator of the metadata lane and has applied what it is known to have committed."""
    api.check_current()
    api.answer(exchange, shapes.Health("ready"))


def metrics(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    text = api.metrics.text()
    exchange.answer(200, text, content_type=METRICS.encode())


def openapi(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    exchange.answer(200, _DOCUMENT)


def cluster(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    """Lanes of queues the token may not read are left out."""
    token = api.token(exchange)
    status = api.node.status()
    status["lanes"] = [lane for lane in status["lanes"] if token.may("read", lane["queue"])]
    status |= {"cluster": api.peer.cluster.hex, "version": VERSION, "storage": api.peer.statistics()["storage"]}
    exchange.answer(200, msgspec.json.encode(status))


def show_me(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    token = api.token(exchange)
    api.answer(exchange, shapes.Me(token.name, api.tokens.needed, token.admin, token.rights))


def list_peers(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    api.answer(exchange, shapes.Peers(_peers(api)))


async def join_peer(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: shapes.Join) -> None:  # noqa: ARG001
    address(content.link, name="link")
    _check_api(content.api)
    if not content.link.isprintable() or " " in content.link:
        raise InvalidRequest("link is host:port, without spaces; nothing was done")
    identity = bytes.fromhex(content.identity)
    command = PeerCommand("join", identity=identity, link=content.link, api=content.api)
    answer = await api.command(Kind.PEER, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer))
        return
    api.answer(exchange, shapes.Joined(api.peer.cluster.hex, answer.last_version, _peers(api)))


async def remove_peer(api: Api, exchange: Exchange, asked: shapes.PeerParameters, content: None) -> None:  # noqa: ARG001
    command = PeerCommand("leave", asked.number)
    answer = await api.command(Kind.PEER, encode(command), write_id=os.urandom(16))
    if not isinstance(answer, Done):
        exchange.reply(reply_of_answer(answer, details={"number": asked.number}))
        return
    known = api.node.metadata.state.peers.by_number.get(asked.number)
    gone = known is not None and known.state == "gone"
    api.answer(exchange, shapes.Leaving(asked.number, "gone" if gone else "leaving"), status=202)


def _peers(api: Api) -> list[shapes.Peer]:
    state, peer = api.node.metadata.state, api.peer
    linked = set(peer.links.connected) if peer.links is not None else set()
    return [
        shapes.Peer(
            number=info.number,
            identity=info.identity.hex(),
            link=info.link,
            api=info.api,
            state=info.state,
            voter=info.number in state.voters,
            connected=info.number in linked or info.number == api.node.me,
        )
        for info in state.peers.by_number.values()
    ]


def _check_api(url: str) -> None:
    """It is given to clients in a header, so it must be one line of visible characters."""
    if url and not (url.startswith(_SCHEMES) and url.isascii() and url.isprintable() and " " not in url):
        raise InvalidRequest(
            "api is the URL of the peer's API, http://host:port or https://host:port; nothing was done"
        )
