"""One run of a pipeline's file, from the first question to an exit code.

    read the file ─► ask the peers ─► lock the checkpoint ─► Java, Spark ─► start ─► look, tell, note ─► end
          2                2                  2                   2           2                          0, 1, 130

    0    done: `--once`, or a job, came to its end
    1    failed: one line says why, and the whole trace is in the checkpoint's folder
    2    could not start: the file, the peers, the table, Java. Nothing was read
    130  interrupted, by Ctrl-C or SIGTERM: after the batch at hand. A second signal does not wait for it

Whoever runs it hands over a function that is told the status a few times a second, and shows it as it likes.
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
from avow.spark.pipelines import metrics
from avow.spark.pipelines.archiving import archive
from avow.spark.pipelines.failures import PipelineFailed, cause_of, failed
from avow.spark.pipelines.pipeline import PATIENCE_S, JobPipeline, Pipeline
from avow.spark.pipelines.replaying import replay
from avow.spark.pipelines.reporting import Reporter, reported
from avow.spark.pipelines.sources import check_cluster
from avow.spark.pipelines.spec import ArchiveSpec, ReplaySpec, Spec, kind_of
from avow.spark.pipelines.status import Status, locked, read_status, write_failure, write_status
from avow.spark.pipelines.transforming import transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DONE, FAILED, NOT_STARTED, INTERRUPTED = 0, 1, 2, 130
LOOK_S: Final = 0.25
NOTE_S: Final = 1.0

Tell: TypeAlias = Callable[[Status], None]


class Options(Struct, frozen=True, kw_only=True):
    once: bool = False
    again: bool = False
    metrics_port: int | None = None


class Ended(Struct, frozen=True):
    """`error` is empty unless it failed; `note` is something to say although it did not."""

    code: int
    status: Status
    error: str = ""
    note: str = ""


def start(spark: SparkSession, spec: Spec, options: Options) -> Pipeline:
    """Raises AvowError; then nothing runs."""
    if isinstance(spec, ArchiveSpec):
        return archive(spark, spec, once=options.once)
    if isinstance(spec, ReplaySpec):
        return replay(spark, spec, again=options.again)
    return transform(spark, spec, once=options.once)


def check_peers(spec: Spec) -> None:
    written = [] if isinstance(spec, ArchiveSpec) else [spec.sink.queue, getattr(spec, "dead_letters", "")]
    if spec.source.queues or spec.source.pattern or any(written):
        check_cluster(spec.cluster, spec.source.queues, written=written)


def run(spec: Spec, options: Options, tell: Tell) -> Ended:
    """Blocks until it has ended. To be called in the main thread: signals are waited for there."""
    try:
        check_peers(spec)
        with locked(spec.checkpoint):
            return _Run(spec, options, tell).run()
    except AvowError as error:
        status = Status(name=spec.name, kind=kind_of(spec), state="failed", error=str(error))
        return Ended(NOT_STARTED, status, error=str(error))


class _Run:
    def __init__(self, spec: Spec, options: Options, tell: Tell) -> None:
        self._spec, self._options, self._tell = spec, options, tell
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
            reported(self._spec.reports_at, self._spec.report) as self._reporter,
            metrics.served(self._options.metrics_port, lambda: self._status),
        ):
            self._note(self._status)
            spark = self._session()
            try:
                return self._piloted(spark)
            finally:
                spark.stop()

    def _session(self) -> SparkSession:
        from avow.spark.session import session

        settings = self._spec.spark
        config = {"spark.ui.showConsoleProgress": "false", **settings.config}  # there is one already
        try:
            spark = session(f"avow {self._spec.name}", master=settings.master, config=config)
        except AvowError:
            self._ended("failed")
            raise
        except Exception as error:  # Spark's own, of many kinds, and all of them before anything was read
            self._ended("failed", error=cause_of(error))
            raise Refused(f"Spark did not start: {cause_of(error)}; nothing was read") from error
        spark.sparkContext.setLogLevel(settings.log)
        return spark

    def _piloted(self, spark: SparkSession) -> Ended:
        with _signals() as signals:
            try:
                pipeline = start(spark, self._spec, self._options)
            except AvowError as error:
                status = self._ended("failed", error=str(error))
                return Ended(NOT_STARTED, status, error=str(error))
            except Exception as error:  # a statement can fail in as many ways as there are statements
                return self._failed(failed(self._spec.name, error), code=NOT_STARTED)
            try:
                return self._watched(pipeline, signals)
            except PipelineFailed as failure:
                return self._failed(failure, code=FAILED)

    def _watched(self, pipeline: Pipeline, signals: threading.Semaphore) -> Ended:
        self._note(replace(self._status, state="running"))
        noted_s = time.monotonic()
        while not pipeline.wait(LOOK_S):
            self._look(pipeline)
            if time.monotonic() - noted_s >= NOTE_S:
                noted_s = time.monotonic()
                write_status(self._spec.checkpoint, self._status)
            if signals.acquire(blocking=False):
                return self._interrupted(pipeline, signals)
        self._look(pipeline)
        return Ended(DONE, self._ended("done"), note=self._note_of(pipeline))

    def _note_of(self, pipeline: Pipeline) -> str:
        if not isinstance(pipeline, JobPipeline) or not pipeline.was_done_before:
            return ""
        if isinstance(self._spec, ReplaySpec):
            return "this replay is done already, nothing was written; --again does it once more"
        return "the table has not changed since it was transformed, nothing was written"

    def _interrupted(self, pipeline: Pipeline, signals: threading.Semaphore) -> Ended:
        """Another thread waits for the end of the batch; this one waits for a second signal, too."""
        ended = threading.Event()

        def stop() -> None:
            pipeline.stop(patience_s=PATIENCE_S)
            ended.set()

        thread = threading.Thread(target=stop, name="avow-pipeline-stop", daemon=True)
        thread.start()
        while not ended.wait(LOOK_S):
            self._look(pipeline)
            if signals.acquire(blocking=False):
                pipeline.stop(patience_s=0)
        thread.join()
        self._look(pipeline)
        pipeline.wait()
        return Ended(INTERRUPTED, self._ended("stopped"))

    # ------------------------------------------------------------------ status

    def _look(self, pipeline: Pipeline) -> None:
        counts = pipeline.counts()
        when = time.time() if counts.batches > self._status.counts.batches else self._status.last_batch_s
        self._status = replace(self._status, counts=counts, last_batch_s=when)
        self._say(self._status)

    def _note(self, status: Status) -> None:
        self._status = status
        write_status(self._spec.checkpoint, status)
        self._say(status)

    def _say(self, status: Status) -> None:
        self._tell(status)
        if self._reporter is not None:
            self._reporter.tell(status)

    def _ended(self, state: str, *, error: str = "", trace: str = "") -> Status:
        self._note(replace(self._status, state=state, error=error, trace=trace))
        return self._status

    def _failed(self, failure: PipelineFailed, *, code: int) -> Ended:
        trace = write_failure(self._spec.checkpoint, failure.trace)
        return Ended(code, self._ended("failed", error=failure.cause, trace=trace), error=failure.cause)


@contextmanager
def _signals() -> Iterator[threading.Semaphore]:
    """Counts SIGINT and SIGTERM instead of raising. After Spark's start, which sets a handler of its own."""
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
