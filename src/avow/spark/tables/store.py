"""The interface of every kind of table, independent of Spark.

Rows are written to a table in two phases. `stage` runs in tasks, many at once; attempts may fail, be killed, or run
twice. It returns a description of its rows, which are not visible yet. `commit` runs at the driver with the results of
the successful attempts, and makes all rows visible at once, together with the version of the batch.

    name of a batch         `app_id` (a query's id, or a name chosen for batch writes) and `version`, which only grows
    exactly once            a table stores the last version of each app_id in the same step that shows the rows; a
                            commit of that version or an earlier one changes nothing and returns False
    unknown outcome         a commit that failed may have taken effect: stage and commit the same batch again
    leftovers               staged rows that were never committed are not visible, and are cleaned up later

Spark calls `abort` after failures, even after a commit that took effect, and calls nothing for attempts that it lost.
So a store never undoes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from avow.errors import InvalidRequest
from avow.spark.tables.version_ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "avow-table"  # Spark's name for the data source behind tables
NAME_CHARS_MAX: Final = 200


class Staged(msgspec.Struct, frozen=True):
    """A data file, or a table of a database, that a task wrote. `values`: a file's partition values, as text."""

    place: str
    rows: int
    size_bytes: int = 0
    values: dict[str, str | None] = {}
    ranges: tuple[Range, ...] = ()
    stats: dict[str, Any] = {}


class Store(Protocol):
    def prepare(self, schema: pa.Schema, *, partition_by: Sequence[str] | None) -> list[str]:
        """Creates the table if it does not exist, and refuses a schema that does not fit. Returns the partition
        columns, so that tasks need not read the log for them."""

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        *,
        app_id: str,
        version: int,
        partition_by: Sequence[str] = (),
    ) -> list[Staged]: ...

    def commit(self, staged: Sequence[Staged], *, app_id: str, version: int) -> bool:
        """True if this call made the rows visible and durable, False if an earlier one did."""

    def committed(self, app_id: str) -> int | None:
        """The last committed version of that app_id, None if there is none."""

    def schema(self) -> pa.Schema: ...

    def count(self) -> int: ...

    def ranges(self) -> Iterator[Range]:
        """The version ranges of each lane that an archive holds."""

    def clean(self, *, older_than_s: float) -> int:
        """Removes leftovers of attempts older than this; returns the number of files or tables removed."""


def check_name(*, app_id: str, version: int) -> None:
    if not app_id or len(app_id) > NAME_CHARS_MAX or not app_id.isprintable():
        raise InvalidRequest(
            f"the app_id {app_id!r} is not 1 to {NAME_CHARS_MAX} printable characters; nothing was written"
        )
    if not 0 <= version < 1 << 63:
        raise InvalidRequest(f"the version {version} of a batch is negative or too large; nothing was written")
