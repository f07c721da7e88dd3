"""A file of `kind = "audit"`, run once: `audit` is told in a file what it compares, and answers with a report.

Like other pipelines it tells a queue how it is doing, where it knows a cluster: `done` when the books are closed, and
`failed` with the verdict when they are not, or with what kept it from being run.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from avow.errors import InvalidRequest
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.failures import cause_of
from avow.spark.pipelines.progress import Counts
from avow.spark.pipelines.reporting import reported
from avow.spark.pipelines.sections import Mistakes, Section
from avow.spark.pipelines.spec import Cluster, SparkSettings, read_spark
from avow.spark.pipelines.status import Status

if TYPE_CHECKING:
    from avow.spark.pipelines.audit_report import Report


def read_audit(file: Path) -> tuple[AuditSpec, SparkSettings]:
    """Raises InvalidRequest."""
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as cause:
        raise InvalidRequest(f"{file} cannot be read: {cause}; nothing was started") from cause
    mistakes = Mistakes(str(file))
    spark = read_spark(Section({"spark": found.pop("spark", {})}, "", mistakes).section("spark"))
    mistakes.check()
    asked = {"servers": "AVOW_API", "token": "AVOW_TOKEN", "ca": "AVOW_CA"}
    known = {key: os.environ[name] for key, name in asked.items() if os.environ.get(name)}
    return AuditSpec.from_table({"name": file.stem, **known, **found}, folder=str(file.absolute().parent)), spark


def run_audit(file: Path, *, master: str = "", report: bool = True) -> Report:
    """Raises AvowError when it could not be run."""
    spec, settings = read_audit(file)
    status = Status(name=spec.name, kind="audit", state="starting", pid=os.getpid(), started_s=time.time())
    with reported(reports_at(spec), spec.report if report else "") as reporter:
        tell = reporter.tell if reporter is not None else _nobody
        tell(status)
        try:
            found = _run(spec, settings, master=master, running=lambda: tell(replace(status, state="running")))
        except Exception as error:
            tell(replace(status, state="failed", error=cause_of(error)))
            raise
        tell(ended_status(status, found))
        return found


def reports_at(spec: AuditSpec) -> Cluster | None:
    """The cluster that it asks, if it asks one."""
    asked = [spec.access(part) for part in (spec.queue, spec.pledges) if part is not None]
    known = next((access for access in asked if access.get("servers")), None)
    if known is None:
        known = {"servers": spec.servers, "token": spec.token or "", "ca": spec.ca or ""}
    return Cluster(**known) if known["servers"] else None


def ended_status(status: Status, found: Report) -> Status:
    """Rows are those of all stages. Pure."""
    rows = sum(one.rows for one in found.stages)
    speed = rows / found.duration_s if found.duration_s > 0 else 0.0
    counts = Counts(batches=1, rows=rows, batch_rows=rows, batch_s=found.duration_s, rows_per_s=speed)
    return replace(
        status, state="done" if found.clean else "failed", counts=counts, error="" if found.clean else found.verdict
    )


def _run(spec: AuditSpec, settings: SparkSettings, *, master: str, running: Callable[[], None]) -> Report:
    from avow.spark.pipelines.audit import audit
    from avow.spark.session import session

    config = {"spark.ui.showConsoleProgress": "false", **settings.config}
    spark = session(f"avow {spec.name}", master=master or settings.master, config=config)
    try:
        spark.sparkContext.setLogLevel(settings.log)
        running()
        return audit(spark, spec)
    finally:
        spark.stop()


def _nobody(status: Status) -> None:
    """Hears it."""
