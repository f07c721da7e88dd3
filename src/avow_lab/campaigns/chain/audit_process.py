"""The audit in a separate process, so that the campaign's has no JVM: python -m ... SPEC REPORT, both JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from avow.errors import AvowError
from avow.spark.pipelines.audit import audit
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.session import session
from avow_lab.campaigns.harness.spark_driver import SETTINGS


def main() -> None:
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=AuditSpec)
    spark = session("audit", master="local[2]", config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        report = audit(spark, spec)
    except AvowError as error:
        sys.exit(f"{error}")
    finally:
        spark.stop()
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
