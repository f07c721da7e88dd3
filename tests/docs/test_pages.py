"""The code blocks of the documentation are run unchanged, page by page. Pages with Spark have a module of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.docs_blocks import ROOT, RUNNABLE, blocks_of, pages, uses_spark
from tests.docs.docs_page import Page

PAGES = [page for page in pages() if any(not block.not_run for block in blocks_of(page)) and not uses_spark(page)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_the_blocks_of_a_page_run_in_order(page: Page, path: Path) -> None:
    page.run(blocks_of(path))


def test_a_block_that_is_not_run_gives_a_reason() -> None:
    reasons = {block.place: block.not_run for path in pages() for block in blocks_of(path) if block.not_run}
    assert all(len(reason.split()) >= 3 for reason in reasons.values()), reasons


def test_blocks_in_every_language_are_checked() -> None:
    found = {block.language for path in (*pages(), ROOT / "README.md") for block in blocks_of(path)}
    assert found == set(RUNNABLE)
