"""`avow serve`: from settings to a running peer, and back to nothing.

    folder   its own if it has one (then it says which cluster and which number), a new one for a founder or a joiner
    store    loaded; a folder whose promises cannot be known refuses to start
    peer     links listen, then the API; one line on stdout tells where

A joiner asks a member for a place before it makes its folder, with an identity it keeps if it has to ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

import msgspec

from avow.errors import FolderUnusable, NotInstalled
from avow.peer.libraries import installed

if not installed():
    raise NotInstalled("a peer", extra="server")

from avow.peer.access import check_exposure, link_contexts, server_context
from avow.peer.book import Book, Known
from avow.peer.http.server import HttpServer
from avow.peer.joining import ask_for_place
from avow.peer.links import Links
from avow.peer.process import Peer
from avow.peer.settings import Settings, address, address_text, founders_of
from avow.storage.filestore import FileStore
from avow.storage.folder import Folder, identity_of, open_folder
from avow.storage.recovery import Sizes

log = logging.getLogger("avow.peer")

_NAMESPACE: Final = UUID("6f1e5a0e-2d7c-5b1e-9a53-4c1f2f0f8a11")
_SWITCH_INTERVAL_S: Final = 1e-5  # the sync thread must not wait for the loop's 5 ms turn of the interpreter
_FILES_WANTED: Final = 65_536
_MALLOPT: Final = {-1: 64 * 1024 * 1024, -3: 32 * 1024 * 1024}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (its highest)
_SYNC_IN_PLACE_BELOW_S: Final = 1e-3  # a hand-over to the sync thread and back costs a good part of that


def run(settings: Settings, sizes: Sizes = Sizes()) -> int:  # noqa: B008 - frozen
    """Until a signal or a failure; the exit status."""
    check_exposure(settings)
    _prepare_process(settings)
    with _event_loop() as runner:
        return runner.run(_serve(settings, sizes))


def _event_loop() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _prepare_process(settings: Settings) -> None:
    logging.basicConfig(
        level=settings.log.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, _FILES_WANTED)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _keep_freed_memory() -> None:
    """Answers of several MiB come and go: giving their pages back to the kernel and getting them zeroed again costs a
    third of a large read. Up to 64 MiB are kept instead. Only glibc has the call."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOPT.items():
            libc.mallopt(parameter, value)


async def _serve(settings: Settings, sizes: Sizes) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    cluster, identity, folder, book = await asyncio.to_thread(claim_folder, settings)
    store = FileStore(
        folder.files, sizes=sizes, call_soon=loop.call_soon_threadsafe, in_place_below_s=_SYNC_IN_PLACE_BELOW_S
    )
    image = await asyncio.to_thread(store.load)
    for flaw in [*folder.damage, *image.damage]:
        log.warning("%s", flaw)
    peer = Peer(
        settings=settings, cluster=cluster, identity=identity, folder=folder, store=store, image=image, book=book
    )
    accepting, dialling = link_contexts(settings)
    founders = founders_of(settings) if settings.founders else {}
    links = Links(peer, me=peer.number, addresses=peer.addresses, told=founders, accepting=accepting, dialling=dialling)
    await peer.start(links)
    server = HttpServer(peer, settings, tls=server_context(settings))
    try:
        link = await links.listen(*address(settings.peer_listen, name="peer_listen"))
        api = await server.start()
        told = _introduce(peer, settings, link=link, api=api)
        if server.grpc_port:
            told["grpc"] = address_text(settings.advertise or api[0], server.grpc_port)
        gc.collect()
        gc.freeze()
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        return await _until_stopped(peer, stopping)
    finally:
        await server.stop()
        await peer.stop()


def _introduce(peer: Peer, settings: Settings, *, link: tuple[str, int], api: tuple[str, int]) -> dict[str, Any]:
    scheme = "https" if settings.tls_cert else "http"
    told = founders_of(settings).get(peer.number, "") if settings.founders else ""
    link_text = told or address_text(settings.advertise or link[0], link[1])  # founders reach it as they were told
    api_text = f"{scheme}://{address_text(settings.advertise or api[0], api[1])}"
    peer.introduce(link=link_text, api=api_text)
    return {"event": "serving", "number": peer.number, "api": api_text, "link": link_text, "pid": os.getpid()}


async def _until_stopped(peer: Peer, stopping: asyncio.Event) -> int:
    assert peer.failed is not None
    waiting: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    failed: asyncio.Future[Any] = peer.failed
    await asyncio.wait({waiting, failed}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if peer.failed.done():
        log.error("%s", peer.failed.result())
        return 1
    return 0


# ---------------------------------------------------------------------- the folder


def claim_folder(settings: Settings) -> tuple[UUID, UUID, Folder, Book]:
    """Cluster, identity, locked folder and book of this peer; made anew for a founder or a joiner."""
    path = Path(settings.data)
    known = identity_of(path) if path.is_dir() else None
    if known is not None:
        return _reopen(path, settings, *known)
    founders = founders_of(settings)
    if not founders:
        return _join(path, settings)
    cluster = cluster_of(founders)
    identity = uuid4()
    folder = open_folder(path, cluster=cluster, peer=identity, create=True)
    with _released_on_error(folder):
        book = Book(folder.files)
        peers = {number: Known(number, link) for number, link in founders.items()}
        peers[settings.number] = Known(settings.number, founders[settings.number], identity.bytes)
        book.begin(settings.number, peers, tuple(sorted(founders)))
    return cluster, identity, folder, book


def cluster_of(founders: dict[int, str]) -> UUID:
    """Founders that were told the same addresses found the same cluster. One alone cannot be mistaken for another."""
    if len(founders) == 1:
        return uuid4()
    return uuid5(_NAMESPACE, ",".join(f"{number}={founders[number]}" for number in sorted(founders)))


def _reopen(path: Path, settings: Settings, cluster: UUID, identity: UUID) -> tuple[UUID, UUID, Folder, Book]:
    folder = open_folder(path, cluster=cluster, peer=identity)
    with _released_on_error(folder):
        book = Book(folder.files)
        if not book.number:
            raise FolderUnusable(
                f"{path} has an identity and no list of peers: its first start did not finish. Empty it"
            )
        told = founders_of(settings)
        if settings.founders and settings.number != book.number:
            raise FolderUnusable(
                f"{path} belongs to peer {book.number}, not to peer {settings.number}; nothing was changed. "
                "Start the right peer, or give it another folder"
            )
        for number, link in told.items() if settings.founders else ():
            known = book.peers.get(number)
            if known is not None and known.link != link:
                book.learn(msgspec.structs.replace(known, link=link))
    return cluster, identity, folder, book


def _join(path: Path, settings: Settings) -> tuple[UUID, UUID, Folder, Book]:
    path.mkdir(parents=True, exist_ok=True)
    strangers = set(os.listdir(path)) - {"joining"}
    if strangers:
        raise FolderUnusable(f"{path} is not empty ({sorted(strangers)[0]}); a peer joins with an empty folder")
    asked = path / "joining"
    identity = UUID(asked.read_text("ascii").strip()) if asked.exists() else uuid4()
    asked.write_text(f"{identity}\n", "ascii")
    place = ask_for_place(settings, identity)
    with contextlib.suppress(FileNotFoundError):
        asked.unlink()
    folder = open_folder(path, cluster=place.cluster, peer=identity, create=True)
    with _released_on_error(folder):
        book = Book(folder.files)
        peers = {peer.number: peer for peer in place.peers}
        book.begin(place.number, peers, ())
    return place.cluster, identity, folder, book


@contextlib.contextmanager
def _released_on_error(folder: Folder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        folder.close()
        raise
