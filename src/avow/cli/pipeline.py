"""`avow pipeline`: run, list, show. Spark is imported when a pipeline runs, and not before."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from avow.cli.options import CaOption, JsonOption, TimeoutOption, TokenOption
from avow.cli.show import OK, REFUSED, USAGE, console, duration_text, number, plain, print_json, table
from avow.errors import AvowError, InvalidRequest

if TYPE_CHECKING:
    from avow.spark.pipelines.spec import Spec
    from avow.spark.pipelines.status import Status

app = typer.Typer(
    help="Queues and tables through Spark: archive, transform, replay, audit. A pipeline is a TOML file.",
    no_args_is_help=True,
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline's TOML file.", show_default=False)]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs, instead of what the file says: local[4].")
]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="DIR", help="Instead of the folder that the file names.")
]
MetricsOption = Annotated[
    int | None, typer.Option("--metrics-port", min=1, max=65_535, metavar="N", help="Serve /metrics for Prometheus.")
]
ReportedOption = Annotated[
    str,
    typer.Option(
        "--api", envvar="AVOW_API", metavar="URL,...", help="Peers of the cluster they report to.", show_default=False
    ),
]

RUN_HELP: Final = """Run a pipeline until it is stopped, or with --once until there is nothing left to do.

Exit codes: 0 done; 1 failed, started again it goes on where it stopped; 2 could not start, nothing was read;
130 interrupted by Ctrl-C or SIGTERM, after the batch at hand.
"""


@app.command(help=RUN_HELP)
def run(
    file: FileArgument,
    once: Annotated[bool, typer.Option("--once", help="All there is now, then end.")] = False,
    again: Annotated[bool, typer.Option("--again", help="A replay that is done: do it once more.")] = False,
    master: MasterOption = "",
    checkpoint: CheckpointOption = "",
    metrics_port: MetricsOption = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Tell no queue how it is doing.")] = False,
    as_json: JsonOption = False,
) -> None:
    from avow.cli.pipeline_view import shown, tell_end

    try:
        if _kind(file) == "audit":
            _audit(file, master=master, report=not no_report, as_json=as_json)
        spec = _changed(_read(file), master=master, checkpoint=checkpoint, again=again)
        spec = msgspec.structs.replace(spec, report="") if no_report else spec
    except AvowError as error:
        sys.stderr.write(f"avow: {error.code}: {error}\n")
        raise typer.Exit(USAGE) from error
    from avow.spark.pipelines.running import Options
    from avow.spark.pipelines.running import run as run_pipeline

    options = Options(once=once, again=again, metrics_port=metrics_port)
    with shown(as_json=as_json) as tell:
        ended = run_pipeline(spec, options, tell)
    tell_end(ended, as_json=as_json)
    raise typer.Exit(ended.code)


@app.command("list")
def list_pipelines(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Where the files are; this one, without --api.")
    ] = None,
    api: ReportedOption = "",
    token: TokenOption = "",
    ca: CaOption = "",
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List the pipelines of a folder (*.toml), or with --api those that report to a cluster; and how each is doing."""
    if folder is None and api:
        from avow.cli.pipeline_reports import list_reported

        list_reported(api, token=token, ca=ca, timeout_s=timeout_s, as_json=as_json)
        return
    _list_folder(folder or Path(), as_json=as_json)


def _list_folder(folder: Path, *, as_json: bool) -> None:
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is no folder; nothing was read")
    found = [_listed(path) for path in sorted(folder.glob("*.toml"))]
    rows = [one for one in found if one is not None]
    if as_json:
        print_json(rows)
        return
    columns = ("pipeline", "kind", "state", ">rows", ">lag", "last batch", "")
    empty = f"no pipelines in {folder}: a pipeline is a file such as archive.toml"
    console().print(table("", *columns, rows=[_row(one) for one in rows], empty=empty))


@app.command()
def show(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show one pipeline: what its file says, how far it is, why it failed. A file with mistakes ends with code 2."""
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
    from avow.cli.pipeline_view import facts

    out = console()
    out.print(f"[bold]{plain(spec.name)}[/bold]  {status.kind}, {_state(status)}")
    for title, said in facts(spec, status):
        out.print(f"  {title:<14}{plain(said)}")


# ---------------------------------------------------------------------- files


def _kind(file: Path) -> str:
    import tomllib

    try:
        return str(tomllib.loads(file.read_text(encoding="utf-8")).get("kind", ""))
    except (OSError, ValueError):
        return ""  # told by whoever reads it in earnest


def _read(file: Path) -> Spec:
    from avow.spark.pipelines.spec import read_spec

    return read_spec(file)


def _changed(spec: Spec, *, master: str, checkpoint: str, again: bool) -> Spec:
    from avow.spark.pipelines.spec import kind_of

    if again and kind_of(spec) != "replay":
        raise InvalidRequest(f"--again is for a replay, and {spec.name} is a pipeline of kind {kind_of(spec)}")
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
    """None for a TOML file that is no pipeline at all."""
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
    return {"never": "has not run yet", "died": "died: its last run left no word"}.get(status.state, status.state)


# ---------------------------------------------------------------------- audits


def _audit(file: Path, *, master: str, report: bool, as_json: bool) -> None:
    """Ends the command: an audit is a question with an answer, and has no checkpoint."""
    from avow.spark.pipelines.auditing import run_audit

    found = run_audit(file, master=master, report=report)
    print_json(found) if as_json else typer.echo(found.text())
    raise typer.Exit(found.exit_code if found.exit_code in (OK, REFUSED) else USAGE)


def _show_audit(file: Path, *, as_json: bool) -> None:
    from avow.spark.pipelines.auditing import read_audit

    spec, _ = read_audit(file)
    if as_json:
        print_json({"name": spec.name, "kind": "audit", "stages": spec.stages})
        return
    out = console()
    out.print(f"[bold]{plain(spec.name)}[/bold]  audit")
    for stage, said in spec.stages.items():
        out.print(f"  {stage:<14}{plain(said)}")
