"""The pages with Spark, including the README, run unchanged; one JVM for all.

The README is a newcomer's path: from top to bottom, copied literally, against the cluster that it starts. What is left
out says so on the page: `make`, which installs, and `avow up`, which the fixture has started already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.docs_blocks import ROOT, blocks_of, pages, uses_spark
from tests.docs.docs_page import Page
from tests.e2e.cli_cluster import Up
from tests.java import end_java

PAGES = [page for page in pages() if any(not block.not_run for block in blocks_of(page)) and uses_spark(page)]
FEW = "--conf spark.sql.shuffle.partitions=2 --conf spark.default.parallelism=2 --driver-memory 1g pyspark-shell"
"""Defaults for what a page does not set itself: few rows, few cores."""


@pytest.fixture(scope="module", autouse=True)
def _spark() -> Iterator[None]:
    """A page that stops the session (`avow pipeline run` does) leaves the JVM to the next one, and to no other file."""
    end_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", FEW)
        yield
        end_java()


def test_the_readme_runs_from_top_to_bottom(page: Page, up: Up) -> None:
    page.run(blocks_of(ROOT / "README.md"))
    up.wait_for("restarted")  # the peer that it kills


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_the_blocks_of_a_page_run_in_order(page: Page, path: Path) -> None:
    page.run(blocks_of(path))
