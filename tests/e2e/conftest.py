"""One cluster started with `avow up` for each test module that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_cluster import Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up") / "data")
    try:
        running.wait_for("ready")
        yield running
        assert running.end() == 0
    finally:
        running.kill()
