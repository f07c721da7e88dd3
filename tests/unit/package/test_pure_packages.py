"""The packages of the `cores` contract use no built-in that does IO; import-linter sees imports only."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
(PURE,) = (contract["source_modules"] for contract in CONTRACTS if contract["id"] == "cores")
IO = {"open", "print", "input", "breakpoint", "__import__", "exec", "eval"}


def sources(name: str) -> list[Path]:
    place = ROOT / "src" / name.replace(".", "/")
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


@pytest.mark.parametrize("name", PURE)
def test_no_built_in_that_does_io_is_called(name: str) -> None:
    assert sources(name)
    called = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"
        for path in sources(name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IO
    ]
    assert not called
