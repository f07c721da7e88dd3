"""The tables in the documentation list exactly the existing options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from avow.spark.sink import options as sink_options
from avow.spark.source import options

DOCUMENT = Path(__file__).parents[3] / "docs" / "spark.md"


def documented(heading: str) -> set[str]:
    section = DOCUMENT.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Options of the source", options.NAMES), ("Options of the sink", sink_options.NAMES)],
)
def test_the_documentation_names_exactly_the_existing_options(heading: str, names: tuple[str, ...]) -> None:
    assert documented(heading) == set(names)
