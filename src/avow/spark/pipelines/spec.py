"""The settings of a pipeline as values, and the TOML files that hold them. Pure.

    kind = "archive"                       archive, transform or replay
    name = "orders-archive"                default: the file's name without .toml
    servers = "http://127.0.0.1:7401"      default: AVOW_API, else the peers of `avow up`; likewise token and ca
    checkpoint = "orders.checkpoint"       a folder; relative to the file
    every = "10 seconds"                   how often a stream starts a batch
    report = "avow.pipelines"              the queue for status reports; empty: no reports
    [spark]   master, log, config          settings of the Spark session
    [source]  queue | queues | pattern | table, start, archive, headers, batch_rows, subscriber, lost
    [sink]    queue | table, partition_by

The keys of each kind are in docs/pipelines.md. `read_spec` raises one error that lists every mistake with its place.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from avow.errors import AvowError, InvalidRequest
from avow.limits import PIPELINES_QUEUE
from avow.spark.pipelines.sections import Mistakes, Section
from avow.spark.tables.address import Kind, parse

LOCAL_SERVERS: Final = ",".join(f"http://127.0.0.1:{port}" for port in (7401, 7402, 7403))
LOG_LEVELS: Final = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG")
LOST: Final = ("fail", "skip")
STATEMENTS: Final = ("sql", "python", "row")

Bound: TypeAlias = str | int | dict[int, int]
"""earliest, latest, a time in milliseconds as "@1700000000000", a version, or versions by lane."""


class Cluster(Struct, frozen=True, kw_only=True):
    servers: str = LOCAL_SERVERS
    token: str = ""
    ca: str = ""


class SparkSettings(Struct, frozen=True, kw_only=True):
    master: str = "local[*]"
    log: str = "ERROR"
    config: dict[str, str] = {}


class Source(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ()
    pattern: str = ""
    table: str = ""
    start: Bound = "earliest"
    end: Bound = "latest"
    archive: str = ""
    headers: bool = True
    batch_rows: int | None = None
    subscriber: str = ""
    lost: str = "fail"
    run: str = ""


class Sink(Struct, frozen=True, kw_only=True):
    queue: str = ""
    table: str = ""
    partition_by: tuple[str, ...] = ()


class Common(Struct, frozen=True, kw_only=True):
    """`folder`: where the user's Python modules are searched. `report`: the queue for status reports."""

    name: str
    checkpoint: str
    source: Source
    cluster: Cluster = Cluster()
    spark: SparkSettings = SparkSettings()
    every: str = ""
    folder: str = ""
    report: str = PIPELINES_QUEUE

    @property
    def report_cluster(self) -> Cluster | None:
        """The cluster that gets the status reports: the one that is used or named; None if there is none."""
        used = bool(self.source.queues or self.source.pattern or getattr(self, "dead_letters", ""))
        used = used or bool(getattr(self, "sink", Sink()).queue)
        return self.cluster if self.report and (used or self.cluster.servers != LOCAL_SERVERS) else None


class ArchiveSpec(Common, frozen=True, kw_only=True, tag_field="kind", tag="archive"):
    table: str
    trim: bool = False
    keep: int = 0


class TransformSpec(Common, frozen=True, kw_only=True, tag_field="kind", tag="transform"):
    """One of `sql`, `python` (module:function of a DataFrame) and `row` (module:function of one message)."""

    sink: Sink
    sql: str = ""
    python: str = ""
    row: str = ""
    columns: str = ""
    dead_letters: str = ""


class ReplaySpec(Common, frozen=True, kw_only=True, tag_field="kind", tag="replay"):
    sink: Sink
    where: str = ""
    keep_lanes: bool = False
    ordered: bool = True


Spec: TypeAlias = ArchiveSpec | TransformSpec | ReplaySpec


def kind_of(spec: Spec) -> str:
    return str(spec.__struct_config__.tag)


def read_spec(path: Path | str, environment: Mapping[str, str] | None = None) -> Spec:
    """Raises InvalidRequest if the file cannot be read, is not TOML, or has mistakes."""
    file = Path(path)
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        raise InvalidRequest(f"{file} cannot be read ({cause.strerror}); nothing was started") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise InvalidRequest(f"{file} is not valid TOML: {cause}; nothing was started") from cause
    return parse_spec(found, file=file, environment=os.environ if environment is None else environment)


def parse_spec(found: Mapping[str, Any], *, file: Path, environment: Mapping[str, str]) -> Spec:
    mistakes = Mistakes(str(file))
    top = Section(found, "", mistakes)
    kind = top.text("kind", required=True)
    if kind and kind not in KINDS:
        top.wrong("kind", f"must be one of {', '.join(KINDS)}, not {kind!r}")
    if kind not in KINDS:
        mistakes.check()
    common = _common(top, file.absolute(), environment)
    spec = KINDS[kind](top, common)
    top.close()
    mistakes.check()
    return spec


# ------------------------------------------------------------------ keys of all kinds


def _common(top: Section, file: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    name = top.text("name", file.stem)
    checkpoint = top.text("checkpoint", f"{name}.checkpoint")
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        top.wrong("checkpoint", f"must be a local folder, not {checkpoint!r}")
    return {
        "name": name,
        "checkpoint": str(file.parent / Path(checkpoint.removeprefix("file://")).expanduser()),
        "folder": str(file.parent),
        "every": top.text("every"),
        "cluster": Cluster(
            servers=top.text("servers", environment.get("AVOW_API", "") or LOCAL_SERVERS),
            token=top.text("token", environment.get("AVOW_TOKEN", "")),
            ca=top.text("ca", environment.get("AVOW_CA", "")),
        ),
        "spark": read_spark(top.section("spark")),
        "report": read_report(top),
    }


def read_report(top: Section) -> str:
    """Unlike other texts it may be empty, which disables reports."""
    return "" if top.value("report") == "" else top.text("report", PIPELINES_QUEUE)


def read_spark(section: Section) -> SparkSettings:
    made = SparkSettings(
        master=section.text("master", "local[*]"),
        log=section.choice("log", LOG_LEVELS, "ERROR"),
        config=section.settings("config"),
    )
    section.close()
    return made


def _source(top: Section, folder: str, *, tables: bool, ends: bool) -> Source:
    section = top.section("source", required=True)
    given = section.one_of("queue", "queues", "pattern", *(("table",) if tables else ()), required=top.has("source"))
    queue, queues = section.text("queue"), section.texts("queues")
    pattern, table = section.text("pattern"), section.text("table")
    archive = _table(section, "archive", folder)
    if given == "table" and archive:
        section.wrong("archive", "is only for queues: a table is read directly")
    single = bool(queue) or len(queues) == 1
    made = Source(
        queues=(queue,) if queue else queues,
        pattern=pattern,
        table=_rooted(section, "table", table, folder) if tables else "",
        start=_bound(section, "start", "earliest", single=single, words=("earliest", "latest"), numbers=ends),
        end=_bound(section, "end", "latest", single=single, words=("latest",), numbers=True) if ends else "latest",
        archive=archive,
        headers=section.flag("headers", default=True),
        batch_rows=section.whole("batch_rows", least=1),
        subscriber="" if ends else section.text("subscriber"),
        lost=section.choice("lost", LOST, "fail"),
        run=section.text("run") if tables else "",
    )
    section.close()
    return made


def _bound(section: Section, key: str, default: str, *, single: bool, words: tuple[str, ...], numbers: bool) -> Bound:
    found = section.value(key)
    if found is None:
        return default
    if isinstance(found, str) and found in words:
        return found
    if numbers and isinstance(found, int) and not isinstance(found, bool) and found > 0:
        return found
    if isinstance(found, dict) and (lanes := _lanes(found)) and single:
        return lanes
    if isinstance(found, str | datetime) and (moment := _moment(found)) is not None:
        return f"@{round(moment.timestamp() * 1000)}"
    forms = [
        *words,
        "a time (2026-01-31T08:00:00Z)",
        *(["a version"] if numbers else []),
        "{lane = version} of a queue",
    ]
    section.wrong(key, f"must be {', or '.join(forms)}, not {found!r}")
    return default


def _moment(found: str | datetime | date) -> datetime | None:
    """A time without a zone is UTC."""
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if not isinstance(found, datetime):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _lanes(found: Mapping[str, Any]) -> dict[int, int]:
    pairs = [(lane, version) for lane, version in found.items() if lane.isdigit() and type(version) is int]
    return {int(lane): version for lane, version in pairs if version > 0} if len(pairs) == len(found) else {}


def _sink(top: Section, folder: str, *, tables: bool) -> Sink:
    section = top.section("sink", required=True)
    section.one_of("queue", *(("table",) if tables else ()), required=top.has("sink"))
    table = _table(section, "table", folder) if tables else ""
    partition_by = section.texts("partition_by") if tables else ()
    if partition_by and not table:
        section.wrong("partition_by", "is only for a table")
    made = Sink(queue=section.text("queue"), table=table, partition_by=partition_by)
    section.close()
    return made


def _table(section: Section, key: str, folder: str, *, required: bool = False) -> str:
    return _rooted(section, key, section.text(key, required=required), folder)


def _rooted(section: Section, key: str, url: str, folder: str) -> str:
    """Relative paths are relative to the file, not to the working directory."""
    kind, colon, path = url.partition(":")
    if colon and kind in (Kind.DELTA, Kind.PARQUET) and not path.startswith("file:"):
        url = f"{kind}:{os.path.join(folder, os.path.expanduser(path))}"
    if url:
        try:
            parse(url)
        except AvowError as wrong:
            section.wrong(key, str(wrong))
    return url


# ------------------------------------------------------------------ each kind


def _archive(top: Section, common: dict[str, Any]) -> ArchiveSpec:
    source = _source(top, common["folder"], tables=False, ends=False)
    if source.archive:
        top.wrong("[source] archive", "must not be set: the table itself is the archive")
    table = _table(top, "table", common["folder"], required=True)
    if table.startswith("postgres"):
        top.wrong("table", "of an archive must be delta:PATH or parquet:PATH, so that the source can read it")
    trim, keep = top.flag("trim"), top.whole("keep")
    if keep is not None and not trim:
        top.wrong("keep", "has no effect without trim = true")
    common["every"] = common["every"] or "10 seconds"
    return ArchiveSpec(**common, source=source, table=table, trim=trim, keep=keep or 0)


def _transform(top: Section, common: dict[str, Any]) -> TransformSpec:
    source = _source(top, common["folder"], tables=True, ends=False)
    sink = _sink(top, common["folder"], tables=True)
    given = top.one_of(*STATEMENTS)
    found: dict[str, Any] = {key: top.text(key) for key in STATEMENTS}
    for key in ("python", "row"):
        if found[key] and not _names_function(found[key]):
            top.wrong(key, f"must be module:function, not {found[key]!r}")
    columns = top.text("columns")
    if columns and given != "row":
        top.wrong("columns", "is only for row = module:function: sql and python define their columns themselves")
    if given == "row" and sink.table and not columns:
        top.wrong("columns", 'is missing: the columns that the function returns, such as "id long, amount double"')
    if given == "row" and source.table:
        top.wrong("row", "is only for messages of a queue; use sql or python for a table")
    if source.table.startswith("postgres") and not source.run:
        top.wrong("[source] run", "is missing: a name for this run, since a database does not show whether it changed")
    dead_letters = top.text("dead_letters")
    if dead_letters and dead_letters in (sink.queue, *source.queues):
        top.wrong("dead_letters", f"must be a separate queue, but {dead_letters!r} is the source or the sink")
    if sink.queue and sink.queue in source.queues:
        top.wrong("[sink] queue", f"is {sink.queue!r}, which is also the source: the pipeline would never end")
    return TransformSpec(**common, source=source, sink=sink, columns=columns, dead_letters=dead_letters, **found)


def _names_function(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _replay(top: Section, common: dict[str, Any]) -> ReplaySpec:
    source = _source(top, common["folder"], tables=True, ends=True)
    sink = _sink(top, common["folder"], tables=False)
    if source.table.startswith("postgres"):
        top.wrong("[source] table", "of a replay must be an archive, delta:PATH or parquet:PATH")
    if sink.queue and sink.queue in source.queues:
        top.wrong("[sink] queue", f"is {sink.queue!r}, which is also the source: replay into another queue")
    return ReplaySpec(
        **common,
        source=source,
        sink=sink,
        where=top.text("where"),
        keep_lanes=top.flag("keep_lanes"),
        ordered=top.flag("ordered", default=True),
    )


KINDS: Final[dict[str, Callable[[Section, dict[str, Any]], Spec]]] = {
    "archive": _archive,
    "transform": _transform,
    "replay": _replay,
}
