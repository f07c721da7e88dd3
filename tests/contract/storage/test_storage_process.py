"""Threads and processes: syncs are shared, callbacks run where they should, a failed sync ends the process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest
from tests.contract.storage.storage_workload import TINY, entry, ignore

from avow.replication.durable import Synced
from avow.replication.effects import SaveEntries, SaveState
from avow.storage.file_store import FileStore
from avow.storage.files import DiskFiles
from avow_lab.simulator.power_cut import RecordedFiles


class Ended(Exception):
    pass


def test_concurrent_writers_share_syncs_and_each_gets_its_callback(tmp_path: Path) -> None:
    store = FileStore(DiskFiles(tmp_path))
    store.load()
    synced = [0] * 16

    def write_in_turn(lane: int) -> None:
        for position in range(1, 31):
            durable = threading.Event()
            store.write([SaveEntries(lane, (entry(position),))], lambda receipt, durable=durable: durable.set())  # type: ignore[misc]
            assert durable.wait(20)
            synced[lane] += 1

    writers = [threading.Thread(target=write_in_turn, args=(lane,)) for lane in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = store.statistics()
    store.close()
    assert synced == [30] * 16
    assert found.writes == 480
    assert found.syncs < found.writes / 2
    again = FileStore(DiskFiles(tmp_path), background=False)
    assert all(len(lane.entries) == 30 for lane in again.load().lanes.values())
    again.close()


def test_a_group_is_one_sync_of_one_file() -> None:
    files = RecordedFiles()
    store = FileStore(files, sizes=TINY, background=False)
    store.load()
    before = files.syncs
    for position in range(1, 31):
        store.write([SaveEntries(1, (entry(position),)), SaveState(2, position, position)], ignore)
    store.sync()
    assert files.syncs == before + 1


def test_callbacks_run_where_call_soon_puts_them(tmp_path: Path) -> None:
    inbox: SimpleQueue[object] = SimpleQueue()
    store = FileStore(DiskFiles(tmp_path), sizes=TINY, call_soon=inbox.put)
    store.load()
    ran: list[tuple[Synced, int]] = []
    store.write([SaveState(1, 1, 1)], lambda receipt: ran.append((receipt, threading.get_ident())))
    callback = inbox.get(timeout=20)
    assert ran == []
    assert callable(callback)
    callback()
    assert ran[0][1] == threading.get_ident()
    store.close()


def test_the_log_reuses_its_segments_while_a_thread_checkpoints_behind_it(tmp_path: Path) -> None:
    store = FileStore(DiskFiles(tmp_path), sizes=TINY)
    store.load()
    last = threading.Event()
    for position in range(1, 401):
        then = (lambda receipt: last.set()) if position == 400 else ignore
        store.write([SaveEntries(position % 5, (entry((position + 4) // 5, size=60),))], then)
    assert last.wait(30)
    store.close()
    again = FileStore(DiskFiles(tmp_path), sizes=TINY, background=False)
    assert [len(lane.entries) for lane in again.load().lanes.values()] == [80] * 5
    again.close()


def test_a_failed_sync_is_final_and_nothing_is_acknowledged() -> None:
    files = RecordedFiles()
    seen: list[BaseException] = []

    def fatal(error: BaseException) -> NoReturn:
        seen.append(error)
        raise Ended

    store = FileStore(files, sizes=TINY, background=False, fatal=fatal)
    store.load()
    synced: list[Synced] = []
    store.write([SaveState(1, 1, 1)], synced.append)
    files.sync_error = OSError(errno.EIO, "the disk said no")
    with pytest.raises(Ended):
        store.sync()
    assert synced == []
    assert [error.errno for error in seen if isinstance(error, OSError)] == [errno.EIO]


@pytest.mark.parametrize("moment", ["going round", "closing"])
def test_a_failed_sync_of_a_lane_file_is_final_too(moment: str) -> None:
    files = RecordedFiles()
    seen: list[BaseException] = []

    def fatal(error: BaseException) -> NoReturn:
        seen.append(error)
        raise Ended

    def fail_behind_the_log() -> None:
        unsynced = {event.path for event in files.events() if event.what == "write"}
        if any(path.startswith("lanes/") for path in unsynced) and not any(
            path.startswith("wal/") for path in unsynced
        ):
            files.sync_error = OSError(errno.EIO, "the disk said no")

    store = FileStore(files, sizes=TINY, background=False, fatal=fatal)
    store.load()
    files.before_sync = fail_behind_the_log
    with pytest.raises(Ended):
        _write_and_close(store, 40 if moment == "going round" else 1)
    assert [error.errno for error in seen if isinstance(error, OSError)] == [errno.EIO]


def _write_and_close(store: FileStore, count: int) -> None:
    for position in range(1, count + 1):
        store.write([SaveEntries(1, (entry(position),))], ignore)
        store.sync()
    store.close()


SCRIPT = """
import errno, sys, threading
from pathlib import Path
from avow.replication.effects import SaveEntries, SaveState
from avow.storage.files import DiskFiles
from avow.storage.file_store import FileStore
from avow.wire.messages import Entry

class Failing(DiskFiles):
    broken = False
    def sync(self, handle):
        if Failing.broken:
            raise OSError(errno.EIO, "the disk said no")
        super().sync(handle)

store = FileStore(Failing(Path(sys.argv[1])))
store.load()
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
first = threading.Event()
store.write([SaveState(1, 7, 7)], lambda receipt: first.set())
first.wait(20)
say("acknowledged 1")
if sys.argv[2] == "fail":
    Failing.broken = True
    store.write([SaveState(1, 8, 8)], lambda receipt: say("acknowledged 2"))
    threading.Event().wait(20)
position = 0
while True:
    position += 1
    durable = threading.Event()
    store.write([SaveEntries(2, (Entry(position, 1, 1, 1, b"", 0, b"", b"x" * 500),))], lambda receipt: durable.set())
    durable.wait(20)
    say(str(position))
"""


def test_a_process_whose_sync_fails_ends_with_a_clear_line_and_acknowledges_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "fail"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 70
    assert ended.stdout == "acknowledged 1\n"
    assert "storage failed" in ended.stderr
    assert "the disk said no" in ended.stderr
    again = FileStore(DiskFiles(tmp_path), background=False)
    assert again.load().lanes[1].promised in (7, 8)
    again.close()


def test_a_killed_process_leaves_everything_it_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "go"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(60)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    acknowledged = int(lines[-1])
    again = FileStore(DiskFiles(tmp_path), background=False)
    image = again.load()
    again.close()
    assert image.lanes[1].promised == 7
    assert acknowledged <= len(image.lanes[2].entries) <= acknowledged + 1
    assert image.damage == []


def test_on_a_fast_disk_the_writer_syncs_and_is_called_back_before_it_continues(tmp_path: Path) -> None:
    elsewhere: list[object] = []
    store = FileStore(DiskFiles(tmp_path), call_soon=elsewhere.append, in_place_below_s=60.0)
    store.load()
    synced: list[tuple[int, int]] = []
    for position in range(1, 6):
        here = threading.get_ident()
        done = partial(lambda p, _: synced.append((p, threading.get_ident())), position)
        store.write([SaveEntries(1, (entry(position),))], done)
        assert synced[-1] == (position, here)
    assert not elsewhere
    assert store.statistics().syncs == 5
    store.close()


def test_a_write_never_overtakes_one_in_the_sync_thread(tmp_path: Path) -> None:
    """The disk seems slow and quick in turn: some writes go to the thread, some are synced in place."""
    store = FileStore(DiskFiles(tmp_path), in_place_below_s=60.0)
    store.load()
    synced: list[int] = []
    done = threading.Event()
    for position in range(1, 301):
        store._sync_s = 100.0 if position % 3 == 0 else 0.0
        last = position == 300

        def written(receipt: Synced, position: int = position, last: bool = last) -> None:
            synced.append(position)
            if last:
                done.set()

        store.write([SaveEntries(1, (entry(position),))], written)
    assert done.wait(20)
    assert synced == list(range(1, 301))
    store.close()
    again = FileStore(DiskFiles(tmp_path))
    assert len(again.load().lanes[1].entries) == 300
    again.close()
