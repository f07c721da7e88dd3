"""The table in docs/pledges.md says which tests show each of the fifteen points; here the table is kept true.

Test files are read and not imported: some of them need servers that are not there, and none may run twice.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "pledges.md"
POINTS = range(1, 16)


def table() -> dict[int, list[tuple[str, str]]]:
    """Point -> (file below tests/, name)."""
    section = PAGE.read_text("utf-8").partition("## Where the known systems fail\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|.*$", section, re.MULTILINE)
    lines = [line for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    named = [re.findall(r"`([\w/]+\.py)::(\w+)`", line) for line in lines]
    return dict(zip(map(int, rows), named, strict=True))


def functions_of(path: Path) -> set[str]:
    parsed = ast.parse(path.read_text("utf-8"))
    return {node.name for node in parsed.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("point", POINTS)
def test_each_point_names_existing_tests_that_carry_its_number(point: int) -> None:
    named = table()[point]
    assert named, f"point {point} names no test"
    for file, name in named:
        assert name in functions_of(TESTS / file), f"{file} has no {name}"
        assert name.startswith(f"test_point_{point}_"), f"{name} does not say that it shows point {point}"


def test_the_table_has_every_point_once_and_no_others() -> None:
    assert list(table()) == list(POINTS)


def test_no_test_names_an_unknown_point() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if "pledge" in path.name or "barrier" in path.name]
    claimed = {
        int(found[1])
        for path in files
        for name in functions_of(path)
        if (found := re.match(r"test_point_(\d+)_", name)) is not None
    }
    assert claimed == set(POINTS)
