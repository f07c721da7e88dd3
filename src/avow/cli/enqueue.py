"""`avow enqueue`: write arguments or lines of standard input as messages.

Arguments, and lines written with `--expected` (which must directly follow each other), are written one group at a time,
each with its own answer. Standard input is streamed: a producer has many groups in flight, and commits when the input
pauses (after each line that a person types) and at its end. After a failure, the command also reports what was stored.

Standard input is read in the pieces in which it arrives. A file arrives in large pieces, which make full batches. A
person or `tail -f` writes a line at a time, and each line is sent at once instead of waiting for a batch to fill up. A
last line without a newline is sent when the input ends.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from avow.cli.cluster_api import connected
from avow.cli.options import DEFAULT_API, ApiOption, CaOption, JsonOption, QueueArgument, TimeoutOption, TokenOption
from avow.cli.output import plural, print_json
from avow.errors import AvowError, ChannelFailed, InvalidRequest
from avow.limits import BATCH_COUNT_MAX, MESSAGE_SIZE_BYTES_MAX

if TYPE_CHECKING:
    from avow.client.blocking import BlockingQueue
    from avow.client.blocking_channels import BlockingProducer
    from avow.client.outcomes import Done
    from avow.client.producer import Written


PIECE_BYTES: Final = 1024 * 1024
WRITTEN_TIMEOUT_S: Final = 2.0


class Lines(Struct, frozen=True):
    """A group of messages; `read_bytes` is their size in the input, newlines included."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    read_bytes: int


def from_arguments(values: Sequence[str], *, batch: int, separator: bytes) -> Iterator[Lines]:
    yield from _grouped([value.encode() for value in values], batch=batch, separator=separator, ends=0)


def from_descriptor(descriptor: int, *, batch: int, separator: bytes) -> Iterator[Lines]:
    """Yields groups until the end of the input."""
    rest = b""
    while piece := os.read(descriptor, PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MESSAGE_SIZE_BYTES_MAX:
            raise InvalidRequest(
                f"a line is longer than the largest message ({MESSAGE_SIZE_BYTES_MAX:,} bytes); it was not sent. "
                "Split it into several messages"
            )
        yield from _grouped(lines, batch=batch, separator=separator, ends=1)
    if rest:
        yield from _grouped([rest], batch=batch, separator=separator, ends=0)


def _grouped(lines: list[bytes], *, batch: int, separator: bytes, ends: int) -> Iterator[Lines]:
    for start in range(0, len(lines), batch):
        group = lines[start : start + batch]
        size = sum(map(len, group)) + ends * len(group)
        if not separator:
            yield Lines(group, None, size)
        else:
            pairs = [_split(line, separator) for line in group]
            yield Lines([value for _, value in pairs], [key for key, _ in pairs], size)


def _split(line: bytes, separator: bytes) -> tuple[bytes, bytes]:
    key, found, value = line.partition(separator)
    if not found:
        shown = line[:60].decode(errors="replace")
        raise InvalidRequest(
            f"the line {shown!r} has no separator {separator.decode()!r} between key and value; it was not sent"
        )
    return key, value


def enqueue(
    queue: QueueArgument,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="Messages. Without any, each line of stdin is one.")
    ] = None,
    key_separator: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Split each line into key and value at this separator.", show_default=False),
    ] = "",
    batch: Annotated[
        int, typer.Option(min=1, max=BATCH_COUNT_MAX, help="Maximum number of messages in a batch.")
    ] = 10_000,
    expected: Annotated[
        int | None, typer.Option(min=0, help="Write only if the lane ends at this version.", show_default=False)
    ] = None,
    lane: Annotated[int | None, typer.Option(min=0, help="Lane to write to.", show_default="chosen by the key")] = None,
    timeout_s: TimeoutOption = 30.0,
    as_json: JsonOption = False,
    api: ApiOption = DEFAULT_API,
    token: TokenOption = "",
    ca: CaOption = "",
) -> None:
    """Write messages to a queue, from arguments or lines of stdin. Returns when a quorum has them on disk."""
    separator = key_separator.encode()
    if values:
        source = from_arguments(values, batch=batch, separator=separator)
    else:
        source = from_descriptor(sys.stdin.fileno(), batch=batch, separator=separator)
    stored = Stored(queue)
    with (
        connected(api, token=token, ca=ca, timeout_s=timeout_s) as client,
        _reported_on_failure(stored),
        _progress(enabled=not values and not as_json) as shown,
    ):
        if values or expected is not None:
            write(client.queue(queue), source, stored, shown, expected=expected, lane=lane)
        else:
            with client.producer(queue) as producer:
                stream(producer, source, stored, shown, lane=lane, paused=_paused)
    print_json(stored.as_object()) if as_json else typer.echo(stored.sentence())


class LaneStored(Struct):
    first_version: int
    last_version: int
    messages: int


class Stored:
    """The messages known to be stored, by lane."""

    __slots__ = ("_began", "lanes", "messages", "queue", "sending")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.messages = 0
        self.sending = 0  # messages in the batch that has no answer yet
        self.lanes: dict[int, LaneStored] = {}
        self._began = time.monotonic()

    def add(self, done: Done) -> None:
        count = done.last_version - done.first_version + 1
        self.messages += count
        known = self.lanes.setdefault(done.lane, LaneStored(done.first_version, done.last_version, 0))
        known.first_version = min(known.first_version, done.first_version)
        known.last_version = max(known.last_version, done.last_version)
        known.messages += count

    def take(self, written: Sequence[Written]) -> None:
        """Replace what was known before."""
        self.lanes = {one.lane: LaneStored(one.first_version, one.last_version, one.messages) for one in written}
        self.messages = sum(one.messages for one in written)

    def sentence(self) -> str:
        took_s = max(time.monotonic() - self._began, 1e-3)
        where = "; ".join(_span(lane, one) for lane, one in sorted(self.lanes.items()))
        rate = f", {self.messages / took_s:,.0f}/s" if self.messages > 1 else ""
        return f"{plural(self.messages, 'message')} stored in {self.queue} ({where or 'the input was empty'}{rate})"

    def as_object(self) -> dict[str, Any]:
        written = [
            {"lane": n, "first_version": one.first_version, "last_version": one.last_version, "messages": one.messages}
            for n, one in sorted(self.lanes.items())
        ]
        return {"queue": self.queue, "messages": self.messages, "written": written}


def write(
    queue: BlockingQueue,
    source: Iterator[Lines],
    stored: Stored,
    shown: Shown,
    *,
    expected: int | None,
    lane: int | None,
) -> None:
    """Write one group after the other. `expected` advances with each, so a write by another client in between refuses
    the rest."""
    for group in source:
        stored.sending = len(group.values)
        done = queue.enqueue_many(group.values, keys=group.keys, expected=expected, lane=lane)
        for one in done:
            stored.add(one)
        stored.sending = 0
        if expected is not None and done:
            expected = done[-1].last_version
        shown.advance(group.read_bytes, stored.messages)


def stream(
    producer: BlockingProducer,
    source: Iterator[Lines],
    stored: Stored,
    shown: Shown,
    *,
    lane: int | None,
    paused: Callable[[], bool],
) -> None:
    """Write groups without waiting for each answer. Groups sent before an invalid one are stored nevertheless."""
    try:
        for group in source:
            producer.send_many(group.values, keys=group.keys, lane=lane)
            if paused():
                _commit(producer, stored)
            shown.advance(group.read_bytes, producer.statistics()["acked"])
        _commit(producer, stored)
    except InvalidRequest:
        _commit(producer, stored)
        raise
    except (ChannelFailed, KeyboardInterrupt) as error:
        with suppress(AvowError):
            stored.take(producer.written(timeout_s=WRITTEN_TIMEOUT_S))
        if isinstance(error, ChannelFailed):
            stored.sending = len(error.pending)
            raise error.__cause__ or error  # noqa: B904  (the cause says more than the producer's error)
        raise


def _commit(producer: BlockingProducer, stored: Stored) -> None:
    producer.commit()
    stored.take(producer.written())


def _paused() -> bool:
    """Whether nothing can be read now. At the end of the input it is readable."""
    return not select.select([sys.stdin.fileno()], [], [], 0)[0]


def _span(lane: int, one: LaneStored) -> str:
    if one.first_version == one.last_version:
        return f"lane {lane} version {one.first_version}"
    return f"lane {lane} versions {one.first_version} to {one.last_version}"


@contextmanager
def _reported_on_failure(stored: Stored) -> Iterator[None]:
    """Before an error is reported, writes to stderr what was stored before it."""
    try:
        yield
    except (AvowError, KeyboardInterrupt) as error:
        for done in getattr(error, "done", ()):  # other lanes of the batch that failed
            stored.add(done)
        if stored.messages:
            sys.stderr.write(f"avow: before this, {stored.sentence()}\n")
        if stored.sending > 1 and stored.lanes:
            sys.stderr.write(f"avow: the error below is about the next {plural(stored.sending, 'message')}\n")
        raise


# ---------------------------------------------------------------------- progress, on a terminal


class Shown:
    """Progress on stderr: a bar if the input is a file, a count if its size is unknown, nothing without a terminal."""

    __slots__ = ("_began", "_progress", "_task")

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task
        self._began = time.monotonic()

    def advance(self, read_bytes: int, messages: int) -> None:
        if self._progress is not None and self._task is not None:
            rate = messages / max(time.monotonic() - self._began, 1e-3)
            self._progress.update(self._task, advance=read_bytes, note=f"{messages:,} messages, {rate:,.0f}/s")


@contextmanager
def _progress(*, enabled: bool) -> Iterator[Shown]:
    if not (enabled and sys.stderr.isatty()):
        yield Shown(None, None)
        return
    status = os.fstat(sys.stdin.fileno())
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    measure = BarColumn(bar_width=30) if total else SpinnerColumn()
    with Progress(measure, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as progress:
        yield Shown(progress, progress.add_task("", total=total, note="0 messages"))
