"""`avow serve`: starts a peer from its settings, and stops it.

    folder   opened if it exists (it holds the cluster id and the peer's number), created for a founder or a joiner
    store    loaded; the peer refuses to start if the folder's promises cannot be read
    peer     listens for links, then for the API; prints one line with its addresses on stdout

A joiner asks a member for a number before it creates its folder. It keeps its identity if it has to ask again.
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

from avow.errors import FolderUnusable, NotInstalled, PeerRemoved
from avow.server import installed

if not installed():
    raise NotInstalled("a peer", extra="server")

from avow.server.access import check_exposure, link_contexts, server_context
from avow.server.http.server import HttpServer
from avow.server.join import ask_to_join
from avow.server.links import Links
from avow.server.peer_registry import PATHS as REGISTRY
from avow.server.peer_registry import KnownPeer, PeerRegistry
from avow.server.process import Peer
from avow.server.settings import Settings, address, address_text, founders_of
from avow.storage.checkpoint import PATHS
from avow.storage.data_folder import JOINING, Folder, identity_of, make_folder, open_folder
from avow.storage.file_store import FileStore
from avow.storage.files import DiskFiles, Files, write_whole
from avow.storage.recovery import FOLDERS
from avow.storage.store import Sizes
from avow.wire.versions import NEWEST

log: Final = logging.getLogger("avow.server")

_NAMESPACE: Final = UUID("6f1e5a0e-2d7c-5b1e-9a53-4c1f2f0f8a11")
_SWITCH_INTERVAL_S: Final = 1e-5  # the sync thread must not wait 5 ms for the interpreter lock
_FILES_WANTED: Final = 65_536
_MALLOPT: Final = {-1: 64 * 1024 * 1024, -3: 32 * 1024 * 1024}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (its highest)
_SYNC_IN_PLACE_BELOW_S: Final = 1e-3  # switching to the sync thread and back costs much of that


def run(settings: Settings, sizes: Sizes = Sizes()) -> int:  # noqa: B008 - frozen
    """Runs until a signal or a failure. Returns the exit status."""
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
    """Keep up to 64 MiB of freed memory in the process. Returning the pages of large answers to the kernel, and getting
    them zeroed again, costs a third of a large read. Only glibc has the call."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOPT.items():
            libc.mallopt(parameter, value)


async def _serve(settings: Settings, sizes: Sizes) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    with _named("data folder", settings.data):
        cluster, identity, folder, registry = await asyncio.to_thread(claim_folder, settings)
    store = FileStore(
        folder.files,
        sizes=sizes,
        call_soon=loop.call_soon_threadsafe,
        in_place_below_s=_SYNC_IN_PLACE_BELOW_S,
        alone=registry.is_alone,
    )
    with _named("data folder", settings.data):
        image = await asyncio.to_thread(store.load)
    for flaw in [*folder.damage, *registry.damage, *image.damage]:
        log.warning("%s", flaw)
    peer = Peer(
        settings=settings,
        cluster=cluster,
        identity=identity,
        folder=folder,
        store=store,
        image=image,
        registry=registry,
    )
    accepting, dialling = link_contexts(settings)
    founders = founders_of(settings) if settings.founders else {}
    links = Links(
        peer, me=peer.number, addresses=peer.addresses, configured=founders, accepting=accepting, dialling=dialling
    )
    await peer.start(links)
    server = HttpServer(peer, settings, tls=server_context(settings))
    try:
        with _named("address peer_listen", settings.peer_listen):
            link = await links.listen(*address(settings.peer_listen, name="peer_listen"))
        with _named("address listen", settings.listen):
            api = await server.start()
        event = _introduce(peer, settings, link=link, api=api)
        if server.grpc_port:
            event["grpc"] = address_text(settings.advertise or api[0], server.grpc_port)
        gc.collect()
        gc.freeze()
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
        return await _until_stopped(peer, stopping)
    finally:
        await server.stop()
        await peer.stop()


@contextlib.contextmanager
def _named(what: str, which: str) -> Iterator[None]:
    """An error of the operating system becomes one line that names what cannot be used."""
    try:
        yield
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        raise FolderUnusable(
            f"the {what} {which} cannot be used: {error.strerror or error}{about}; this peer did not start. Correct "
            "the setting, or what stands there and its permissions"
        ) from error


def _introduce(peer: Peer, settings: Settings, *, link: tuple[str, int], api: tuple[str, int]) -> dict[str, Any]:
    scheme = "https" if settings.tls_cert else "http"
    configured = founders_of(settings).get(peer.number, "") if settings.founders else ""
    link_text = configured or address_text(settings.advertise or link[0], link[1])  # as the other founders have it
    api_text = f"{scheme}://{address_text(settings.advertise or api[0], api[1])}"
    peer.introduce(link=link_text, api=api_text)
    return {"event": "serving", "number": peer.number, "api": api_text, "link": link_text, "pid": os.getpid()}


async def _until_stopped(peer: Peer, stopping: asyncio.Event) -> int:
    assert peer.failed is not None
    waiting: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    failed: asyncio.Future[Any] = peer.failed
    await asyncio.wait({waiting, failed}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if peer.removed:
        log.warning("this process ends: %s. Its folder %s may be deleted", peer.removed, peer.settings.data)
        return 0
    if peer.failed.done():
        log.error("%s", peer.failed.result())
        return 1
    return 0


# ---------------------------------------------------------------------- data folder


def claim_folder(settings: Settings) -> tuple[UUID, UUID, Folder, PeerRegistry]:
    """Cluster, identity, locked folder and peer registry of this peer; created for a new founder or joiner.

    A first start that was cut off before the registry was written is begun again, under the same identity: nothing can
    have been promised, because the store comes after it.
    """
    path = Path(settings.data)
    known = identity_of(path) if path.is_dir() else None
    if known is not None and is_begun(DiskFiles(path)):
        return _reopen(path, settings, *known)
    founders = founders_of(settings)
    if not founders:
        return _join(path, settings, known)
    cluster = known[0] if known is not None and len(founders) == 1 else cluster_of(founders)
    identity = known[1] if known is not None else uuid4()
    folder = open_folder(path, cluster=cluster, peer=identity, create=True)
    with _released_on_error(folder):
        registry = PeerRegistry(folder.files)
        peers = {number: KnownPeer(number, link) for number, link in founders.items()}
        peers[settings.number] = KnownPeer(settings.number, founders[settings.number], identity.bytes)
        registry.begin(settings.number, peers, tuple(sorted(founders)))
    return cluster, identity, folder, registry


def is_begun(files: Files) -> bool:
    """Whether the first start got as far as the list of peers."""
    return not {*REGISTRY, *PATHS, *FOLDERS}.isdisjoint(files.names("."))


def cluster_of(founders: dict[int, str]) -> UUID:
    """Founders with the same list of addresses get the same cluster id. A single founder gets a random one."""
    if len(founders) == 1:
        return uuid4()
    return uuid5(_NAMESPACE, ",".join(f"{number}={founders[number]}" for number in sorted(founders)))


def _reopen(path: Path, settings: Settings, cluster: UUID, identity: UUID) -> tuple[UUID, UUID, Folder, PeerRegistry]:
    folder = open_folder(path, cluster=cluster, peer=identity)
    with _released_on_error(folder):
        registry = PeerRegistry(folder.files)
        if not registry.number:
            raise FolderUnusable(
                f"{path} has an identity and data but no list of peers: both copies of it are gone; nothing was "
                "changed. Bring one back, or remove this peer and let a new one join"
            )
        if (known := registry.peers.get(registry.number)) is not None and known.gone:
            raise PeerRemoved(f"{path}: {registry.refusal(registry.number)}. Nothing was changed")
        if registry.level > NEWEST:
            raise FolderUnusable(
                f"{path} belongs to a cluster that uses version {registry.level} of the protocol, and this release "
                f"reads up to {NEWEST}; nothing was changed. Start this peer with a newer release"
            )
        configured = founders_of(settings)
        if settings.founders and settings.number != registry.number:
            raise FolderUnusable(
                f"{path} belongs to peer {registry.number}, not to peer {settings.number}; nothing was changed. "
                "Correct `number`, or set `data` to the folder of this peer"
            )
        for number, link in configured.items() if settings.founders else ():
            known = registry.peers.get(number)
            if known is not None and known.link != link:
                registry.learn(msgspec.structs.replace(known, link=link))
    return cluster, identity, folder, registry


def _join(path: Path, settings: Settings, known: tuple[UUID, UUID] | None) -> tuple[UUID, UUID, Folder, PeerRegistry]:
    make_folder(path)
    files = DiskFiles(path)
    others = set(files.names(".")) - {JOINING, f"{JOINING}.new"}
    if others and known is None:
        raise FolderUnusable(
            f"{path} is not empty (it has {sorted(others)[0]}); a peer needs an empty folder to join a cluster"
        )
    asked = path / JOINING
    if known is not None:
        identity = known[1]
    elif asked.exists():
        identity = UUID(asked.read_text("ascii").strip())
    else:
        identity = uuid4()
        write_whole(files, f"{JOINING}.new", [f"{identity}\n".encode("ascii")])
        files.rename(old=f"{JOINING}.new", new=JOINING)
        files.sync_folder(".")
    assignment = ask_to_join(settings, identity)
    folder = open_folder(path, cluster=assignment.cluster, peer=identity, create=True)
    with _released_on_error(folder):
        registry = PeerRegistry(folder.files)
        peers = {peer.number: peer for peer in assignment.peers}
        registry.begin(assignment.number, peers, ())
        folder.files.remove(JOINING)
    return assignment.cluster, identity, folder, registry


@contextlib.contextmanager
def _released_on_error(folder: Folder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        folder.close()
        raise
