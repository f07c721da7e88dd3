"""docs/architecture.md agrees with the code: every module, every package, and the layers of the import contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from benchmarks.builds import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PLACES = (ROOT / "src" / "avow", ROOT / "src" / "avow_lab", ROOT)
TREE = PAGE.split("## The tree")[1].split("```")[1]


def packages(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_every_module_and_folder_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w/.]+(?:\.py|/))`", PAGE))
    assert len(named) > 50
    missing = {name for name in named if not any((place / name).exists() for place in PLACES)}
    assert not missing, f"docs/architecture.md names what is not there: {sorted(missing)}"


def test_the_tree_has_every_package_and_no_other() -> None:
    product, laboratory = TREE.split("src/avow_lab/")
    assert set(re.findall(r"^  (\w+)/", product, re.MULTILINE)) == packages(ROOT / "src" / "avow")
    assert set(re.findall(r"^  (\w+)/", laboratory, re.MULTILINE)) == packages(ROOT / "src" / "avow_lab")


def test_the_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    assert f"`{' > '.join(layers)}`" in PAGE
