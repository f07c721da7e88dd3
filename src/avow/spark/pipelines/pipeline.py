"""A running pipeline, as returned by `archive`, `transform` and `replay`.

    pipeline = archive(spark, spec)
    pipeline.counts()                  its progress
    pipeline.stop(); pipeline.wait()   True when it has ended; raises PipelineFailed if it failed

Each pipeline has one thread. That of a stream watches the query: it adds up the batches and does the work after a batch
(an archive trims). That of a job runs the job. If peers refuse the work after a batch, a warning is logged and the work
is retried after the next batch; the stream continues.

Spark's own `stop` interrupts the batch that is being written. This loses and doubles nothing, but the batch must be
repeated. So `stop` here first waits for the end of the batch, at most `patience_s` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from avow.errors import AvowError
from avow.spark.pipelines.failures import PipelineFailed, failed
from avow.spark.pipelines.progress import Counts, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG: Final = logging.getLogger("avow.spark")
POLL_S: Final = 0.25
STOP_TIMEOUT_S: Final = 60.0


class Pipeline(Protocol):
    name: str

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended. Raises PipelineFailed."""

    def stop(self, *, patience_s: float = STOP_TIMEOUT_S) -> None:
        """Returns when the pipeline has ended."""

    def counts(self) -> Counts: ...


class StreamPipeline:
    """`after_batch` returns how many versions it trimmed."""

    def __init__(self, query: StreamingQuery, *, name: str, after_batch: Callable[[], int] | None = None) -> None:
        self.query, self.name = query, name
        self._after_batch = after_batch
        self._counts = Counts()
        self._failure: PipelineFailed | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"avow-pipeline-{name}", daemon=True)
        self._thread.start()

    def counts(self) -> Counts:
        return self._counts

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self, *, patience_s: float = STOP_TIMEOUT_S) -> None:
        before, until = self._counts.batches, time.monotonic() + patience_s
        while not self._ended.is_set() and time.monotonic() < until:
            if self._counts.batches > before or not self.query.status["isTriggerActive"]:
                break
            self._ended.wait(POLL_S)
        self.query.stop()
        self._ended.wait()

    def _watch(self) -> None:
        try:
            while not self.query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                self._poll()
            self._poll()
            self._finish_batch()
        except Exception as error:  # the boundary of this thread
            self._failure = failed(self.name, error)
            self.query.stop()
        finally:
            self._ended.set()

    def _poll(self) -> None:
        before = self._counts
        self._counts = counted(before, self.query.recentProgress)
        if self._counts.batches > before.batches:
            self._finish_batch()

    def _finish_batch(self) -> None:
        if self._after_batch is None:
            return
        try:
            trimmed = self._after_batch()
        except AvowError as error:
            LOG.warning("pipeline %s: trimming after a batch failed, will retry after the next: %s", self.name, error)
            return
        self._counts = replace(self._counts, trimmed=self._counts.trimmed + trimmed)


class JobPipeline:
    """`work` writes everything and returns the number of rows, or None if it was done before."""

    def __init__(self, spark: SparkSession, work: Callable[[], int | None], *, name: str) -> None:
        from pyspark import InheritableThread

        self.name = name
        self._spark, self._work = spark, work
        self._group = f"avow-pipeline-{uuid.uuid4().hex}"
        self._counts = Counts()
        self._failure: PipelineFailed | None = None
        self._stopped = False
        self.was_done_before = False
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._run, name=f"avow-pipeline-{name}", daemon=True)
        self._thread.start()

    def counts(self) -> Counts:
        if self._ended.is_set():
            return self._counts
        tracker = self._spark.sparkContext.statusTracker()
        done = tasks = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in map(tracker.getStageInfo, info.stageIds if info else ()):
                if stage is not None:
                    done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        return replace(self._counts, tasks_done=done, tasks=tasks)

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self, *, patience_s: float = STOP_TIMEOUT_S) -> None:
        """Cancels the job, without waiting: it is one batch and may take long. Its rows become visible all or none."""
        del patience_s
        self._stopped = True
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._ended.wait()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._spark.sparkContext.setJobGroup(self._group, f"avow pipeline {self.name}", interruptOnCancel=True)
            self._spark.createDataFrame(
                [], "active int"
            )  # makes the session active in this thread; without it no source is found
            rows = self._work()
            took_s = time.monotonic() - began
            self.was_done_before = rows is None
            speed = (rows or 0) / took_s if took_s > 0 else 0.0
            self._counts = Counts(
                batches=int(rows is not None), rows=rows or 0, batch_rows=rows or 0, batch_s=took_s, rows_per_s=speed
            )
        except Exception as error:  # the boundary of this thread
            if not self._stopped:
                self._failure = failed(self.name, error)
        finally:
            self._ended.set()
