"""Every test of this folder runs against scripted peers and against real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.cluster.contract_clusters import CLUSTERS, Contract, Members


@pytest.fixture(scope="session", params=list(CLUSTERS))
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    with CLUSTERS[request.param]() as found:
        yield found


@pytest.fixture
def cluster(members: Members) -> Contract:
    return Contract(members)
