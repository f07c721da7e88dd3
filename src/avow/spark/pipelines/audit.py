"""The books of a chain: what was committed, pledged, sent and stored, joined by id; and what does not add up.

    report = audit(spark, AuditSpec.from_table({...}))                    stages as they are configured
    report = compare({"queue": df, "table": other})                       DataFrames of one's own, each with `id`
    print(report.text()); raise SystemExit(report.exit_code)

Spark brings the stages together by id in one exchange, counts each id in each stage, and then counts the ids that are
in the same state. There are few such states, so what they mean is decided here (`audit_rules`), and only the ids that
are shown leave the cluster.

Stages are read one after the other, while others go on working. So that what is on its way is not taken for lost, audit
what is over (a query and offsets that end some time ago), or let the audit look again: `patience_s`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from avow.errors import InvalidRequest, Refused
from avow.spark.pipelines.audit_report import Finding, Report, StageCount
from avow.spark.pipelines.audit_rules import COUNT_MAX, KINDS, STAGES, Found, Signature, Stage, judge
from avow.spark.pipelines.audit_spec import IDS_SHOWN, AuditSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAUSE_S: Final = 1.0
_STATE: Final = "state"


def audit(spark: SparkSession, spec: AuditSpec) -> Report:
    """Raises Refused or InvalidRequest when a stage cannot be read."""
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
    """Of at least two stages. `pledges` has a column `status` beside `id`; `stages` are words for the report."""
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
    """One row for each id: how often each stage has it, and its state, which is a Signature as JSON."""
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
        reduce(lambda one, other: one.unionAll(other), rows).groupBy("id").agg(*counts, F.max("status").alias("said"))
    )
    return by_id.withColumn(_STATE, F.to_json(F.struct(*(_part(stage) for stage in inputs))))


def _part(stage: Stage) -> Column:
    from pyspark.sql import functions as F

    if stage == "pledges":
        return F.coalesce("said", F.lit("")).alias(stage)
    return F.least(F.col(stage), F.lit(COUNT_MAX)).alias(stage)


_States = dict[str, tuple[list[Found], dict[str, Any]]]


def _states(joined: DataFrame, stages: list[Stage]) -> _States:
    """By state: what is wrong with it, and how many ids are in it, and how many rows they have in each stage."""
    import msgspec
    from pyspark.sql import functions as F

    sums = [F.sum(stage).alias(stage) for stage in stages]
    rows = joined.groupBy(_STATE).agg(F.count("*").alias("ids"), *sums).collect()
    decode = msgspec.json.Decoder(Signature).decode
    return {row[_STATE]: (judge(decode(row[_STATE])), row.asDict()) for row in rows}


def _first_ids(joined: DataFrame, states: list[str], show: int) -> dict[str, list[str]]:
    """Of each of these states, the first ids in order."""
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


# -------------------------------------------------------------------------------------------------------- afterwards


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
    """Different states may be wrong in the same way."""
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
    """The last line of Python's trace says it; Spark puts its own lines around that."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("avow.errors.", "psycopg.", "sqlite3.", "pymysql."))]
    return (ours or lines or [type(failure).__name__])[-1 if ours else 0]
