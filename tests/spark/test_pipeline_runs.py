"""Whole runs of pipelines in one JVM, against a peer with tokens and TLS; each reports its final status to the cluster.

What an option carries to the peers (addresses, token, authority) goes a long way: from a file to the driver, to Spark's
planner in a process of its own, to tasks in others. So source, sink, replay, audit and reports are all run here, once,
where nothing works without it.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import NotAuthenticated
from avow.spark.pipelines.audit import run_audit
from avow.spark.pipelines.reports import read_reports
from avow.spark.pipelines.runner import DONE, NOT_STARTED, Ended, Options, run
from avow.spark.pipelines.spec import read_spec
from avow.spark.pipelines.status import Status
from avow.testing.cluster import LocalCluster
from avow.testing.services import PostgresServer, free_port

ROWS = 50
TOKEN = "spark's secret"
RIGHTS = '{ "*" = ["read", "write"], "avow.pipelines" = ["read", "write", "manage"] }'
SPARK = '[spark]\nmaster = "local[2]"\nconfig = { "spark.sql.shuffle.partitions" = 2, "spark.driver.memory" = "1g" }\n'


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    entries = {"root": ("root", "admin = true"), "spark": (TOKEN, f"rights = {RIGHTS}")}
    (folder / "tokens.toml").write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(secret.encode()).hexdigest()}"\n{rights}\n'
            for name, (secret, rights) in entries.items()
        )
    )
    settings = {"tokens": "tokens.toml", "tls_cert": "cert.pem", "tls_key": "key.pem"}
    where = {name: str(folder / file) for name, file in settings.items()}
    with LocalCluster(1, settings=where, token="root", ca=str(folder / "ca.pem")) as made:
        yield made


@pytest.fixture(scope="module")
def client(peer: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(peer.addresses, token="root", ca=peer.ca) as made:
        for name in ("orders", "loud", "again"):
            made.create_queue(name)
        made.queue("orders").enqueue_many([b"order %d" % number for number in range(ROWS)])
        yield made


def written(folder: Path, name: str, peer: LocalCluster, text: str, *, token: str = TOKEN) -> Path:
    assert peer.addresses.startswith("https://")
    path = folder / f"{name}.toml"
    path.write_text(f'servers = "{peer.addresses}"\ntoken = "{token}"\nca = "{peer.ca}"\n{text}\n{SPARK}')
    return path


def ran(file: Path, **options: Any) -> Ended:
    return run(read_spec(file), Options(once=True, **options), lambda status: None)


def values(client: BlockingClient, queue: str) -> list[bytes]:
    return sorted(value for batch in client.queue(queue).read() for value in batch.values())


def test_a_transform_reads_and_writes_with_its_token_and_serves_its_metrics(
    peer: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    statement = 'kind = "transform"\nsql = "SELECT upper(string(value)) AS value FROM source"'
    file = written(tmp_path, "shout", peer, f'{statement}\n[source]\nqueue = "orders"\n[sink]\nqueue = "loud"')
    port, seen = free_port(), []

    def look(status: Status) -> None:
        if status.state == "running":
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                seen.append(answer.read().decode())

    ended = run(read_spec(file), Options(once=True, metrics_port=port), look)
    assert (ended.code, ended.status.counts.rows) == (DONE, ROWS), ended.error
    assert values(client, "loud") == sorted(b"ORDER %d" % number for number in range(ROWS))
    assert f'avow_pipeline_rows_total{{kind="transform",pipeline="shout"}} {ROWS}.0' in seen[-1]


def test_a_replay_with_tokens_is_one_transaction(peer: LocalCluster, client: BlockingClient, tmp_path: Path) -> None:
    text = 'kind = "replay"\n[source]\nqueue = "orders"\nstart = 11\nend = 30\n[sink]\nqueue = "again"'
    ended = ran(written(tmp_path, "again", peer, text))
    assert (ended.code, ended.status.counts.rows) == (DONE, 20), ended.error
    assert len(values(client, "again")) == 20


def test_a_table_in_postgresql_takes_each_row_once_and_an_audit_finds_nothing(
    peer: LocalCluster, client: BlockingClient, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = f"{postgres_server.dsn}?table=orders_taken"
    statement = "SELECT string(value) AS id, partition AS lane, offset AS version FROM source"
    text = f'kind = "transform"\nsql = "{statement}"\n[source]\nqueue = "orders"\n[sink]\ntable = "{url}"'
    ended = ran(written(tmp_path, "taken", peer, text))
    assert ended.code == DONE, ended.error
    with psycopg.connect(postgres_server.dsn) as connection:
        counted = connection.execute("select count(*), count(distinct id) from orders_taken").fetchone()
    assert counted == (ROWS, ROWS)
    stages = f'[queue]\nname = "orders"\nid = "string(value)"\n[table]\nurl = "{url}"\nid = "id"'
    report = run_audit(written(tmp_path, "compared", peer, f'kind = "audit"\n{stages}'))
    assert report.clean, report.text()
    assert (report.rows("queue"), report.rows("table")) == (ROWS, ROWS)


def test_every_kind_of_pipeline_reports_its_final_status_to_the_cluster(client: BlockingClient) -> None:
    found = {one.name: one for one in read_reports(client)}
    assert {name: (one.kind, one.state) for name, one in found.items()} == {
        "again": ("replay", "done"),
        "compared": ("audit", "done"),
        "shout": ("transform", "done"),
        "taken": ("transform", "done"),
    }
    assert (found["shout"].rows, found["shout"].lag) == (ROWS, 0)


def test_an_unknown_token_is_reported_before_spark_is_started(
    peer: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    text = 'kind = "transform"\nsql = "SELECT * FROM source"\n[source]\nqueue = "orders"\n[sink]\nqueue = "loud"'
    ended = ran(written(tmp_path, "stranger", peer, text, token="nobody's"))
    assert (ended.code, NotAuthenticated.code) == (NOT_STARTED, "NOT_AUTHENTICATED")
    assert "token" in ended.error
    assert "stranger" not in {one.name for one in read_reports(client)}
