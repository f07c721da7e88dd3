"""A pipeline that runs: what `archive`, `transform` and `replay` give back.

    pipeline = archive(spark, spec)
    pipeline.counts()                  how it is doing
    pipeline.stop(); pipeline.wait()   True when it has ended; raises PipelineFailed if it failed

Each has one thread beside it. A stream's looks after the query: adds up its batches, and does what is due after a batch
(an archive trims). A job's is the one that the job runs in. Work after a batch that peers refuse is logged and done
after the next one: it is never a reason to stop a stream.

Spark's own `stop` interrupts the batch that is being written. Nothing is lost or doubled by that, but the batch has to
be done again; so `stop` here waits for its end first, for as long as it is told.
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
LOOK_S: Final = 0.25
PATIENCE_S: Final = 60.0


class Pipeline(Protocol):
    name: str

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended. Raises PipelineFailed."""

    def stop(self, *, patience_s: float = PATIENCE_S) -> None:
        """Returns when it has ended."""

    def counts(self) -> Counts: ...


class StreamPipeline:
    """`after_batch` answers how many versions it trimmed."""

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

    def stop(self, *, patience_s: float = PATIENCE_S) -> None:
        before, until = self._counts.batches, time.monotonic() + patience_s
        while not self._ended.is_set() and time.monotonic() < until:
            if self._counts.batches > before or not self.query.status["isTriggerActive"]:
                break
            self._ended.wait(LOOK_S)
        self.query.stop()
        self._ended.wait()

    def _watch(self) -> None:
        try:
            while not self.query.awaitTermination(LOOK_S):  # type: ignore[arg-type]
                self._look()
            self._look()
            self._finish_batch()
        except Exception as error:  # the boundary of this thread
            self._failure = failed(self.name, error)
            self.query.stop()
        finally:
            self._ended.set()

    def _look(self) -> None:
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
            LOG.warning("pipeline %s: what is due after a batch was not done, and is tried again: %s", self.name, error)
            return
        self._counts = replace(self._counts, trimmed=self._counts.trimmed + trimmed)


class JobPipeline:
    """`work` writes all of it, and answers how many rows that was; None: it was done before."""

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

    def stop(self, *, patience_s: float = PATIENCE_S) -> None:
        """A job is one batch, and may be long: it is given up, and nothing of it is visible unless all of it is."""
        del patience_s
        self._stopped = True
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._ended.wait()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._spark.sparkContext.setJobGroup(self._group, f"avow pipeline {self.name}", interruptOnCancel=True)
            self._spark.createDataFrame([], "active int")  # makes the session this thread's, or no source is found
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
