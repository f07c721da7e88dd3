"""What every kind of table can do, apart from Spark.

Rows reach a table in two phases. `stage` runs in tasks, many at once, some of them in vain: attempts fail, are
killed, or run twice. What it returns is all that is known of its rows; nobody sees them yet. `commit` runs at the
driver with what the successful attempts returned, and makes all of it visible as one, with the number of the batch.

    a batch has a name      `app_id` (a query's id, or a name chosen for batch writes) and `version`, which only grows
    once                    a table remembers the last version of each app_id, in the same step that shows the rows;
                            a commit of that version or an earlier one changes nothing and answers False
    unknown                 a commit that failed may have taken effect: the same batch is staged and committed again
    leftovers               staged rows that were never committed are not visible, and are cleaned up later

Spark calls `abort` after failures, also after a commit that took effect, and calls nothing for attempts that it lost.
So nothing is undone here, ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from avow.errors import InvalidRequest
from avow.spark.tables.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "avow-table"  # Spark's name for the data source behind tables
NAME_CHARS_MAX = 200


class Staged(msgspec.Struct, frozen=True):
    """A data file, or a table of a database, that a task filled. `values`: a file's partition values, as text."""

    place: str
    rows: int
    size_bytes: int = 0
    values: dict[str, str | None] = {}
    ranges: tuple[Range, ...] = ()
    stats: dict[str, Any] = {}


class Store(Protocol):
    def prepare(self, schema: pa.Schema, *, partition_by: Sequence[str] | None) -> list[str]:
        """Makes the table if there is none, and refuses a schema that its rows do not fit. Answers the columns that it
        is partitioned by, which tasks must know and would have to read a whole log for."""

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
        """True: visible and durable now, by this call. False: it was before."""

    def committed(self, app_id: str) -> int | None:
        """The last version of that name, None if there is none."""

    def schema(self) -> pa.Schema: ...

    def count(self) -> int: ...

    def ranges(self) -> Iterator[Range]:
        """Of an archive: what it holds of each lane."""

    def clean(self, *, older_than_s: float) -> int:
        """Removes what attempts left behind that are older than this; answers how many files or tables it was."""


def check_name(*, app_id: str, version: int) -> None:
    if not app_id or len(app_id) > NAME_CHARS_MAX or not app_id.isprintable():
        raise InvalidRequest(
            f"{app_id!r} is no app_id: 1 to {NAME_CHARS_MAX} printable characters; nothing was written"
        )
    if not 0 <= version < 1 << 63:
        raise InvalidRequest(f"{version} is no version of a batch: 0 or more; nothing was written")
