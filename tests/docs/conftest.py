"""One cluster for each module, started as a person starts it; a page finds it without queues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.docs_page import Page
from tests.e2e.cli_cluster import Up, ready

import avow
from avow.testing.cluster import wait_until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ready(tmp_path_factory.mktemp("up") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all pages, empty for each: relative paths mean the place where the JVM was started."""
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def page(up: Up, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("AVOW_TOKEN", raising=False)
    before = dict(os.environ)
    made = Page(folder, base=up.base)
    try:
        yield made
    finally:
        made.close()
        wait_until(lambda: _emptied(folder), what=f"an empty {folder}")
        os.environ.clear()
        os.environ.update(before)
        with avow.connect_blocking(up.addresses) as client:
            for queue in client.queues():
                client.delete_queue(queue.name)


def _emptied(folder: Path) -> bool:
    """False while a process that the page has stopped still writes."""
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
    return not any(folder.iterdir())
