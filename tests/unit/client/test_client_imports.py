from __future__ import annotations

import subprocess
import sys

_ABSENT = ("pyarrow", "typer", "rich", "uvloop", "prometheus_client")


def imported_by(code: str) -> set[str]:
    listing = f"import sys\n{code}\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=60)
    return set(found.stdout.split())


def test_importing_the_package_loads_nothing_but_itself() -> None:
    loaded = imported_by("import avow")
    assert [name for name in loaded if name.startswith("avow")] == ["avow"]
    assert "asyncio" not in loaded


def test_the_client_loads_no_optional_library_until_it_is_needed() -> None:
    loaded = imported_by("import avow; avow.connect; avow.connect_blocking; avow.errors.NotEqual")
    assert not loaded & set(_ABSENT)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    code = "import avow\ntry:\n    avow.nothing\nexcept AttributeError as e:\n    assert 'nothing' in str(e)"
    imported_by(code + "\nassert {'connect', 'connect_blocking', 'errors'} <= set(dir(avow))")
