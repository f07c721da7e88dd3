"""One cluster started with `avow up` for each test module that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.cli_cluster import Up, ready


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ready(tmp_path_factory.mktemp("up") / "data") as running:
        yield running
