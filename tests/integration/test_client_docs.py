"""The example in the documentation runs as it stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from avow.testing.cluster import LocalCluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_first_example_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example.group(1), names)
    with LocalCluster(1) as cluster:
        asyncio.run(names["main"](cluster.addresses))
    assert capsys.readouterr().out == "lane 0, version 1\n[b'first']\n"
