"""Checks of this machine: the data folder and its disk, the clock, resource limits. No check leaves a file behind."""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from avow.cli.doctor.finding import Finding
from avow.cli.output import size_text
from avow.errors import AvowError
from avow.limits import WAL_SEGMENT_SIZE_BYTES, WAL_SEGMENTS_MIN
from avow.storage.data_folder import identity_of

SPACE_NEEDED_BYTES: Final = (WAL_SEGMENTS_MIN + 1) * WAL_SEGMENT_SIZE_BYTES
SPACE_WANTED_BYTES: Final = 4_000_000_000
SYNCS: Final = 100
SYNC_TEST_S: Final = 1.0
SLOW_SYNC_MS: Final = 10.0
NO_SYNC_MS: Final = 0.01  # no disk syncs that fast: it is memory, or a disk that does not really sync
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs", "fuse.glusterfs"})
TIME_MIN_S: Final = 1_704_067_200  # 2024-01-01: a correct clock shows a later time
DRIFT_MS: Final = 5.0


# ---------------------------------------------------------------------- the data folder


def check_folder(data: Path) -> list[Finding]:
    """Checks the data folder, or the nearest existing folder above it."""
    place = data.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return [Finding("folder", "fail", f"{place} is not a folder", "choose a folder with --data")]
    if not os.access(place, os.W_OK | os.X_OK):
        return [
            Finding(
                "folder",
                "fail",
                f"{place} is not writable",
                "change its permissions or choose another --data folder",
            )
        ]
    return [_owner(data), _space(place), _filesystem(place), _sync_speed(place)]


def _owner(data: Path) -> Finding:
    if not data.exists():
        return Finding("folder", "ok", f"{data} will be created")
    try:
        known = identity_of(data)
    except AvowError as error:
        return Finding("folder", "fail", str(error), "keep it for inspection; let the peer rejoin with an empty folder")
    if known is not None:
        return Finding("folder", "ok", f"{data} belongs to peer {known[1].hex[:8]} of cluster {known[0].hex[:8]}")
    if any(data.iterdir()):
        inside = [path.name for path in sorted(data.iterdir()) if path.name.startswith("peer-") and path.is_dir()]
        if inside:
            return Finding("folder", "ok", f"{data} holds {', '.join(inside)} of a cluster started by avow up")
        return Finding(
            "folder", "warn", f"{data} is not empty but holds no peer", "choose an empty or new folder with --data"
        )
    return Finding("folder", "ok", f"{data} is empty")


def _space(place: Path) -> Finding:
    status = os.statvfs(place)
    return judge_space(status.f_bavail * status.f_frsize)


def judge_space(free: int) -> Finding:
    text = f"{size_text(free)} free"
    if free < SPACE_NEEDED_BYTES:
        needed = f"a peer needs {size_text(SPACE_NEEDED_BYTES)} to start: free some, or choose another --data folder"
        return Finding("space", "fail", text, needed)
    if free < SPACE_WANTED_BYTES:
        advice = "a peer without free space refuses writes: free some, or set retention rules for the queues"
        return Finding("space", "warn", text, advice)
    return Finding("space", "ok", text)


def _filesystem(place: Path) -> Finding:
    return judge_filesystem(*mount_of(place, _mounts()))


def judge_filesystem(kind: str, mounted: str) -> Finding:
    text = f"{kind} at {mounted}"
    if kind in VOLATILE:
        advice = "acknowledged messages are lost when the machine loses power; use a disk"
        return Finding("filesystem", "warn", f"{text} is in memory", advice)
    if kind in REMOTE:
        advice = "file locks and fdatasync may not be reliable there; use a local disk"
        return Finding("filesystem", "warn", f"{text} is a network file system", advice)
    return Finding("filesystem", "ok", text)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""


def mount_of(place: Path, mounts: str) -> tuple[str, str]:
    """Type and mount point of the file system that holds `place`. Of several at one mount point the last counts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, folder, name = line.split()[:3]
        folder = folder.replace("\\040", " ")
        if place.is_relative_to(folder) and len(folder) >= len(best):
            best, kind = folder, name
    return kind, best or str(place)


def _sync_speed(place: Path) -> Finding:
    """Measured as the log writes: into a file that is already allocated."""
    try:
        times_ms = _measured_syncs(place)
    except OSError as error:
        return Finding(
            "sync", "fail", f"fdatasync failed: {error.strerror}", "a peer cannot use this disk; choose another"
        )
    return judge_syncs(times_ms)


def judge_syncs(times_ms: list[float]) -> Finding:
    median = statistics.median(times_ms)
    text = f"fdatasync of 4 KiB: median {median:.2f} ms, worst {max(times_ms):.1f} ms of {len(times_ms)}"
    if median > SLOW_SYNC_MS:
        return Finding("sync", "warn", text, "every write waits for a sync: use a faster disk, or write larger batches")
    if median < NO_SYNC_MS:
        return Finding(
            "sync", "warn", text, "no disk syncs that fast: data may be lost in a power cut; use a disk that syncs"
        )
    return Finding("sync", "ok", text)


def _measured_syncs(place: Path) -> list[float]:
    block = bytes(4096)
    times_ms: list[float] = []
    with tempfile.TemporaryFile(dir=place, prefix=".avow-doctor-") as file:
        file.write(block * SYNCS)
        file.flush()
        os.fsync(file.fileno())
        until = time.perf_counter() + SYNC_TEST_S
        for index in range(SYNCS):
            os.pwrite(file.fileno(), block, index * len(block))
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - before) * 1000)
            if time.perf_counter() > until:
                break
    return times_ms


# ---------------------------------------------------------------------- clock and limits


def check_clock(*, over_s: float = 0.2) -> Finding:
    """Message ages and deadlines use the wall clock, timeouts between peers the monotonic one. Both should run at the
    same speed."""
    wall, steady = time.time(), time.monotonic()
    if wall < TIME_MIN_S:
        shown = time.strftime("%Y-%m-%d", time.gmtime(wall))
        return Finding("clock", "fail", f"the clock shows {shown}", "set it: retention by age depends on the clock")
    time.sleep(over_s)
    drift_ms = abs((time.time() - wall) - (time.monotonic() - steady)) * 1000
    text = f"wall clock and monotonic clock drifted by {drift_ms:.2f} ms in {over_s:g} s"
    if drift_ms > DRIFT_MS:
        return Finding("clock", "warn", text, "the clock is being stepped: use a time service that slews it instead")
    return Finding("clock", "ok", text)


def check_limits(*, connections: int) -> Finding:
    """`avow serve` raises the soft limit to the hard limit, so only the hard one matters."""
    return judge_limits(*resource.getrlimit(resource.RLIMIT_NOFILE), connections=connections)


def judge_limits(soft: int, hard: int, *, connections: int) -> Finding:
    needed = connections + 256  # links and segment files
    text = f"open files: soft limit {_limit(soft)}, hard limit {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        advice = f"a peer needs {needed:,}: raise the hard limit (ulimit -Hn) or lower --connections-max"
        return Finding("limits", "fail" if hard < 512 else "warn", text, advice)
    return Finding("limits", "ok", text)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"
