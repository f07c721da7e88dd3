"""A file of `kind = "audit"`, run once: `audit` is told in a file what it compares, and answers with a report."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avow.errors import InvalidRequest
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.sections import Mistakes, Section
from avow.spark.pipelines.spec import SparkSettings, read_spark

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


def run_audit(file: Path, *, master: str = "") -> Report:
    """Raises AvowError when it could not be run."""
    from avow.spark.pipelines.audit import audit
    from avow.spark.session import session

    spec, settings = read_audit(file)
    config = {"spark.ui.showConsoleProgress": "false", **settings.config}
    spark = session(f"avow {spec.name}", master=master or settings.master, config=config)
    try:
        spark.sparkContext.setLogLevel(settings.log)
        return audit(spark, spec)
    finally:
        spark.stop()
