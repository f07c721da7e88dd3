"""`audit`: compares what was committed, pledged, queued and written, joined by id, and reports the differences.

    report = audit(spark, AuditSpec.from_table({...}))                    configured stages
    report = compare({"queue": df, "table": other})                       DataFrames, each with a column `id`
    print(report.text()); raise SystemExit(report.exit_code)

Spark joins the stages by id in one shuffle, counts each id in each stage, and then counts the ids that are in the same
state. There are few different states, so the driver judges them (`audit_rules`), and only ids that are shown leave
the cluster.

Stages are read one after the other while the system works. So that messages in flight are not reported as lost, audit
only older data (with a query and offsets that end in the past), or let the audit repeat the comparison: `patience_s`.

`run_audit` runs a file of `kind = "audit"` once. Like other pipelines it reports its status to a queue if it knows a
cluster: `done` if the audit is clean, otherwise `failed` with the verdict or with the error that prevented the audit.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from avow.errors import InvalidRequest, Refused
from avow.spark.pipelines.audit_report import Finding, Report, StageCount
from avow.spark.pipelines.audit_rules import COUNT_MAX, KINDS, STAGES, Found, Signature, Stage, judge
from avow.spark.pipelines.audit_spec import IDS_SHOWN, AuditSpec
from avow.spark.pipelines.failures import cause_of
from avow.spark.pipelines.progress import Counts
from avow.spark.pipelines.reports import reported
from avow.spark.pipelines.sections import Mistakes, Section
from avow.spark.pipelines.spec import Cluster, SparkSettings, read_spark
from avow.spark.pipelines.status import Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAUSE_S: Final = 1.0
_STATE: Final = "state"


def read_audit(file: Path) -> tuple[AuditSpec, SparkSettings]:
    """Raises InvalidRequest."""
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as cause:
        raise InvalidRequest(f"{file} cannot be read: {cause}; nothing was started") from cause
    mistakes = Mistakes(str(file))
    spark = read_spark(Section({"spark": found.pop("spark", {})}, "", mistakes).section("spark"))
    mistakes.check()
    variables = {"servers": "AVOW_API", "token": "AVOW_TOKEN", "ca": "AVOW_CA"}
    known = {key: os.environ[name] for key, name in variables.items() if os.environ.get(name)}
    return AuditSpec.from_table({"name": file.stem, **known, **found}, folder=str(file.absolute().parent)), spark


def run_audit(file: Path, *, master: str = "", report: bool = True) -> Report:
    """Raises AvowError if the audit could not be run."""
    spec, settings = read_audit(file)
    status = Status(name=spec.name, kind="audit", state="starting", pid=os.getpid(), started_s=time.time())
    with reported(report_cluster(spec), spec.report if report else "") as reporter:
        send = reporter.report if reporter is not None else _discard
        send(status)
        try:
            found = _run(spec, settings, master=master, running=lambda: send(replace(status, state="running")))
        except Exception as error:
            send(replace(status, state="failed", error=cause_of(error)))
            raise
        send(ended_status(status, found))
        return found


def report_cluster(spec: AuditSpec) -> Cluster | None:
    """The cluster from which the audit reads; None if it reads from none."""
    read = [spec.access(part) for part in (spec.queue, spec.pledges) if part is not None]
    known = next((access for access in read if access.get("servers")), None)
    if known is None:
        known = {"servers": spec.servers, "token": spec.token or "", "ca": spec.ca or ""}
    return Cluster(**known) if known["servers"] else None


def ended_status(status: Status, found: Report) -> Status:
    """The status after an audit; its rows are those of all stages. Pure."""
    rows = sum(one.rows for one in found.stages)
    speed = rows / found.duration_s if found.duration_s > 0 else 0.0
    counts = Counts(batches=1, rows=rows, batch_rows=rows, batch_s=found.duration_s, rows_per_s=speed)
    return replace(
        status, state="done" if found.clean else "failed", counts=counts, error="" if found.clean else found.verdict
    )


def _run(spec: AuditSpec, settings: SparkSettings, *, master: str, running: Callable[[], None]) -> Report:
    from avow.spark.session import session

    config = {"spark.ui.showConsoleProgress": "false", **settings.config}
    spark = session(f"avow {spec.name}", master=master or settings.master, config=config)
    try:
        spark.sparkContext.setLogLevel(settings.log)
        running()
        return audit(spark, spec)
    finally:
        spark.stop()


def _discard(status: Status) -> None:
    """Used if there is no queue for reports."""


def audit(spark: SparkSession, spec: AuditSpec) -> Report:
    """Raises Refused or InvalidRequest if a stage cannot be read."""
    from pyspark.errors import PySparkException

    from avow.spark.pipelines.audit_inputs import frames, register

    spec.check()
    register(spark)
    started = time.monotonic()
    while True:
        try:
            report = compare(frames(spark, spec), name=spec.name, show=spec.show, stages=spec.stages)
        except PySparkException as failure:
            raise Refused(f"the audit could not read all stages: {_cause(failure)}; nothing was changed") from failure
        left_s = started + spec.patience_s - time.monotonic()
        if report.clean or left_s <= 0:
            return _timed(report, time.monotonic() - started)
        time.sleep(min(PAUSE_S, left_s))


def compare(
    inputs: Mapping[Stage, DataFrame],
    *,
    name: str = "audit",
    show: int = IDS_SHOWN,
    stages: Mapping[Stage, str] | None = None,
) -> Report:
    """Compares at least two stages. `pledges` also needs a column `status`; `stages` describes them in the report."""
    known = [stage for stage in STAGES if stage in inputs]
    if len(known) < 2 or len(known) < len(inputs):
        raise InvalidRequest(f"an audit compares at least two of {', '.join(STAGES)}; nothing was read")
    joined = _joined({stage: inputs[stage] for stage in known}).persist()
    try:
        states = _states(joined, known)
        wrong = {text: found for text, (found, _) in states.items() if found}
        ids = _first_ids(joined, list(wrong), show)
    finally:
        joined.unpersist()
    return Report(
        name=name,
        stages=tuple(_counted(stage, states, (stages or {}).get(stage, "")) for stage in known),
        statuses=_statuses(states) if "pledges" in known else {},
        findings=_findings(wrong, states, ids, show),
    )


# ------------------------------------------------------------------------------------------------------- with Spark


def _joined(inputs: Mapping[Stage, DataFrame]) -> DataFrame:
    """One row per id: its count in each stage, and its state, which is a Signature as JSON."""
    from pyspark.sql import functions as F

    rows = [
        frame.select(
            F.col("id").cast("string").alias("id"),
            F.lit(stage).alias("stage"),
            (F.col("status") if stage == "pledges" else F.lit(None)).cast("string").alias("status"),
        )
        for stage, frame in inputs.items()
    ]
    counts = [F.count_if(F.col("stage") == stage).alias(stage) for stage in inputs]
    by_id = (
        reduce(lambda one, other: one.unionAll(other), rows)
        .groupBy("id")
        .agg(*counts, F.max("status").alias("pledge_status"))
    )
    return by_id.withColumn(_STATE, F.to_json(F.struct(*(_part(stage) for stage in inputs))))


def _part(stage: Stage) -> Column:
    from pyspark.sql import functions as F

    if stage == "pledges":
        return F.coalesce("pledge_status", F.lit("")).alias(stage)
    return F.least(F.col(stage), F.lit(COUNT_MAX)).alias(stage)


_States: TypeAlias = dict[str, tuple[list[Found], dict[str, Any]]]


def _states(joined: DataFrame, stages: list[Stage]) -> _States:
    """By state: its findings, the number of ids in it, and their number of rows in each stage."""
    import msgspec
    from pyspark.sql import functions as F

    sums = [F.sum(stage).alias(stage) for stage in stages]
    rows = joined.groupBy(_STATE).agg(F.count("*").alias("ids"), *sums).collect()
    decode = msgspec.json.Decoder(Signature).decode
    return {row[_STATE]: (judge(decode(row[_STATE])), row.asDict()) for row in rows}


def _first_ids(joined: DataFrame, states: list[str], show: int) -> dict[str, list[str]]:
    """The first ids of each of these states, sorted."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not states:
        return {}
    place = F.row_number().over(Window.partitionBy(_STATE).orderBy("id"))
    rows = joined.where(F.col(_STATE).isin(states)).select(_STATE, "id", place.alias("place"))
    found: dict[str, list[str]] = {}
    for row in rows.where(F.col("place") <= show).orderBy(_STATE, "place").collect():
        found.setdefault(row[_STATE], []).append(row["id"])
    return found


# -------------------------------------------------------------------------------------------------------- the report


def _counted(stage: Stage, states: _States, what: str) -> StageCount:
    there = [counts for _, counts in states.values() if counts[stage]]
    return StageCount(stage, what, sum(counts[stage] for counts in there), sum(counts["ids"] for counts in there))


def _statuses(states: _States) -> dict[str, int]:
    import msgspec

    found: dict[str, int] = {}
    for text, (_, counts) in states.items():
        status = msgspec.json.decode(text)["pledges"]
        if status:
            found[status] = found.get(status, 0) + counts["ids"]
    return found


def _findings(
    wrong: Mapping[str, list[Found]], states: _States, ids: Mapping[str, list[str]], show: int
) -> tuple[Finding, ...]:
    """Different states may have the same finding; their ids are counted together."""
    same: dict[Found, list[str]] = {}
    for state, found in wrong.items():
        for one in found:
            same.setdefault(one, []).append(state)
    made = [
        Finding(
            one.kind,
            one.stage,
            one.what,
            sum(states[state][1]["ids"] for state in among),
            tuple(sorted(text for state in among for text in ids.get(state, ()))[:show]),
        )
        for one, among in same.items()
    ]
    return tuple(sorted(made, key=lambda one: (KINDS.index(one.kind), STAGES.index(one.stage), one.what)))


def _timed(report: Report, duration_s: float) -> Report:
    from msgspec.structs import replace

    return replace(report, duration_s=duration_s)


def _cause(failure: Exception) -> str:
    """The last line of the Python trace; Spark adds its own lines around it."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("avow.errors.", "psycopg.", "sqlite3.", "pymysql."))]
    return (ours or lines or [type(failure).__name__])[-1 if ours else 0]
