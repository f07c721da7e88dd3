"""Every way into Spark: plain, SQL, Spark Connect, a declarative pipeline, and the first lines of the documentation."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from avow.client.blocking import BlockingClient, connect_blocking
from avow.spark.java import find_java
from avow.testing.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"
ROWS = 20
ENDS_S = 400.0  # on a machine with nothing else to do: half a minute


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(cluster.addresses) as made:
        made.create_queue("lines", lanes=2)
        made.queue("lines").enqueue_many([b"line %d" % n for n in range(ROWS)], keys=[b"%d" % n for n in range(ROWS)])
        yield made


def lines(client: BlockingClient, queue: str) -> list[str]:
    return sorted(bytes(value).decode() for batch in client.queue(queue).read() for value in batch.values())


EXPECTED = sorted(f"line {number}" for number in range(ROWS))


# ------------------------------------------------------------------------- SQL


def test_a_view_is_read_and_a_view_is_inserted_into(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient
) -> None:
    client.create_queue("inserted")
    servers = cluster.addresses
    spark.sql(f"CREATE TEMPORARY VIEW messages USING avow OPTIONS (servers '{servers}', subscribe 'lines')")
    spark.sql(f"""
        CREATE TEMPORARY VIEW inserted (key BINARY, value BINARY)
        USING avow OPTIONS (servers '{servers}', topic 'inserted', txnAppId 'sql', txnVersion '1')
    """)
    for _ in range(2):
        spark.sql("INSERT INTO inserted SELECT key, value FROM messages")
    assert lines(client, "inserted") == EXPECTED  # once: the same txnAppId and txnVersion


def test_a_table_of_the_catalog_gets_its_options_with_each_statement(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient
) -> None:
    client.create_queue("selected")
    servers = cluster.addresses
    spark.sql("CREATE TABLE queues (value BINARY, key BINARY) USING avow")
    spark.sql(f"""
        INSERT INTO queues WITH (servers = '{servers}', topic = 'selected')
        SELECT value, key FROM queues WITH (servers = '{servers}', subscribe = 'lines')
    """)
    assert lines(client, "selected") == EXPECTED


def test_the_example_in_sql_runs(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_queue("copied")
    runpy.run_path(str(EXAMPLES / "sql.py"))["main"](cluster.addresses, "lines", "copied")
    lane = [bytes(value).decode() for batch in client.queue("lines").read(lane=0) for value in batch.values()]
    assert 0 < len(lane) < ROWS
    assert lines(client, "copied") == sorted(lane)
    assert "messages" in capsys.readouterr().out


# --------------------------------------------------------------- other programs


def test_spark_connect_reads_and_writes(cluster: LocalCluster, client: BlockingClient, tmp_path: Path) -> None:
    client.create_queue("connected")
    output = _run([sys.executable, str(EXAMPLES / "connect.py"), cluster.addresses, "lines", "connected"], tmp_path)
    assert f"rows: {ROWS}" in output
    assert lines(client, "connected") == EXPECTED


def test_a_declarative_pipeline_has_a_queue_as_its_source_and_one_as_its_sink(
    cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_queue("orders", lanes=2)
    client.create_queue("shouted")
    client.queue("orders").enqueue_many([b"first", b"second", b"third"])
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative", project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text("utf-8").replace("http://127.0.0.1:7401", cluster.addresses)
    spec.write_text(text.replace("/tmp/avow-declarative", str(tmp_path / "storage")), "utf-8")
    output = _run([str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", str(spec)], project)
    assert "Run is COMPLETED" in output
    assert lines(client, "shouted") == ["FIRST", "SECOND", "THIRD"]


def test_the_first_lines_of_the_documentation_run(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    text = found[1].replace("http://127.0.0.1:7401", cluster.addresses)
    exec(text.replace("large.checkpoint", str(tmp_path / "checkpoint")), {})
    assert lines(client, "large") == ["120", "3000"]


def _run(command: list[str], folder: Path) -> str:
    """Its output. It must exit with status 0."""
    environment = {**os.environ, "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    log = folder / "output.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            code = process.wait(ENDS_S)
        finally:
            process.kill()
            process.wait()
    output = log.read_text(errors="replace")
    assert code == 0, output[-3_000:]
    return output
