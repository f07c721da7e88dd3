"""The testbed: peers, the network between them, and where possible a file system for each.

As root, every peer's folder is a small file system in memory that can be filled up. Otherwise that fault is left out,
and the verdict says so. Kills need no file system: what a killed process wrote stays in the page cache.

The client asks any peer. To find out whether peers agree, each must be asked by itself, at level `local`: `PeerApi`.

All calls block, some for seconds; an event loop makes them through `asyncio.to_thread`.
"""

from __future__ import annotations

import errno
import os
import shutil
import ssl
import subprocess
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from avow.client.client import Client, connect
from avow.errors import Malformed, Offline
from avow.limits import MIB, WAL_SEGMENT_SIZE_BYTES, WAL_SEGMENTS_MIN
from avow.testing.cluster import wait_until
from avow.testing.cluster_process import SERVE
from avow.transport.blocking import connection_to
from avow.wire.batch import Batch
from avow.wire.http import Answer, Lost
from avow.wire.ranges import CONTENT_TYPE, Range, parse_ranges
from avow_lab.campaigns.harness.peer_program import stall_signal
from avow_lab.campaigns.peers.history import FinalLane, codes_of
from avow_lab.campaigns.peers.namespaces import NamespaceNetwork
from avow_lab.campaigns.peers.network import Network, ProxyNetwork

# ---------------------------------------------------------------------- requests to one given peer

READ_TIMEOUT_S: Final = 60.0  # a damaged lane may be under repair
_READ_BYTES_MAX: Final = 1 << 20


class PeerApi:
    """A keep-alive connection to one peer. One thread at a time may use it."""

    def __init__(self, url: str, *, timeout_s: float = 20.0, token: str = "", ca: str = "") -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        trust = ssl.create_default_context(cafile=ca or None) if url.startswith("https:") else None
        self._connection = connection_to(url, tls=trust, connect_timeout_s=timeout_s)

    def __enter__(self) -> PeerApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, *, accept: str = "application/json", body: bytes = b"") -> Answer:
        """Returns a successful answer. Raises Offline for any other."""
        headers = {"Accept": accept, **({"Content-Type": "application/json"} if body else {}), **self._headers}
        answer = self._connection.request(method, path, headers=headers, body=body, timeout_s=self._timeout_s)
        if isinstance(answer, Lost):
            raise Offline(f"{self.url} did not answer {method} {path}: {answer.reason}")
        if not answer.ok:
            raise Offline(f"{self.url} answered {method} {path} with {answer.status}: {bytes(answer.body[:300])!r}")
        return answer

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.ask("GET", path).body)

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/queues/{quote(name, safe='')}")
        return found

    def read_lane(self, peer: int, queue: str, lane: int, *, timeout_s: float = READ_TIMEOUT_S) -> FinalLane:
        """The whole lane as this peer shows it. If it cannot show all in time, `unreadable` says why."""
        final = FinalLane(peer, queue, lane, array("q"), {})
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._continue(final)
            except Offline as error:
                if time.monotonic() > deadline:
                    final.unreadable = str(error)
                    return final
                time.sleep(0.5)
            else:
                return final

    def _continue(self, final: FinalLane) -> None:
        while True:
            path = f"/v1/queues/{quote(final.queue, safe='')}/messages?lane={final.lane}&after={len(final.codes)}"
            answer = self.ask("GET", f"{path}&max=65536&max_bytes={_READ_BYTES_MAX}", accept=CONTENT_TYPE)
            before, end = len(final.codes), answer.number(b"avow-end")
            if end is None:
                raise Offline(f"{self.url} answered without the end of lane {final.lane} of {final.queue}")
            try:
                for found in parse_ranges(memoryview(answer.body)):
                    _take(final, found)
            except Malformed as wrong:
                raise Offline(
                    f"{self.url} answered with ranges that are wrong after {len(final.codes)}: {wrong}"
                ) from wrong
            if len(final.codes) >= end:
                return
            if len(final.codes) == before:
                raise Offline(f"{self.url} says that the lane ends at {end}, and shows nothing after {before}")


def _take(final: FinalLane, found: Range) -> None:
    if found.first_version != len(final.codes) + 1:
        raise Offline(
            f"peer {final.peer} shows version {found.first_version} of lane {final.lane} of {final.queue} "
            f"after {len(final.codes)}"
        )
    values = [bytes(value) for value in Batch(found.record).values()[found.offset : found.offset + found.count]]
    codes = codes_of(values)
    final.codes.extend(codes)
    if min(codes) < 0:
        final.strange.update({code: repr(value[:60]) for code, value in zip(codes, values, strict=True) if code < 0})


# ---------------------------------------------------------------------- the testbed

DISK_BYTES: Final = (WAL_SEGMENTS_MIN + 1) * WAL_SEGMENT_SIZE_BYTES + 192 * MIB
RECOVERY_S: Final = 45.0
REFUSAL_S: Final = 4.0
_BALLAST: Final = "ballast"


class Testbed:
    """`close` ends processes and proxies, and removes mounts. It must be called in any case."""

    def __init__(self, *, peers: int, folder: Path, network: str) -> None:
        self.folder = folder
        self.network: Network = NamespaceNetwork(self.folder) if network == "namespaces" else ProxyNetwork(self.folder)
        try:
            self.cluster = self.network.cluster(peers)
        except BaseException:
            self.network.close()
            raise
        self.members = set(self.cluster.founders)
        self._mounts: list[Path] = []
        self.disks_note = ""
        self._joined = 0

    # ------------------------------------------------------------------ beginning and end

    def start(self) -> None:
        for number in self.cluster.founders:
            self._mount_disk(self.cluster.data(number))
        self.cluster.start()

    def close(self) -> None:
        self.cluster.close()
        self.network.close()
        for mount in self._mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)

    def _mount_disk(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            self.disks_note = "only root can fill disks up: it takes a file system for each peer"
            return
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0750", "avow-prove", str(path)],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode:
            self.disks_note = f"a file system for each peer could not be mounted: {made.stderr.strip()}"
        else:
            self._mounts.append(path)

    # ------------------------------------------------------------------ members

    def add(self) -> int:
        """A new peer joins, behind the same network as the others. Returns its number when it votes."""
        self._joined += 1
        folder = self.folder / f"joined-{self._joined}"
        self._mount_disk(folder)
        number = self.network.add(self.cluster, folder)
        self.members.add(number)
        self.cluster.wait_ready(number)
        self._wait_state(number, lambda peer: bool(peer.get("voter")), "votes")
        return number

    def remove(self, number: int) -> None:
        """Remove a peer from the cluster, then stop its process, which may have ended before."""
        with self.api(self.ready_member(but=number)) as api:
            api.ask("DELETE", f"/v1/peers/{number}")
        self._wait_state(number, lambda peer: peer["state"] == "gone", "is gone")
        self.members.discard(number)
        self.cluster.stop(number)

    def _wait_state(self, number: int, wanted: Callable[[dict[str, Any]], bool], what: str) -> None:
        def seen() -> bool:
            try:
                with self.api(self.ready_member(but=number)) as api:
                    peers = api.get("/v1/peers")["peers"]
            except Offline:
                return False
            return any(peer["number"] == number and wanted(peer) for peer in peers)

        wait_until(seen, timeout_s=RECOVERY_S, what=f"peer {number} {what}")

    def empty(self, number: int) -> None:
        """Stop a peer, empty its folder, and start it again under its old number."""
        self.cluster.stop(number)
        for path in self.cluster.data(number).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.cluster.process(number).start()

    def refused(self, number: int) -> str:
        """How a peer was refused; empty when it becomes ready or another peer accepts its link within some seconds."""
        deadline = time.monotonic() + REFUSAL_S
        while time.monotonic() < deadline:
            if not self.cluster.process(number).alive:
                return f"its process ended: {self.cluster.process(number).log_tail()}"
            if self.cluster.ready(number):
                return ""
            time.sleep(0.1)
        for other in sorted(self.members - {number}):
            with self.api(other) as api:
                peers = api.get("/v1/peers")["peers"]
            if any(peer["number"] == number and peer.get("connected") for peer in peers):
                return ""
        return f"not ready, and connected to no other peer, for {REFUSAL_S:g} s"

    def start_wiped(self, numbers: Iterable[int]) -> None:
        """Start these peers, which are down, on empty folders, as if their volumes were not mounted."""
        for number in numbers:
            self.cluster.process(number).flags["data"] = str(self.folder / f"wiped-{number}")
            self.cluster.restart(number, ready=False)

    def founded(self, numbers: Sequence[int]) -> str:
        """What these peers did in some seconds that only members of a running cluster do; empty: nothing."""
        deadline = time.monotonic() + REFUSAL_S
        while time.monotonic() < deadline:
            for number in numbers:
                if self.cluster.ready(number):
                    return f"peer {number} says that it is ready"
            time.sleep(0.1)
        body = msgspec.json.encode({"name": "wiped"})
        for number in numbers:
            try:
                with self.api(number) as api:
                    api.ask("POST", "/v1/queues", body=body)
            except Offline:
                continue
            return f"peer {number} created a queue"
        return ""

    def stop_wiped(self, numbers: Iterable[int]) -> None:
        """Their folders are back at the next start."""
        for number in numbers:
            self.cluster.kill(number)
            shutil.rmtree(self.cluster.process(number).flags.pop("data"), ignore_errors=True)

    # ------------------------------------------------------------------ asking

    async def connect(self, *, timeout_s: float) -> Client:
        """A client that knows all peers; must be closed."""
        cluster = self.cluster
        urls = ",".join(self.network.client_url(cluster.api(number)) for number in sorted(cluster.processes))
        return await connect(urls, token=cluster.token or None, ca=cluster.ca or None, timeout_s=timeout_s)

    @property
    def stalls(self) -> bool:
        return tuple(self.cluster.program) != SERVE

    def stall(self, number: int, seconds: int) -> None:
        self.cluster.process(number).signal(stall_signal(seconds))

    def api(self, number: int) -> PeerApi:
        return PeerApi(self.cluster.api(number), token=self.cluster.token, ca=self.cluster.ca)

    def ready_member(self, *, but: int = 0) -> int:
        """A running member that is ready."""
        running = [n for n in self.cluster.running if n in self.members and n != but]
        for number in running:
            if self.cluster.ready(number):
                return number
        raise Offline(f"none of the peers {running} is ready")

    def coordinator(self, queue: str, index: int) -> int:
        """The coordinator of a two-phase lane; 0 when none is known."""
        with self.api(self.ready_member()) as api:
            return int(api.queue(queue)["lanes"][index]["coordinator"] or 0)

    def whole(self, *, but: int = 0) -> str:
        """What is missing until every member but this one runs, is ready, and holds everything; empty: nothing."""
        for number in sorted(self.members - {but}):
            if not self.cluster.process(number).alive:
                return f"peer {number} does not run"
            if not self.cluster.ready(number):
                return f"peer {number} is not ready"
            with self.api(number) as api:
                status = api.get("/v1/cluster")
            behind = [
                lane["number"]
                for lane in status["lanes"]
                if lane.get("repairing") or not lane.get("whole", True) or lane.get("applied", 0) < _known(lane)
            ]
            if status.get("metadata", {}).get("repairing"):
                behind.append(0)
            if behind:
                return f"peer {number} is behind in lanes {behind[:6]}"
        return ""

    def wait_whole(self, timeout_s: float = RECOVERY_S, *, but: int = 0) -> str:
        """Waits for it. What is missing then, as `whole` says it."""
        deadline = time.monotonic() + timeout_s
        missing = "not checked"
        while time.monotonic() < deadline:
            try:
                missing = self.whole(but=but)
            except Offline as error:
                missing = str(error)
            if not missing:
                return ""
            time.sleep(0.1)
        return missing

    def unreadable(self, number: int) -> str:
        """Reads everything that a peer holds. The first entry that it cannot read after retries; empty: none."""
        with self.api(number) as api:
            for queue in api.get("/v1/queues")["queues"]:
                for lane in queue["lanes"]:
                    found = api.read_lane(number, queue["name"], lane["lane"])
                    if found.unreadable:
                        where = f"lane {lane['lane']} of {queue['name']} after version {len(found.codes)}"
                        return f"{where}: {found.unreadable}"
        return ""

    # ------------------------------------------------------------------ disks

    @property
    def fillable(self) -> bool:
        return len(self._mounts) > 0 and not self.disks_note

    def fill(self, number: int) -> int:
        """Take all free bytes of this peer's disk, which it may be writing to meanwhile. Returns how many."""
        path = self.cluster.data(number) / _BALLAST
        room = os.statvfs(path.parent)
        taken, step = 0, room.f_bavail * room.f_frsize
        with path.open("wb") as file:
            while step >= room.f_frsize:
                try:
                    os.posix_fallocate(file.fileno(), taken, step)
                    taken += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
        return taken

    def unfill(self, number: int) -> None:
        (self.cluster.data(number) / _BALLAST).unlink(missing_ok=True)


def _known(lane: dict[str, Any]) -> int:
    """How far a lane must be applied to count as up to date. Writes go on meanwhile, hence the margin."""
    return int(lane.get("known_committed", 0)) - 50
