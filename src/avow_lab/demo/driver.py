"""The demo's driver of Spark: the pipeline from the queue of orders to a Delta table, and the audit, in one JVM.

A JVM takes longest to start, so it is started before the peers, and waits for them here. It is started only once: the
audit is requested by HTTP and made by the same Spark.

    POST /audit      an AuditSpec as JSON; 200 a Report, 500 what went wrong

The pipeline is a transform as `avow pipeline run` runs it: its status is in the checkpoint's folder, and SIGTERM stops
it after the current batch. A pipeline that failed is started again from its checkpoint.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from avow.client.blocking import connect_blocking
from avow.errors import AvowError
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.runner import FAILED, Options, run
from avow.spark.pipelines.spec import Cluster, Sink, Source, SparkSettings, TransformSpec
from avow.spark.pipelines.status import Status
from avow.spark.session import session
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.chain.pipeline import COLUMNS, EVERY
from avow_lab.campaigns.chain.shop import QUEUE
from avow_lab.campaigns.harness.http_responder import serve
from avow_lab.campaigns.harness.spark_driver import JAVA_OPTIONS, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE: Final = "orders"
PEERS_S: Final = 120.0
LIVES_MAX: Final = 5
_SPEC: Final = msgspec.json.Decoder(AuditSpec)  # made once: threads that build it at the same time can crash


def spark_of(given: argparse.Namespace) -> SparkSession:
    """Spark's temporary files are in the demo's folder, and are removed with it."""
    scratch = given.scratch
    Path(scratch).mkdir(parents=True, exist_ok=True)
    options = f"{SETTINGS[JAVA_OPTIONS]} -XX:-UsePerfData -Djava.io.tmpdir={scratch}"
    config = {**SETTINGS, "spark.local.dir": scratch, JAVA_OPTIONS: options}
    spark = session("avow demo", master=given.master, config=config)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def spec_of(given: argparse.Namespace) -> TransformSpec:
    return TransformSpec(
        name=PIPELINE,
        checkpoint=given.checkpoint,
        source=Source(queues=(QUEUE,)),
        cluster=Cluster(servers=given.servers),
        spark=SparkSettings(master=given.master),
        every=EVERY,
        sink=Sink(table=given.table),
        sql=f"select {', '.join(COLUMNS)} from source",
    )


def wait_for_queue(servers: str) -> None:
    """Returns when the peers run and the queue exists."""

    def known() -> bool:
        try:
            with connect_blocking(servers, timeout_s=1.0) as client:
                client.queue(QUEUE).info()
        except AvowError:
            return False
        return True

    wait_until(known, timeout_s=PEERS_S, what=f"no queue {QUEUE} at {servers}")


class Auditor:
    url = ""

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        if (method, target) != ("POST", "/audit"):
            return 404, b""
        return 200, audited(_SPEC.decode(body))


def audited(spec: AuditSpec) -> bytes:
    from pyspark.sql import SparkSession

    from avow.spark.pipelines.audit import audit

    spark = SparkSession.builder.getOrCreate()
    spark.createDataFrame([], "active int")  # makes the session this thread's, or no source is found
    return msgspec.json.encode(audit(spark, spec))


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--servers", "--table", "--checkpoint", "--master", "--scratch"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    spark_of(given)
    wait_for_queue(given.servers)
    threading.Thread(target=serve, args=(Auditor(),), kwargs={"port": given.port}, daemon=True).start()
    sys.exit(drive(given))


def drive(given: argparse.Namespace) -> int:
    """Runs until SIGTERM."""
    for _ in range(LIVES_MAX):
        ended = run(spec_of(given), Options(), _quiet)
        if ended.code != FAILED:
            break
        sys.stderr.write(f"the pipeline failed and is started again: {ended.error[:2_000]}\n")
        spark_of(given)
    if ended.error:
        sys.stderr.write(f"{ended.error}\n")
    return ended.code


def _quiet(status: Status) -> None:
    """The status is in a file in the checkpoint's folder."""


if __name__ == "__main__":
    main()
