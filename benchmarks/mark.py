"""What the mark of the log costs, by when it is synced (`docs/decisions/0025-the-mark-of-the-log.md`).

    none       no mark, as the release before
    written    written after the log's sync, and synced when the log rests: as shipped
    parallel   the mark of the group before is synced in two threads while the log is
    before     the mark is synced before the group's acknowledgements leave

One writer, groups of one message of 100 bytes, one after the other: the time and the processor time of a group. The
arms take turns in short rounds on the same disk, because a disk drifts by tens of percent between minutes; the claim is
the ratio to `none` in the same round. Run with `python -m benchmarks mark`. Files go to ./.bench and are removed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from avow.replication.durable import Synced
from avow.replication.effects import SaveEntries
from avow.storage.file_store import FileStore
from avow.storage.files import DiskFiles
from avow.storage.sync_mark import SyncMark
from avow.wire.messages import Entry, Kind

ROUNDS: Final = 25
GROUPS: Final = 300
ARMS: Final = ("none", "written", "parallel", "before")
_BODY: Final = bytes(100)


class NoMark:
    """Stands where a store keeps its mark."""

    dirty = False

    def saw(self, op: object) -> None: ...
    def write(self, *, lsn: int, segment: int, offset: int, epoch: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class SyncedBefore:
    def __init__(self, mark: SyncMark) -> None:
        self._mark = mark
        self.saw, self.sync, self.close = mark.saw, mark.sync, mark.close

    @property
    def dirty(self) -> bool:
        return self._mark.dirty

    def write(self, *, lsn: int, segment: int, offset: int, epoch: int) -> None:
        self._mark.write(lsn=lsn, segment=segment, offset=offset, epoch=epoch)
        self._mark.sync()


def opened(root: Path, arm: str) -> FileStore:
    root.mkdir(parents=True)
    store = FileStore(DiskFiles(root), background=False)
    store.load()
    wal, mark = store._wal, store._mark
    assert wal is not None
    assert mark is not None
    if arm == "none":
        wal._mark = store._mark = NoMark()  # type: ignore[assignment]
    elif arm == "before":
        wal._mark = store._mark = SyncedBefore(mark)  # type: ignore[assignment]
    return store


def round_of(store: FileStore, arm: str, position: int, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Median time and mean processor time of a group, in µs."""
    times: list[float] = []
    cpu = time.process_time()
    for number in range(position, position + GROUPS):
        entry = Entry(number, 1, Kind.DATA, 1, bytes(16), 7, b"", _BODY)
        start = time.perf_counter()
        store.write([SaveEntries(1, (entry,))], _ignore)
        if arm == "parallel":
            assert store._mark is not None
            also = pool.submit(store._mark.sync)
            store.sync()
            also.result()
        else:
            store.sync()
        times.append(time.perf_counter() - start)
    spent = time.process_time() - cpu
    store.rest()
    return statistics.median(times) * 1e6, spent / GROUPS * 1e6


def measure(say: Callable[[str], None] = print) -> dict[str, dict[str, float]]:
    root = Path(".bench") / "mark"
    shutil.rmtree(root, ignore_errors=True)
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    with ThreadPoolExecutor(1) as pool:
        stores = {arm: opened(root / arm, arm) for arm in ARMS}
        try:
            for number in range(ROUNDS):
                turn = number % len(ARMS)
                for arm in (*ARMS[turn:], *ARMS[:turn]):
                    found[arm].append(round_of(stores[arm], arm, 1 + number * GROUPS, pool))
        finally:
            for store in stores.values():
                store.close()
            shutil.rmtree(root, ignore_errors=True)
    figures = {}
    for arm in ARMS:
        p50, cpu = (statistics.median(values) for values in zip(*found[arm], strict=True))
        slower = statistics.median(mine[0] / base[0] for mine, base in zip(found[arm], found["none"], strict=True))
        dearer = statistics.median(mine[1] / base[1] for mine, base in zip(found[arm], found["none"], strict=True))
        figures[arm] = {"p50_us": p50, "cpu_us": cpu, "p50_ratio": slower, "cpu_ratio": dearer}
        say(f"{arm:9} p50 {p50:7.1f} µs (x {slower:.2f})   CPU {cpu:6.1f} µs (x {dearer:.2f})")
    return figures


def main(arguments: list[str]) -> int:  # noqa: ARG001
    figures = measure()
    Path(".bench").mkdir(exist_ok=True)
    (Path(".bench") / "mark.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _ignore(receipt: Synced) -> None:
    """The loop waits for the sync itself."""
