"""Shared by all tests.

Property tests are judged by what they find, not by how long a loaded machine takes.

Files are given out longest first, so that the last ones are short and no core waits for another at the end. Files that
keep a core busy (Spark, the simulator) take turns with files that mostly wait (for processes that were killed, for
timeouts, for a browser), so that no four JVMs start on two cores at the same time. What is long is a list here and not
a measurement of the last run, so that a fresh clone runs as fast as an old one; a file that is not in the list is taken
for a short one, and the order within a file is never changed.

A test that leaves a socket open fails. uvloop warns of such a socket in `loop.close`, before it closes it. If the
warning is an error, as all others are, then the socket stays open and `loop.close` waits for it for ever: a test that
failed would hang. So this warning is recorded, and the test fails after its loop is closed.

Ctrl-C is heard: a shell that starts the tests in the background has their processes ignore it, and theirs in turn, and
then a test that interrupts a program waits for its end in vain.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.services import MariaDBServer, PostgresServer, RedisServer

settings.register_profile("avow", deadline=None, print_blob=True)
settings.load_profile("avow")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
LEFT_OPEN = "unclosed resource"  # as uvloop says it
LONGEST_FIRST = (
    "docs/test_spark_pages.py",
    "integration/test_prove.py",
    "integration/test_prove_mutants.py",
    "contract/pledges/test_pledge_store.py",
    "spark/test_ways.py",
    "integration/test_webchannel_clients.py",
    "integration/test_prove_pledges.py",
    "spark/test_chain.py",
    "e2e/test_cli_commands.py",
    "integration/test_client_producer_cluster.py",
    "integration/test_browser_module.py",
    "spark/test_pipelines.py",
    "integration/test_pledge_peer.py",
    "integration/test_barrier_interleavings.py",
    "spark/test_pipeline_command.py",
    "e2e/test_cli_channels.py",
    "integration/test_examples_pledges.py",
    "spark/test_sink_killed.py",
    "contract/pledges/test_pledge_claims.py",
    "dashboard/test_dashboard_pages.py",
    "e2e/test_cli_up.py",
    "spark/test_demo.py",
    "contract/pledges/test_pledge_connections.py",
    "integration/test_client_channels.py",
    "spark/test_pipeline_runs.py",
    "integration/test_barrier_sqlalchemy.py",
    "spark/test_tables.py",
    "e2e/test_cli_pledges.py",
    "dashboard/test_dashboard_use.py",
    "spark/test_cluster.py",
    "integration/test_peer_channels_killed.py",
    "contract/pledges/test_pledge_topics.py",
    "integration/test_http_document.py",
    "integration/test_pledge_killed.py",
    "integration/test_barrier_sql.py",
    "spark/test_source_stream.py",
    "packaging/test_client_wheel.py",
    "simulation/test_promises.py",
    "integration/test_browser_channel.py",
    "integration/test_pledge_coordinator.py",
    "spark/test_sink.py",
    "integration/test_cluster_life.py",
    "spark/test_source_batch.py",
    "contract/storage/test_storage_damage.py",
    "integration/test_compatibility.py",
    "simulation/test_mutations.py",
    "contract/storage/test_storage_contract.py",
    "spark/test_source_reader.py",
    "integration/test_client_cluster.py",
    "contract/pledges/test_pledge_lane_durability.py",
    "integration/test_examples_shop.py",
    "dashboard/test_dashboard_access.py",
    "integration/test_client_pledges_databases.py",
    "integration/test_rolling_upgrade.py",
    "integration/test_http_hostile.py",
    "e2e/test_simulate_command.py",
    "integration/test_pledge_dtm_http.py",
    "contract/pledges/test_pledge_points.py",
    "integration/test_peer_channels.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {HERE / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with warnings.catch_warnings(record=True) as caught:
        yield
    left_open = [str(each.message) for each in caught if LEFT_OPEN in str(each.message)]
    if left_open:
        pytest.fail("; ".join(left_open), pytrace=False)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all tests that a worker runs; each has a schema, tables or ids of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
