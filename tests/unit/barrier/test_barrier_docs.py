"""The guide's snippets, run one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "barrier.md"


def test_every_snippet_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet, str(GUIDE), "exec"), names)
    names["connection"].close()  # type: ignore[attr-defined]
