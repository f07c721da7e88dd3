"""`avow pipeline`: run, list, show. Spark is imported only when a pipeline runs.

`run` prints a live line on a terminal. Otherwise it writes a line of text or JSON when the state changes, and after a
batch at most every ten seconds. With --json, the last line says how the pipeline ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from avow.cli.cluster_api import connected
from avow.cli.options import CaOption, JsonOption, TimeoutOption, TokenOption
from avow.cli.output import OK, REFUSED, USAGE, console, duration_text, number, plain, plural, print_json, table
from avow.errors import AvowError, InvalidRequest

if TYPE_CHECKING:
    from avow.spark.pipelines.reports import Report
    from avow.spark.pipelines.runner import Ended
    from avow.spark.pipelines.spec import Spec
    from avow.spark.pipelines.status import Status

app = typer.Typer(
    help="Run and list Spark pipelines. They archive, transform, replay or audit messages; each is a TOML file.",
    no_args_is_help=True,
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline's TOML file.", show_default=False)]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark master such as local[4]; overrides the file.")
]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="DIR", help="Checkpoint folder; overrides the file.")
]
MetricsOption = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65_535, metavar="N", help="Port that serves Prometheus metrics."),
]
ReportedOption = Annotated[
    str,
    typer.Option(
        "--api",
        envvar="AVOW_API",
        metavar="URL,...",
        help="Peers of the cluster that the pipelines report to.",
        show_default=False,
    ),
]

LINE_INTERVAL_S: Final = 10.0
RUN_HELP: Final = """Run a pipeline. It ends when it is stopped, or with --once when all present messages are processed.

Exit codes: 0 done; 1 failed, and a restart continues from the checkpoint; 2 could not start, nothing was read;
130 stopped by Ctrl-C or SIGTERM after the current batch.
"""


@app.command(help=RUN_HELP)
def run(
    file: FileArgument,
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Repeat a replay that has finished.")] = False,
    master: MasterOption = "",
    checkpoint: CheckpointOption = "",
    metrics_port: MetricsOption = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Do not report status to the cluster.")] = False,
    as_json: JsonOption = False,
) -> None:
    try:
        if _kind(file) == "audit":
            _audit(file, master=master, report=not no_report, as_json=as_json)
        spec = _changed(_read(file), master=master, checkpoint=checkpoint, again=again)
        spec = msgspec.structs.replace(spec, report="") if no_report else spec
    except AvowError as error:
        sys.stderr.write(f"avow: {error.code}: {error}\n")
        raise typer.Exit(USAGE) from error
    from avow.spark.pipelines.runner import Options
    from avow.spark.pipelines.runner import run as run_pipeline

    options = Options(once=once, again=again, metrics_port=metrics_port)
    with shown(as_json=as_json) as show_status:
        ended = run_pipeline(spec, options, show_status)
    report_end(ended, as_json=as_json)
    raise typer.Exit(ended.code)


@app.command("list")
def list_pipelines(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Folder with the TOML files; default: the current one.")
    ] = None,
    api: ReportedOption = "",
    token: TokenOption = "",
    ca: CaOption = "",
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List pipelines with their status: those of a folder (*.toml), or with --api those that report to a cluster."""
    if folder is None and api:
        _list_reported(api, token=token, ca=ca, timeout_s=timeout_s, as_json=as_json)
        return
    _list_folder(folder or Path(), as_json=as_json)


def _list_folder(folder: Path, *, as_json: bool) -> None:
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder; nothing was read. Give the folder with the pipelines' files")
    found = [_listed(path) for path in sorted(folder.glob("*.toml"))]
    rows = [one for one in found if one is not None]
    if as_json:
        print_json(rows)
        return
    columns = ("pipeline", "kind", "state", ">rows", ">lag", "last batch", "")
    empty = f"no pipelines in {folder}: a pipeline is a TOML file such as archive.toml"
    console().print(table("", *columns, rows=[_row(one) for one in rows], empty=empty))


def _list_reported(api: str, *, token: str, ca: str, timeout_s: float, as_json: bool) -> None:
    from avow.spark.pipelines.reports import read_reports

    with connected(api, token=token, ca=ca, timeout_s=timeout_s) as client:
        found = read_reports(client)
    if as_json:
        print_json(found)
        return
    columns = ("pipeline", "kind", "state", "where", ">rows", ">rows/s", ">lag", "last report", "")
    empty = "no pipeline has reported to this cluster within a day; pipelines run with --no-report do not report"
    console().print(table("", *columns, rows=[_reported_row(one) for one in found], empty=empty))


def _reported_row(one: Report) -> tuple[str, ...]:
    reported = duration_text(max(0, round(time.time() - one.at_s))) + " ago"
    where = f"{one.host}, pid {one.pid}"
    counts = (number(one.rows), number(round(one.rows_per_s)), number(one.lag))
    return (plain(one.name), plain(one.kind), plain(one.state), plain(where), *counts, reported, plain(one.error))


@app.command()
def show(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show one pipeline: its settings, its progress, its last error. A file with mistakes ends with exit code 2."""
    try:
        if _kind(file) == "audit":
            _show_audit(file, as_json=as_json)
            return
        spec = _read(file)
    except AvowError as error:
        sys.stderr.write(f"avow: {error.code}: {error}\n")
        raise typer.Exit(USAGE) from error
    status = _status(spec)
    if as_json:
        print_json({"spec": _settings(spec), "status": msgspec.to_builtins(status)})
        return
    out = console()
    out.print(f"[bold]{plain(spec.name)}[/bold]  {status.kind}, {_state(status)}")
    for title, text in facts(spec, status):
        out.print(f"  {title:<14}{plain(text)}")


# ---------------------------------------------------------------------- files


def _kind(file: Path) -> str:
    import tomllib

    try:
        return str(tomllib.loads(file.read_text(encoding="utf-8")).get("kind", ""))
    except (OSError, ValueError):
        return ""  # read_spec reports the error


def _read(file: Path) -> Spec:
    from avow.spark.pipelines.spec import read_spec

    return read_spec(file)


def _changed(spec: Spec, *, master: str, checkpoint: str, again: bool) -> Spec:
    from avow.spark.pipelines.spec import kind_of

    if again and kind_of(spec) != "replay":
        raise InvalidRequest(
            f"--again repeats a replay, but {spec.name} is a pipeline of kind {kind_of(spec)}; nothing was started"
        )
    if master:
        spec = msgspec.structs.replace(spec, spark=msgspec.structs.replace(spec.spark, master=master))
    return msgspec.structs.replace(spec, checkpoint=str(Path(checkpoint).absolute())) if checkpoint else spec


def _settings(spec: Spec) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(spec)
    if found["cluster"].get("token"):
        found["cluster"]["token"] = "..."
    return found


def _status(spec: Spec) -> Status:
    from avow.spark.pipelines.spec import kind_of
    from avow.spark.pipelines.status import read_status

    return read_status(spec.checkpoint, name=spec.name, kind=kind_of(spec))


def _listed(path: Path) -> dict[str, Any] | None:
    """None for a TOML file that is not a pipeline."""
    kind = _kind(path)
    if not kind:
        return None
    if kind == "audit":
        return {"file": str(path), "name": path.stem, "kind": kind}
    try:
        spec = _read(path)
    except AvowError as error:
        return {"file": str(path), "name": path.stem, "kind": kind, "mistake": str(error)}
    return {"file": str(path), **msgspec.to_builtins(_status(spec)), "rows": _status(spec).rows}


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    name, kind = plain(one["name"]), plain(one["kind"])
    if "mistake" in one:
        return (name, kind, "mistake", "", "", "", plain(one["mistake"]))
    if "state" not in one:
        return (name, kind, "", "", "", "", "")
    when = duration_text(round(time.time() - one["last_batch_s"])) + " ago" if one["last_batch_s"] else ""
    state = one["state"] + (f", pid {one['pid']}" if one["state"] == "running" else "")
    return (name, kind, state, number(one["rows"]), number(one["counts"]["lag"]), when, plain(one["error"]))


def _state(status: Status) -> str:
    if status.state in ("starting", "running"):
        return f"{status.state} (pid {status.pid})"
    crashed = "crashed: the last run ended without reporting a status"
    return {"never": "has not run yet", "crashed": crashed}.get(status.state, status.state)


# ---------------------------------------------------------------------- audits


def _audit(file: Path, *, master: str, report: bool, as_json: bool) -> None:
    """Run an audit and exit: it runs once and has no checkpoint."""
    from avow.spark.pipelines.audit import run_audit

    found = run_audit(file, master=master, report=report)
    print_json(found) if as_json else typer.echo(found.text())
    raise typer.Exit(found.exit_code if found.exit_code in (OK, REFUSED) else USAGE)


def _show_audit(file: Path, *, as_json: bool) -> None:
    from avow.spark.pipelines.audit import read_audit

    spec, _ = read_audit(file)
    if as_json:
        print_json({"name": spec.name, "kind": "audit", "stages": spec.stages})
        return
    out = console()
    out.print(f"[bold]{plain(spec.name)}[/bold]  audit")
    for stage, described in spec.stages.items():
        out.print(f"  {stage:<14}{plain(described)}")


# ---------------------------------------------------------------------- output of run and show


@contextmanager
def shown(*, as_json: bool) -> Iterator[Callable[[Status], None]]:
    """The function that a runner calls with its status."""
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
        self._written: tuple[str, int] = ("", -1)
        self._next_s = 0.0

    def __call__(self, status: Status) -> None:
        progress = (status.state, status.counts.batches)
        state_is_new = progress[0] != self._written[0]
        if progress == self._written or (not state_is_new and time.monotonic() < self._next_s):
            return
        self._written, self._next_s = progress, time.monotonic() + LINE_INTERVAL_S
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
        parts.append(
            f"last batch {number(counts.batch_rows)} in {counts.batch_s:.2f} s, {counts.rows_per_s:,.0f} rows/s"
        )
    if counts.lag is not None:
        parts.append(f"lag {number(counts.lag)}")
    if counts.trimmed:
        parts.append(f"trimmed {number(counts.trimmed)}")
    return ", ".join(parts)


def as_object(status: Status) -> dict[str, Any]:
    """The status as a flat object for programs: state and counts."""
    found: dict[str, Any] = msgspec.to_builtins(status)
    counts: dict[str, Any] = found.pop("counts")
    del counts["seen"]
    return {**found, **counts, "rows_total": status.rows}


def report_end(ended: Ended, *, as_json: bool) -> None:
    """Print how the pipeline ended: an error goes to stderr, everything else to stdout."""
    if as_json:
        typer.echo(msgspec.json.encode({**as_object(ended.status), "exit_code": ended.code, "note": ended.note}))
        return
    if ended.note:
        typer.echo(f"{ended.status.name}: {ended.note}")
    if ended.error:
        where = f"; the full stack trace is in {ended.status.trace}" if ended.status.trace else ""
        outcome = "failed" if ended.code == 1 else "could not start"
        sys.stderr.write(f"avow: pipeline {ended.status.name} {outcome}: {ended.error}{where}\n")
    elif sys.stdout.isatty():
        typer.echo(line(ended.status))


def facts(spec: Spec, status: Status) -> list[tuple[str, str]]:
    """The lines of `avow pipeline show`, as pairs of title and text."""
    source = spec.source
    read = source.table or source.pattern or ", ".join(source.queues)
    lines = [("reads", f"{read} from {source.start}" + (f", archive {source.archive}" if source.archive else ""))]
    sink = getattr(spec, "sink", None)
    lines.append(("writes", getattr(spec, "table", "") or (sink.queue or sink.table if sink else "")))
    texts = {name: getattr(spec, name, "") for name in ("sql", "python", "row", "where", "dead_letters")}
    lines.extend((name.replace("_", " "), " ".join(text.split())) for name, text in texts.items() if text)
    if getattr(spec, "trim", False):
        lines.append(("trims", f"archived messages, except the last {number(getattr(spec, 'keep', 0))} of each lane"))
    lines.append(("servers", spec.cluster.servers))
    lines.append(("checkpoint", spec.checkpoint))
    return lines + _history(status)


def _history(status: Status) -> list[tuple[str, str]]:
    if status.state == "never":
        return []
    counts, now = status.counts, time.time()
    lines = [("rows", f"{number(status.rows)} in total, {number(counts.rows)} in the last run")]
    lines.append(("started", f"{duration_text(round(now - status.started_s))} ago"))
    if status.last_batch_s:
        ago = duration_text(round(now - status.last_batch_s))
        lines.append(("last batch", f"{ago} ago: {plural(counts.batch_rows, 'row')} in {counts.batch_s:.2f} s"))
    if counts.lag is not None:
        lines.append(("lag", number(counts.lag)))
    if counts.trimmed:
        lines.append(("trimmed", number(counts.trimmed)))
    if status.error:
        lines.append(("error", status.error))
    if status.trace:
        lines.append(("trace", status.trace))
    return lines
