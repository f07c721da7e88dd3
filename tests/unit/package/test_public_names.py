"""`avow.__all__`, `dir(avow)`, the imports that a type checker reads, the loader's table and the reference agree."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tools.reference.python_names import NAMES

import avow

SOURCE = Path(avow.__file__)
NOT_FROM_A_MODULE = {"errors", "__version__"}


def declared() -> dict[str, tuple[str, str]]:
    """Of the first `if TYPE_CHECKING` block: public name -> module, and what the name is called there."""
    blocks = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    names: dict[str, tuple[str, str]] = {}
    for statement in blocks[0].body:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("avow."):
            for alias in statement.names:
                names[alias.asname or alias.name] = (str(statement.module), alias.name)
    return names


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(avow) == sorted(avow.__all__)
    assert len(set(avow.__all__)) == len(avow.__all__)


def test_a_type_checker_reads_the_names_that_the_loader_finds() -> None:
    places = avow._PLACES
    found = {name: (module, avow._OTHER_NAMES.get(name, name)) for name, module in places.items()}
    assert declared() == found
    assert set(avow.__all__) == set(places) | NOT_FROM_A_MODULE


@pytest.mark.parametrize("name", sorted(set(avow.__all__) - NOT_FROM_A_MODULE))
def test_every_name_is_that_of_its_module(name: str) -> None:
    module, there = declared()[name]
    assert getattr(avow, name) is getattr(import_module(module), there)


def test_the_errors_module_and_the_version_are_exported() -> None:
    assert inspect.ismodule(avow.errors)
    assert re.fullmatch(r"\d+(\.\d+)*", avow.__version__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'avow' has no attribute 'Nonsense'"):
        getattr(avow, "Nonsense")  # noqa: B009


def test_the_reference_lists_every_public_name_under_that_name() -> None:
    listed = [name for modules in NAMES.values() for name in modules.get("avow", ())]
    assert sorted([*listed, *NOT_FROM_A_MODULE]) == sorted(avow.__all__)
    assert not [module for modules in NAMES.values() for module in modules if module.startswith("avow.client")]


def test_importing_the_package_imports_no_other_module_of_it() -> None:
    program = "import sys, avow; print([name for name in sys.modules if name.startswith('avow.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
