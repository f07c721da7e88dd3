"""One browser and one cluster of three peers for the tests of a file that need no tokens.

Both end with the file: while it runs, the browser's driver has an event loop of its own in this thread, and no other
test could run one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.dashboard import stage
from tests.dashboard.browsing import browsing

from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        stage.fill(running)
        stage.pledge(running)
        yield running
