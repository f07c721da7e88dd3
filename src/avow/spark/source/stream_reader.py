"""The stream reader: the start of a stream, the end of its next batch, and the subscriber's cursor.

Spark's behaviour has some surprises:

 * `initialOffset` is called more than once, and the start of batch 0 is not logged. So a reader decides it only once;
   and if any lane starts at `latest`, batch 0 is empty, because its end, which is logged, then fixes the start.
 * A restarted stream may request a batch whose start is after its end (batch 0 again, started at a later `latest`).
   Such a batch is empty.
 * `commit` of a batch is called when the batch after the next one is planned, and never for the last batch of
   availableNow. But `latestOffset` is only called with an offset whose batch is done, so it moves the subscriber's
   cursor.
 * With limits, Spark passes only one number, the maximum or the minimum. The reader knows both options and applies
   both.

The reader runs in one Python process at the driver; `read` runs in tasks, in a copy that has no connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from avow.errors import AvowError
from avow.spark.source.archive import Archive, open_archive
from avow.spark.source.offsets import Progress, from_json
from avow.spark.source.options import SourceOptions
from avow.spark.source.partition_reader import open_client, plan, read_part
from avow.spark.source.planning import (
    LOG,
    LaneState,
    VanishedLane,
    advanced,
    limited,
    ranges_between,
    report_loss,
    waiting_rows,
)
from avow.spark.source.queue_survey import Surveyor

if TYPE_CHECKING:
    import pyarrow as pa

    from avow.client.blocking import BlockingClient


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._client: BlockingClient | None = None
        self._archive: Archive | None = None
        self._initial: Progress | None = None
        self._first_is_empty = False
        self._target: list[LaneState] | None = None  # of availableNow: the lanes when it started
        self._latest: Progress | None = None
        self._cursor: Progress | None = None
        self._triggered_at = 0.0

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            surveyor = self._surveyor()
            states = self._target or surveyor.with_archive(surveyor.states())
            starts, self._first_is_empty = surveyor.starts(states)
            queues: dict[str, dict[int, int]] = {}
            for (queue, lane), version in starts.items():
                queues.setdefault(queue, {})[lane] = version
            self._initial = Progress(queues)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        self._move_cursor(begin)
        if self._first_is_empty and begin == self._initial:
            self._first_is_empty = False
            return start
        states = self._target
        if states is None:
            surveyor = self._surveyor()
            states = surveyor.with_archive(surveyor.states())
        self._check_ends(begin, states)
        end, vanished = self._next(begin, states, limit)
        self._report_vanished(vanished)
        return end.to_json()

    def _next(
        self, start: Progress, states: Sequence[LaneState], limit: ReadLimit
    ) -> tuple[Progress, Sequence[VanishedLane]]:
        furthest, vanished = advanced(start, states)
        self._latest = furthest
        if isinstance(limit, ReadAllAvailable):
            return furthest, vanished
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.trigger_rows_min
        if least and self._target is None and self._delayed(waiting_rows(start, states), least):
            return start, ()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return (furthest, vanished) if most is None else limited(start, states, most)

    def _delayed(self, waiting: int, least: int) -> bool:
        """Whether the batch should wait for more rows. The first one does not, nor one that waited long enough."""
        now = time.monotonic()
        if waiting < least and self._triggered_at and now - self._triggered_at < self._options.trigger_delay_s:
            return True
        self._triggered_at = now
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_rows_min is not None:
            return ReadMinRows(self._options.trigger_rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        surveyor = self._surveyor()
        self._target = surveyor.with_archive(surveyor.states(confirmed=True))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    # ------------------------------------------------------------------ lost messages

    def _report_vanished(self, vanished: Sequence[VanishedLane]) -> None:
        for one in vanished:
            report_loss(one, fail=self._options.fail_on_data_loss)

    def _check_ends(self, start: Progress, states: Sequence[LaneState]) -> None:
        """If a lane ends before versions already read, a peer lags behind or the queue was deleted and recreated."""
        behind = {(one.queue, one.lane) for one in states if one.next < start.next(one.queue, one.lane)}
        if not behind or start == self._initial:
            return
        for one in self._surveyor().states(confirmed=True):
            if (one.queue, one.lane) in behind and one.next < start.next(one.queue, one.lane):
                read = start.next(one.queue, one.lane) - 1
                what = (
                    f"queue {one.queue!r}, lane {one.lane} ends at version {one.next - 1} but was read up to {read}: "
                )
                why = "it was deleted and recreated, and its present content"
                report_loss(what + why, fail=self._options.fail_on_data_loss)

    # ------------------------------------------------------------------ rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = ranges_between(from_json(start), from_json(end))
        if not ranges:
            return []
        return plan(ranges, self._surveyor().states(), self._options, archive=self._archive)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._options, partition, self._schema)

    # ------------------------------------------------------------------ the subscriber's cursor

    def commit(self, end: dict[str, Any]) -> None:
        self._move_cursor(from_json(end))

    def _move_cursor(self, done: Progress) -> None:
        """Cursors only move forward. A failure is only logged, since the next move includes this one."""
        name = self._options.subscriber
        if name is None or done == self._cursor:
            return
        for queue, lanes in done.queues.items():
            versions = {lane: version - 1 for lane, version in lanes.items()}
            try:
                self._opened().queue(queue).move_cursor(name, versions)
            except AvowError as error:
                LOG.warning(
                    "the cursor of subscriber %r of queue %r was not moved and is retried: %s", name, queue, error
                )
                return
        self._cursor = done

    # ------------------------------------------------------------------ connection

    def _opened(self) -> BlockingClient:
        if self._client is None:
            self._client = open_client(self._options)
        return self._client

    def _surveyor(self) -> Surveyor:
        if self._options.archive is not None:
            self._archive = open_archive(self._options.archive)
        return Surveyor(self._opened(), self._options, archive=self._archive)

    def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
