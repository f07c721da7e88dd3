"""Status reports of pipelines, which they write to a queue of the cluster.

The status file in a checkpoint folder can only be read on that machine. The queue can be read from anywhere: by the
dashboard, `avow pipeline list --api` and scripts. About once per second, and at each change of state, a pipeline writes
a report to `avow.pipelines`, as JSON, with the pipeline's name as the key:

    {"name": "keep", "kind": "archive", "state": "running", "pid": 7, "host": "a", "started_s": ..., "at_s": ...,
     "rows": 100, "batches": 2, "batch_rows": 50, "batch_s": 0.4, "rows_per_s": 125.0, "lag": 0, "error": ""}

A report never delays the pipeline: `report` stores a status and returns, and a thread with its own event loop sends the
latest one. If sending fails, a warning is logged once and sending is retried later; the last report is retried for
`LAST_REPORT_S`. A report whose outcome is unknown may be stored twice; `at_s` identifies the repetition.

A process that is killed reports nothing. A pipeline that was running and has not reported for `SILENT_S` is therefore
listed as crashed. The queue removes reports after a day; a pipeline without reports is not listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from avow.client.client import Client, connect
from avow.client.descriptions import Retention
from avow.errors import AlreadyExists, UnknownQueue
from avow.limits import MIB, PIPELINES_QUEUE
from avow.spark.pipelines.spec import Cluster
from avow.spark.pipelines.status import Status

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient


LOG: Final = logging.getLogger("avow.spark")
REPORT_INTERVAL_S: Final = 1.0
RETRY_S: Final = 5.0
LAST_REPORT_S: Final = 2.0
SILENT_S: Final = 10.0
CALL_TIMEOUT_S: Final = 5.0
PENDING_MAX: Final = 8
ERROR_CHARS: Final = 1_000
ALIVE: Final = ("starting", "running")
KEPT: Final = Retention(age_s=24 * 3600, size_bytes=64 * MIB)


class Report(Struct, frozen=True, kw_only=True):
    """`rows` and `batches` are those of this run. `lag` is None if unknown. Times are seconds since 1970."""

    name: str
    kind: str
    state: str
    pid: int = 0
    host: str = ""
    started_s: float = 0.0
    at_s: float = 0.0
    rows: int = 0
    batches: int = 0
    batch_rows: int = 0
    batch_s: float = 0.0
    rows_per_s: float = 0.0
    lag: int | None = None
    error: str = ""


def report_of(status: Status, *, host: str, at_s: float) -> Report:
    """Pure."""
    counts = status.counts
    return Report(
        name=status.name,
        kind=status.kind,
        state=status.state,
        pid=status.pid,
        host=host,
        started_s=status.started_s,
        at_s=at_s,
        rows=counts.rows,
        batches=counts.batches,
        batch_rows=counts.batch_rows,
        batch_s=counts.batch_s,
        rows_per_s=counts.rows_per_s,
        lag=counts.lag,
        error=status.error[:ERROR_CHARS],
    )


@contextmanager
def reported(cluster: Cluster | None, queue: str) -> Iterator[Reporter | None]:
    """A Reporter, or None if no queue or cluster is given. At the end, the last report is sent or given up."""
    if cluster is None or not queue:
        yield None
        return
    reporter = Reporter(cluster, queue)
    try:
        yield reporter
    finally:
        reporter.close()


class Reporter:
    """`report` may be called from any thread and never blocks. Everything else runs on the event loop of one thread."""

    def __init__(self, cluster: Cluster, queue: str) -> None:
        self._cluster, self._queue = cluster, queue
        self._host = socket.gethostname()
        self._pending: deque[Report] = deque(maxlen=PENDING_MAX)
        self._last: Report | None = None  # the latest, sent or not
        self._warned = self._closing = self._closed = False
        self._client: Client | None = None
        self._retry_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="avow-pipeline-report", daemon=True)
        self._thread.start()

    def report(self, status: Status) -> None:
        if not self._closed:
            report = report_of(status, host=self._host, at_s=time.time())
            self._loop.call_soon_threadsafe(self._take, report)

    def close(self) -> None:
        """Returns when the last report is stored, or was retried for `LAST_REPORT_S`."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._finish)
            self._thread.join()

    # ------------------------------------------------------------------ on the loop

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.run_until_complete(self._disconnect())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _take(self, report: Report) -> None:
        """Each state is sent, but of one state only the latest report."""
        if self._pending and self._pending[-1].state == report.state:
            self._pending.pop()
        self._pending.append(report)
        if self._last is None or report.state != self._last.state:
            self._woken.set()
        self._last = report

    def _finish(self) -> None:
        self._closing = True
        self._retry_at = 0.0
        self._woken.set()
        self._loop.call_later(LAST_REPORT_S, self._task.cancel)

    async def _serve(self) -> None:
        while not (self._closing and not self._pending):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self._closing else REPORT_INTERVAL_S):
                    await self._woken.wait()
            self._woken.clear()
            self._repeat()
            if self._pending and self._loop.time() >= self._retry_at:
                await self._send_pending()

    def _repeat(self) -> None:
        """Repeat the last report, so that a run without news (Java starts, a job takes long) is not listed as
        crashed."""
        last = self._last
        if not self._pending and last is not None and last.state in ALIVE and not self._closing:
            self._pending.append(replace(last, at_s=time.time()))

    async def _send_pending(self) -> None:
        try:
            for _ in range(len(self._pending)):
                report = self._pending[0]
                await self._send(report)
                if self._pending and self._pending[0] is report:  # a later one of the same state may have replaced it
                    self._pending.popleft()
        except Exception as error:  # the boundary of this thread: a failed report must not stop the pipeline
            self._failed(error)

    async def _send(self, report: Report) -> None:
        if self._client is None:
            cluster = self._cluster
            self._client = await connect(
                cluster.servers, token=cluster.token or None, ca=cluster.ca or None, timeout_s=CALL_TIMEOUT_S
            )
        queue = self._client.queue(self._queue)
        value, key = msgspec.json.encode(report), report.name.encode()
        try:
            await queue.enqueue(value, key=key)
        except UnknownQueue:
            with contextlib.suppress(AlreadyExists):  # created meanwhile by another client with other settings
                await self._client.create_queue(self._queue, retention=KEPT)
            await queue.enqueue(value, key=key)
        self._warned = False

    def _failed(self, error: Exception) -> None:
        self._retry_at = self._loop.time() + (0.0 if self._closing else RETRY_S)
        if not self._warned:
            self._warned = True
            LOG.warning("cannot send status reports to queue %r, will retry: %s", self._queue, error)

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()


def read_reports(client: BlockingClient, queue: str = PIPELINES_QUEUE) -> list[Report]:
    """The last report of each pipeline, by name; empty if the queue does not exist. Raises the errors of a read."""
    found: dict[bytes, bytes] = {}
    try:
        for batch in client.queue(queue).read():
            found |= {message.key or b"": message.value for message in batch.messages()}
    except UnknownQueue:
        return []
    return marked_crashed(_decoded(found.values()), now_s=time.time())


def marked_crashed(reports: Iterable[Report], *, now_s: float) -> list[Report]:
    """Sorted by name; pipelines that were running and have been silent too long have the state "crashed". Pure."""
    silent = [
        replace(one, state="crashed") if one.state in ALIVE and now_s - one.at_s > SILENT_S else one for one in reports
    ]
    return sorted(silent, key=lambda one: one.name)


def _decoded(values: Iterable[bytes]) -> list[Report]:
    """Other clients may write to the queue, so values that are not reports are skipped."""
    found = []
    for value in values:
        try:
            found.append(msgspec.json.decode(value, type=Report))
        except msgspec.DecodeError:
            continue
    return found
