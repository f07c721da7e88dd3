"""Every test with the parameter `place` runs once for each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.pledges.lane_places import LANE_PLACES
from tests.contract.pledges.pledge_places import PLACES, Place

_ALL = PLACES | LANE_PLACES


@pytest.fixture(params=_ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for pledges."""
    kind = _ALL[request.param]
    server = request.getfixturevalue(kind.server) if kind.server else None
    with kind.make(server, tmp_path) as made:
        yield made


@pytest.fixture(params=[name for name, kind in PLACES.items() if kind.server])
def served_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Only those that are servers."""
    kind = PLACES[request.param]
    with kind.make(request.getfixturevalue(kind.server), tmp_path) as made:
        yield made
