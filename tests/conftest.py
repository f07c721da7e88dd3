"""Shared by all tests.

Property tests are judged by what they find, not by how long a loaded machine takes.

Files are given out longest first, so that the last ones are short and no core waits for another at the end. What is
long is a list here and not a measurement of the last run, so that a fresh clone runs as fast as an old one; a file that
is not in the list is taken for a short one, and the order within a file is never changed.

Ctrl-C is heard: a shell that starts the tests in the background has their processes ignore it, and theirs in turn, and
then a test that interrupts a program waits for its end in vain.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("avow", deadline=None, print_blob=True)
settings.load_profile("avow")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
LONGEST_FIRST = (
    "spark/test_chain.py",
    "spark/test_sink_killed.py",
    "spark/test_demo.py",
    "spark/test_ways.py",
    "spark/test_pipeline_command.py",
    "spark/test_table_drivers.py",
    "spark/test_pipelines.py",
    "spark/test_cluster.py",
    "spark/test_source_stream.py",
    "spark/test_tables.py",
    "spark/test_sink.py",
    "docs/test_spark_pages.py",
    "docs/test_readme.py",
    "integration/test_prove.py",
    "integration/test_examples_pledges.py",
    "integration/test_client_cluster.py",
    "integration/test_channel.py",
    "integration/test_channel_killed.py",
    "integration/test_peer_channels_killed.py",
    "integration/test_pledge_killed.py",
    "integration/test_client_producer_cluster.py",
    "integration/test_client_channels.py",
    "simulation/test_channel_machine.py",
    "simulation/test_two_phase.py",
    "simulation/test_pubsub.py",
    "integration/test_http_document.py",
    "e2e/test_cli_commands.py",
    "integration/test_browser_module.py",
    "integration/test_webchannel_clients.py",
    "contract/pledges/test_pledge_store.py",
    "integration/test_pledge_coordinator.py",
    "integration/test_pledge_peer.py",
    "contract/storage/test_storage_process.py",
    "contract/pledges/test_pledge_durability.py",
    "contract/pledges/test_pledge_lane_durability.py",
    "contract/storage/test_storage_powercut.py",
    "contract/storage/test_storage_damage.py",
    "integration/test_barrier_sql.py",
    "contract/pledges/test_pledge_claims.py",
    "integration/test_barrier_sqlalchemy.py",
    "e2e/test_cli_up.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {HERE / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
