"""What a running pipeline looks like: a view that moves on a terminal, a line now and then without one, or JSON lines.

A line without a terminal is written when something happened: the state changed, or a batch was done, and then at most
one in ten seconds. With --json, each is an object, and the last one is how it ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from avow.cli.show import duration_text, number, plural

if TYPE_CHECKING:
    from avow.spark.pipelines.running import Ended
    from avow.spark.pipelines.spec import Spec
    from avow.spark.pipelines.status import Status

LINE_S: Final = 10.0


@contextmanager
def shown(*, as_json: bool) -> Iterator[Callable[[Status], None]]:
    """The function that a runner tells its status to."""
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        yield Lines(lambda status: typer.echo(msgspec.json.encode(as_object(status))))
    elif not console.is_terminal:
        yield Lines(lambda status: console.print(line(status), markup=False))
    else:
        with Live(console=console, transient=True, refresh_per_second=4) as live:
            yield lambda status: live.update(Text(line(status)))


class Lines:
    def __init__(self, write: Callable[[Status], None]) -> None:
        self._write = write
        self._said: tuple[str, int] = ("", -1)
        self._next_s = 0.0

    def __call__(self, status: Status) -> None:
        what = (status.state, status.counts.batches)
        state_is_new = what[0] != self._said[0]
        if what == self._said or (not state_is_new and time.monotonic() < self._next_s):
            return
        self._said, self._next_s = what, time.monotonic() + LINE_S
        self._write(status)


def line(status: Status) -> str:
    counts = status.counts
    parts = [f"{status.name}: {status.state}"]
    if counts.tasks:
        parts.append(f"{counts.tasks_done} of {plural(counts.tasks, 'task')}")
    if counts.batches:
        parts.append(
            f"{plural(counts.rows, 'row')} in {counts.batches:,} {'batch' if counts.batches == 1 else 'batches'}"
        )
        parts.append(f"last {number(counts.batch_rows)} in {counts.batch_s:.2f} s, {counts.rows_per_s:,.0f} rows/s")
    if counts.lag is not None:
        parts.append(f"lag {number(counts.lag)}")
    if counts.trimmed:
        parts.append(f"trimmed {number(counts.trimmed)}")
    return ", ".join(parts)


def as_object(status: Status) -> dict[str, Any]:
    """What a program reads: the counts beside the state, flat."""
    found: dict[str, Any] = msgspec.to_builtins(status)
    counts: dict[str, Any] = found.pop("counts")
    del counts["seen"]
    return {**found, **counts, "rows_total": status.rows}


def tell_end(ended: Ended, *, as_json: bool) -> None:
    """How it ended: on standard output if it did well, else on standard error."""
    if as_json:
        typer.echo(msgspec.json.encode({**as_object(ended.status), "exit_code": ended.code, "note": ended.note}))
        return
    if ended.note:
        typer.echo(f"{ended.status.name}: {ended.note}")
    if ended.error:
        where = f"; the whole trace is in {ended.status.trace}" if ended.status.trace else ""
        began = "failed" if ended.code == 1 else "could not start"
        sys.stderr.write(f"avow: pipeline {ended.status.name} {began}: {ended.error}{where}\n")
    elif sys.stdout.isatty():
        typer.echo(line(ended.status))


def facts(spec: Spec, status: Status) -> list[tuple[str, str]]:
    """Of `avow pipeline show`: what is told, by a word each."""
    source = spec.source
    read = source.table or source.pattern or ", ".join(source.queues)
    told = [("reads", f"{read} from {source.start}" + (f", archive {source.archive}" if source.archive else ""))]
    sink = getattr(spec, "sink", None)
    told.append(("writes", getattr(spec, "table", "") or (sink.queue or sink.table if sink else "")))
    said = {name: getattr(spec, name, "") for name in ("sql", "python", "row", "where", "dead_letters")}
    told.extend((name.replace("_", " "), " ".join(text.split())) for name, text in said.items() if text)
    if getattr(spec, "trim", False):
        told.append(("trims", f"what is archived, but the last {number(getattr(spec, 'keep', 0))} of each lane"))
    told.append(("servers", spec.cluster.servers))
    told.append(("checkpoint", spec.checkpoint))
    return told + _history(status)


def _history(status: Status) -> list[tuple[str, str]]:
    if status.state == "never":
        return []
    counts, now = status.counts, time.time()
    told = [("rows", f"{number(status.rows)} in all, {number(counts.rows)} in the last run")]
    told.append(("started", f"{duration_text(round(now - status.started_s))} ago"))
    if status.last_batch_s:
        ago = duration_text(round(now - status.last_batch_s))
        told.append(("last batch", f"{ago} ago: {plural(counts.batch_rows, 'row')} in {counts.batch_s:.2f} s"))
    if counts.lag is not None:
        told.append(("lag", number(counts.lag)))
    if counts.trimmed:
        told.append(("trimmed", number(counts.trimmed)))
    if status.error:
        told.append(("error", status.error))
    if status.trace:
        told.append(("trace", status.trace))
    return told
