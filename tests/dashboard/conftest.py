"""One browser and one cluster of three peers for all tests of the dashboard that need no tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.dashboard import stage
from tests.dashboard.browsing import browsing

from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        stage.fill(running)
        stage.pledge(running)
        yield running
