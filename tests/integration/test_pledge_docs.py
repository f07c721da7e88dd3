"""The example in the documentation of pledges runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from avow.testing.cluster import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "pledges.md"


def test_the_first_example_of_the_page_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example.group(1), names)
    with LocalCluster(1) as cluster:
        names["main"](cluster.addresses)
    assert capsys.readouterr().out.startswith("Delivered(gid=")
