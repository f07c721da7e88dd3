"""One run of a pipeline's file, from reading the file to the exit code.

    read the file ─► check the peers ─► lock the checkpoint ─► start Spark ─► start ─► poll, show, save ─► end
          2                 2                   2                   2           2                        0, 1, 130

    0    done: a job or a run with `--once` finished
    1    failed: one line says why, and the full stack trace is in the checkpoint's folder
    2    could not start because of the file, the peers, the table or Java; nothing was read
    130  stopped by Ctrl-C or SIGTERM, after the current batch. A second signal interrupts the batch

The caller passes a function that is called with the status a few times per second and displays it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from avow.errors import AvowError, Refused
from avow.spark.pipelines.archive_pipeline import archive
from avow.spark.pipelines.failures import PipelineFailed, cause_of, failed
from avow.spark.pipelines.inputs import check_cluster
from avow.spark.pipelines.pipeline import STOP_TIMEOUT_S, JobPipeline, Pipeline
from avow.spark.pipelines.replay_pipeline import replay
from avow.spark.pipelines.reports import Reporter, reported
from avow.spark.pipelines.spec import ArchiveSpec, ReplaySpec, Spec, kind_of
from avow.spark.pipelines.status import Status, locked, read_status, serve_metrics, write_failure, write_status
from avow.spark.pipelines.transform_pipeline import transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE: Final = 0
FAILED: Final = 1
NOT_STARTED: Final = 2
INTERRUPTED: Final = 130
POLL_S: Final = 0.25
SAVE_S: Final = 1.0

ShowStatus: TypeAlias = Callable[[Status], None]


class Options(Struct, frozen=True, kw_only=True):
    once: bool = False
    again: bool = False
    metrics_port: int | None = None


class Ended(Struct, frozen=True):
    """`error`: why it failed, otherwise empty; `note`: a remark on a run that did not fail."""

    code: int
    status: Status
    error: str = ""
    note: str = ""


def start(spark: SparkSession, spec: Spec, options: Options) -> Pipeline:
    """Raises AvowError if it could not be started."""
    if isinstance(spec, ArchiveSpec):
        return archive(spark, spec, once=options.once)
    if isinstance(spec, ReplaySpec):
        return replay(spark, spec, again=options.again)
    return transform(spark, spec, once=options.once)


def check_peers(spec: Spec) -> None:
    written = [] if isinstance(spec, ArchiveSpec) else [spec.sink.queue, getattr(spec, "dead_letters", "")]
    if spec.source.queues or spec.source.pattern or any(written):
        check_cluster(spec.cluster, spec.source.queues, written=written)


def run(spec: Spec, options: Options, show: ShowStatus) -> Ended:
    """Blocks until the pipeline has ended. Call it in the main thread, which receives signals."""
    try:
        check_peers(spec)
        with locked(spec.checkpoint):
            return _Run(spec, options, show).run()
    except AvowError as error:
        status = Status(name=spec.name, kind=kind_of(spec), state="failed", error=str(error))
        return Ended(NOT_STARTED, status, error=str(error))


class _Run:
    def __init__(self, spec: Spec, options: Options, show: ShowStatus) -> None:
        self._spec, self._options, self._show = spec, options, show
        self._reporter: Reporter | None = None
        before = read_status(spec.checkpoint, name=spec.name, kind=kind_of(spec))
        self._status = replace(
            Status(name=spec.name, kind=kind_of(spec)),
            state="starting",
            pid=os.getpid(),
            started_s=time.time(),
            rows_before=before.rows,
        )

    def run(self) -> Ended:
        with (
            reported(self._spec.report_cluster, self._spec.report) as self._reporter,
            serve_metrics(self._options.metrics_port, lambda: self._status),
        ):
            self._save(self._status)
            spark = self._session()
            try:
                return self._started(spark)
            finally:
                spark.stop()

    def _session(self) -> SparkSession:
        from avow.spark.session import session

        settings = self._spec.spark
        config = {"spark.ui.showConsoleProgress": "false", **settings.config}  # the CLI shows progress itself
        try:
            spark = session(f"avow {self._spec.name}", master=settings.master, config=config)
        except AvowError:
            self._ended("failed")
            raise
        except Exception as error:  # Spark has many exception classes; in all cases nothing was read yet
            self._ended("failed", error=cause_of(error))
            raise Refused(f"Spark did not start: {cause_of(error)}; nothing was read") from error
        spark.sparkContext.setLogLevel(settings.log)
        return spark

    def _started(self, spark: SparkSession) -> Ended:
        with _signals() as signals:
            try:
                pipeline = start(spark, self._spec, self._options)
            except AvowError as error:
                status = self._ended("failed", error=str(error))
                return Ended(NOT_STARTED, status, error=str(error))
            except Exception as error:  # the user's statement may raise anything
                return self._failed(failed(self._spec.name, error), code=NOT_STARTED)
            try:
                return self._watched(pipeline, signals)
            except PipelineFailed as failure:
                return self._failed(failure, code=FAILED)

    def _watched(self, pipeline: Pipeline, signals: threading.Semaphore) -> Ended:
        self._save(replace(self._status, state="running"))
        saved_s = time.monotonic()
        while not pipeline.wait(POLL_S):
            self._poll(pipeline)
            if time.monotonic() - saved_s >= SAVE_S:
                saved_s = time.monotonic()
                write_status(self._spec.checkpoint, self._status)
            if signals.acquire(blocking=False):
                return self._interrupted(pipeline, signals)
        self._poll(pipeline)
        return Ended(DONE, self._ended("done"), note=self._note_of(pipeline))

    def _note_of(self, pipeline: Pipeline) -> str:
        if not isinstance(pipeline, JobPipeline) or not pipeline.was_done_before:
            return ""
        if isinstance(self._spec, ReplaySpec):
            return "this replay was done before; nothing was written. Repeat it with --again"
        return "the table has not changed since it was transformed; nothing was written"

    def _interrupted(self, pipeline: Pipeline, signals: threading.Semaphore) -> Ended:
        """Another thread waits for the end of the batch, so that this one can receive a second signal."""
        ended = threading.Event()

        def stop() -> None:
            pipeline.stop(patience_s=STOP_TIMEOUT_S)
            ended.set()

        thread = threading.Thread(target=stop, name="avow-pipeline-stop", daemon=True)
        thread.start()
        while not ended.wait(POLL_S):
            self._poll(pipeline)
            if signals.acquire(blocking=False):
                pipeline.stop(patience_s=0)
        thread.join()
        self._poll(pipeline)
        pipeline.wait()
        return Ended(INTERRUPTED, self._ended("stopped"))

    # ------------------------------------------------------------------ status

    def _poll(self, pipeline: Pipeline) -> None:
        counts = pipeline.counts()
        when = time.time() if counts.batches > self._status.counts.batches else self._status.last_batch_s
        self._status = replace(self._status, counts=counts, last_batch_s=when)
        self._publish(self._status)

    def _save(self, status: Status) -> None:
        self._status = status
        write_status(self._spec.checkpoint, status)
        self._publish(status)

    def _publish(self, status: Status) -> None:
        self._show(status)
        if self._reporter is not None:
            self._reporter.report(status)

    def _ended(self, state: str, *, error: str = "", trace: str = "") -> Status:
        self._save(replace(self._status, state=state, error=error, trace=trace))
        return self._status

    def _failed(self, failure: PipelineFailed, *, code: int) -> Ended:
        trace = write_failure(self._spec.checkpoint, failure.trace)
        return Ended(code, self._ended("failed", error=failure.cause, trace=trace), error=failure.cause)


@contextmanager
def _signals() -> Iterator[threading.Semaphore]:
    """Counts SIGINT and SIGTERM instead of raising. Used after Spark's start, since Spark sets handlers, too."""
    counted = threading.Semaphore(0)
    if threading.current_thread() is not threading.main_thread():
        yield counted
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: counted.release())
    try:
        yield counted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
