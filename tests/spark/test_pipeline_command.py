"""`avow pipeline` on the command line: exit codes, signals, output, files left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avow.client.blocking import BlockingClient, connect_blocking
from avow.limits import PIPELINES_QUEUE
from avow.spark.pipelines.reports import Report, read_reports
from avow.spark.pipelines.status import read_status
from avow.spark.tables import open_table
from avow.testing.cluster import LocalCluster, wait_until

RUN_S = 400
SPARK = """
[spark]
master = "local[2]"
config = { "spark.sql.shuffle.partitions" = 2, "spark.driver.memory" = "1g" }
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(cluster.addresses) as made:
        yield made


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "avow.cli", "pipeline", *words]


def run_command(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=RUN_S, check=False)
    return done.returncode, done.stdout, done.stderr


def archive_file(folder: Path, servers: str) -> Path:
    path = folder / "keep.toml"
    head = f'kind = "archive"\nservers = "{servers}"\ntable = "delta:table"\nevery = "0 seconds"\ntrim = true\n'
    path.write_text(head + '[source]\nqueue = "orders"\n' + SPARK)
    return path


def failing_file(folder: Path, servers: str) -> Path:
    path = folder / "fail.toml"
    statement = "SELECT string(CAST(string(value) AS INT)) AS value FROM source"
    head = f'kind = "transform"\nservers = "{servers}"\nsql = "{statement}"\n'
    path.write_text(head + '[source]\nqueue = "words"\n[sink]\nqueue = "numbers"\n' + SPARK)
    return path


def test_a_pipeline_is_interrupted_resumes_ends_and_fails_with_its_exit_codes(
    cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    for name in ("orders", "words", "numbers"):
        client.create_queue(name)
    client.queue("orders").enqueue_many([b"order %d" % number for number in range(100)])
    file, checkpoint = archive_file(tmp_path, cluster.addresses), str(tmp_path / "keep.checkpoint")
    with subprocess.Popen(command("run", str(file), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:

        def rows() -> int:
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            return read_status(checkpoint, name="keep", kind="archive").rows

        wait_until(lambda: rows() == 100, timeout_s=RUN_S, what="the rows in the status")
        code, printed, _ = run_command("list", str(tmp_path), "--json")
        assert (code, [(one["name"], one["state"]) for one in json.loads(printed)]) == (0, [("keep", "running")])
        code, _, errors = run_command("run", str(file))
        assert code == 2
        assert "is already running" in errors
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=RUN_S)
    assert run.returncode == 130
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert (lines[0]["state"], lines[-1]["state"]) == ("starting", "stopped")
    assert (lines[-1]["rows"], lines[-1]["exit_code"], lines[-1]["trimmed"]) == (100, 130, 100)

    client.queue("orders").enqueue_many([b"later"] * 20)
    client.queue("words").enqueue(b"no number")
    with subprocess.Popen(
        command("run", str(failing_file(tmp_path, cluster.addresses)), "--once"), stderr=subprocess.PIPE, text=True
    ) as failing:
        code, printed, _ = run_command("run", str(file), "--once")
        _, errors = failing.communicate(timeout=RUN_S)
    assert code == 0
    assert "keep: done, 20 rows in 1 batch" in printed
    assert open_table(f"delta:{tmp_path}/table").count() == 120
    assert failing.returncode == 1
    assert "CAST_INVALID_INPUT" in errors
    assert "_avow_failure.txt" in errors
    code, printed, _ = run_command("show", str(tmp_path / "fail.toml"))
    assert code == 0
    assert "failed" in printed
    assert "CAST_INVALID_INPUT" in (tmp_path / "fail.checkpoint" / "_avow_failure.txt").read_text()
    check_reports(client)


def check_reports(client: BlockingClient) -> None:
    """The reports of the runs above to the cluster: each state in order, and the final status."""
    found = [
        msgspec.json.decode(message.value, type=Report)
        for batch in client.queue(PIPELINES_QUEUE).read()
        for message in batch.messages()
    ]
    states = [one.state for one in found if one.name == "keep"]
    changes = [state for state, before in zip(states, ["", *states], strict=False) if state != before]
    assert changes == ["starting", "running", "stopped", "starting", "running", "done"]
    last = {one.name: one for one in read_reports(client)}
    assert (last["keep"].kind, last["keep"].rows, last["keep"].lag) == ("archive", 20, 0)
    assert (last["fail"].kind, last["fail"].state) == ("transform", "failed")
    assert "CAST_INVALID_INPUT" in last["fail"].error


def test_a_pipeline_that_cannot_start_fails_before_spark_is_started(cluster: LocalCluster, tmp_path: Path) -> None:
    file = archive_file(tmp_path, cluster.addresses)
    file.write_text(file.read_text().replace('"orders"', '"nowhere"').replace("trim = true", "trim = true\nkeep = 0"))
    code, printed, errors = run_command("run", str(file))
    assert (code, printed) == (2, "")
    assert "nowhere" in errors
    file.write_text(file.read_text().replace("keep", "kep"))
    for words in (("run", str(file)), ("show", str(file))):
        code, _, errors = run_command(*words)
        assert code == 2
        assert "kep: is unknown; did you mean keep?" in errors
