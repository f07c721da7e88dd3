"""What `avow doctor` looks at in the installation: the interpreter, the environment it runs in, and the extras.

What belongs to an extra, and which versions of it will do, is read from Avow's own metadata, so it cannot differ from
what pip installs. An extra that is not there is not a fault by itself: the line says which commands want it. One that
is there in a version that is too old or too new is a fault, since it fails late and says little.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.cli.doctor_finding import Finding

PYTHON_MIN: Final = (3, 11)
USES: Final[Mapping[str, str]] = {
    "server": "avow serve, up, demo and prove",
    "spark": "avow pipeline, prove --spark and --chain, pyspark_avow",
    "grpc": "dtm's API over gRPC (--grpc-listen), branches at grpc://",
    "postgres": "pledges in PostgreSQL, the barrier through psycopg",
    "mysql": "pledges in MySQL, the barrier through PyMySQL",
    "sqlalchemy": "the barrier with SQLAlchemy",
    "redis": "pledges in Redis, the barrier in Redis",
    "mongo": "the barrier in MongoDB",
    "arrow": "reading into Arrow",
}
_REQUIREMENT: Final = re.compile(
    r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;.*extra == ['\"]([^'\"]+)['\"].*)?$"
)
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9.]+)")


class Need(Struct, frozen=True):
    """One distribution that Avow asks for, as its metadata says. No extra: nothing works without it."""

    name: str
    bounds: str
    extra: str = ""


def check_python(running: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    text = ".".join(map(str, running))
    if running < PYTHON_MIN:
        return Finding("python", "fail", text, "install Python 3.11 or newer")
    return Finding("python", "ok", text)


def check_environment(
    environment: Mapping[str, str] = os.environ, *, prefix: str = sys.prefix, outside: str = sys.base_prefix
) -> Finding:
    """An active virtual environment whose `avow` is not the one that runs is why `import avow` fails next door."""
    active = environment.get("VIRTUAL_ENV", "")
    if active and Path(active).resolve() != Path(prefix).resolve():
        advice = f"call {active}/bin/avow, or install Avow there: {active}/bin/python -m pip install avow"
        return Finding("python", "warn", f"this avow is of {prefix}, and the active environment is {active}", advice)
    if prefix == outside:
        advice = "keep it apart: python3 -m venv .venv && . .venv/bin/activate && pip install avow"
        return Finding("python", "ok", f"installed for all programs of {prefix}", advice)
    return Finding("python", "ok", f"environment {prefix}{'' if active else ', called by its path (not active)'}")


def check_libraries(needs: Iterable[Need] | None = None) -> list[Finding]:
    """One line for what every part needs, one for each extra."""
    known = list(read_needs() if needs is None else needs)
    extras = [name for name in USES if any(need.extra == name for need in known)]
    return [_base([need for need in known if not need.extra])] + [
        _extra(name, [need for need in known if need.extra == name]) for name in extras
    ]


def read_needs(lines: Iterable[str] | None = None) -> list[Need]:
    if lines is None:
        try:
            lines = requires("avow") or ()
        except PackageNotFoundError:  # run from a folder of sources that was never installed
            lines = ()
    found = (_REQUIREMENT.match(line) for line in lines)
    return [Need(match[1], match[2], match[3] or "") for match in found if match]


def _base(needs: list[Need]) -> Finding:
    wrong = [said for need in needs if (said := trouble(need))]
    if wrong:
        return Finding("library", "fail", "; ".join(wrong), "install Avow again: pip install --force-reinstall avow")
    return Finding("library", "ok", ", ".join(f"{need.name} {installed(need.name)}" for need in needs))


def _extra(name: str, needs: list[Need]) -> Finding:
    wrong = [said for need in needs if (said := trouble(need))]
    install = f"pip install 'avow[{name}]'"
    if not wrong:
        shown = ", ".join(f"{need.name} {installed(need.name)}" for need in needs)
        return Finding("extra", "ok", f"{name}: {shown}")
    if any(installed(need.name) and trouble(need) for need in needs):
        return Finding("extra", "warn", f"{name}: {'; '.join(wrong)}", f"{install} brings versions that fit")
    if name == "server":
        return Finding("extra", "warn", f"server: {'; '.join(wrong)}: no {USES[name]}", install)
    return Finding("extra", "ok", f"{name} is not installed; for {USES[name]}", install)


def trouble(need: Need) -> str:
    """Empty when it is there in a version that will do."""
    found = installed(need.name)
    if not found:
        return f"no {need.name}"
    return "" if fits(found, need.bounds) else f"{need.name} is {found}, and {need.bounds} is needed"


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def fits(found: str, bounds: str) -> bool:
    return all(
        numbers(found) >= numbers(bound) if relation == ">=" else numbers(found) < numbers(bound)
        for relation, bound in _BOUND.findall(bounds)
    )


def numbers(text: str) -> tuple[int, ...]:
    """The release of a version: 4.3.0.dev1 is 4.3.0, and 4.3 is no less than 4.3.0."""
    release = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    parts = [int(part) for part in release[0].split(".")] if release else [0]
    return tuple(parts + [0] * (4 - len(parts)))
