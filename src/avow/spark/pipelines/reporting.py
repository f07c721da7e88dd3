"""A pipeline tells how it is doing in a queue of the cluster, so that it can be read from anywhere.

A status file in a checkpoint's folder is seen by whoever sees that folder. A queue is seen by every peer's clients, and
survives all of them: the dashboard, `avow pipeline list --api` and scripts read it like any other. About once a second,
and at each change of state, a report goes to `avow.pipelines`, as JSON, with the pipeline's name as its key:

    {"name": "keep", "kind": "archive", "state": "running", "pid": 7, "host": "a", "started_s": ..., "at_s": ...,
     "rows": 100, "batches": 2, "batch_rows": 50, "batch_s": 0.4, "rows_per_s": 125.0, "lag": 0, "error": ""}

A report is worth less than a row: it never delays the pipeline. `tell` leaves a status behind and returns; a thread
with an event loop of its own sends the newest. What cannot be sent is warned of once and tried again later, a last word
for as long as `LAST_WORD_S`. A report may come twice, when nobody could say whether it was stored; `at_s` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from avow.client.client import Client, connect
from avow.client.metadata import Retention
from avow.errors import AlreadyExists, UnknownQueue
from avow.limits import MIB
from avow.spark.pipelines.spec import Cluster
from avow.spark.pipelines.status import Status

LOG: Final = logging.getLogger("avow.spark")
EVERY_S: Final = 1.0
AGAIN_S: Final = 5.0
LAST_WORD_S: Final = 2.0
CALL_S: Final = 5.0
PENDING_MAX: Final = 8
ERROR_CHARS: Final = 1_000
ALIVE: Final = ("starting", "running")
KEPT: Final = Retention(age_s=24 * 3600, size_bytes=64 * MIB)


class Report(Struct, frozen=True, kw_only=True):
    """`rows` and `batches` are those of this run. `lag` None: not known. Times are seconds since 1970."""

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
    """Somebody to tell; None where no queue or no cluster is named. The last word has been sent, or given up, after."""
    if cluster is None or not queue:
        yield None
        return
    reporter = Reporter(cluster, queue)
    try:
        yield reporter
    finally:
        reporter.close()


class Reporter:
    """`tell` may be called from any thread, and never waits. Everything else happens on the loop of one thread."""

    def __init__(self, cluster: Cluster, queue: str) -> None:
        self._cluster, self._queue = cluster, queue
        self._host = socket.gethostname()
        self._pending: deque[Report] = deque(maxlen=PENDING_MAX)
        self._last: Report | None = None  # what was told last
        self._warned = self._closing = self._closed = False
        self._client: Client | None = None
        self._again_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._task = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="avow-pipeline-report", daemon=True)
        self._thread.start()

    def tell(self, status: Status) -> None:
        if not self._closed:
            report = report_of(status, host=self._host, at_s=time.time())
            self._loop.call_soon_threadsafe(self._take, report)

    def close(self) -> None:
        """Returns when the last word is stored, or was tried for `LAST_WORD_S`."""
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
        """Of one state only the newest is worth sending; each state is."""
        if self._pending and self._pending[-1].state == report.state:
            self._pending.pop()
        self._pending.append(report)
        if self._last is None or report.state != self._last.state:
            self._woken.set()
        self._last = report

    def _finish(self) -> None:
        self._closing = True
        self._again_at = 0.0
        self._woken.set()
        self._loop.call_later(LAST_WORD_S, self._task.cancel)

    async def _serve(self) -> None:
        while not (self._closing and not self._pending):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self._closing else EVERY_S):
                    await self._woken.wait()
            self._woken.clear()
            self._repeat()
            if self._pending and self._loop.time() >= self._again_at:
                await self._send_pending()

    def _repeat(self) -> None:
        """A run that has nothing new to tell, while Java starts or a job takes its time, is alive all the same."""
        last = self._last
        if not self._pending and last is not None and last.state in ALIVE and not self._closing:
            self._pending.append(replace(last, at_s=time.time()))

    async def _send_pending(self) -> None:
        try:
            for _ in range(len(self._pending)):
                report = self._pending[0]
                await self._send(report)
                if self._pending and self._pending[0] is report:  # or a newer one of the same state took its place
                    self._pending.popleft()
        except Exception as error:  # the boundary of this thread: a report is never a reason to stop
            self._failed(error)

    async def _send(self, report: Report) -> None:
        if self._client is None:
            cluster = self._cluster
            self._client = await connect(
                cluster.servers, token=cluster.token or None, ca=cluster.ca or None, timeout_s=CALL_S
            )
        queue = self._client.queue(self._queue)
        value, key = msgspec.json.encode(report), report.name.encode()
        try:
            await queue.enqueue(value, key=key)
        except UnknownQueue:
            with contextlib.suppress(AlreadyExists):  # with other rules, made by somebody else at the same moment
                await self._client.create_queue(self._queue, retention=KEPT)
            await queue.enqueue(value, key=key)
        self._warned = False

    def _failed(self, error: Exception) -> None:
        self._again_at = self._loop.time() + (0.0 if self._closing else AGAIN_S)
        if not self._warned:
            self._warned = True
            LOG.warning("reports to queue %r are not sent, and tried again: %s", self._queue, error)

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
