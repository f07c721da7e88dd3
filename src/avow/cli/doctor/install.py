"""Checks of the installation: the interpreter, its environment, the extras, Spark and Java.

The libraries of an extra and their version bounds are read from Avow's package metadata, so they cannot differ from
what pip installs. A missing extra is not an error: the finding says which commands need it. A library whose version is
too old or too new gets a warning, because it would fail later with an unclear error.

Spark, too, reports mistakes late and unclearly: a JAVA_HOME without Java, or a SPARK_HOME of another version, end in
"Java gateway process exited" or a missing class. Without PySpark there are no findings on Spark. A peer needs no Spark,
so their worst verdict is `warn`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.cli.doctor.finding import Finding
from avow.errors import NotInstalled

PYTHON_MIN: Final = (3, 11)
USES: Final[Mapping[str, str]] = {
    "server": "avow serve, up, demo and prove",
    "spark": "avow pipeline, avow prove --spark and --chain, pyspark_avow",
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
_SPARK_CORE: Final = re.compile(r"spark-core_[0-9.]+-([0-9][0-9.]*)")
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9.]+)")


class Need(Struct, frozen=True):
    """One distribution that Avow's metadata requires. Without an `extra` it is always needed."""

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
    """Warns if another virtual environment is active than that of this `avow`: `import avow` may then fail there."""
    active = environment.get("VIRTUAL_ENV", "")
    if active and Path(active).resolve() != Path(prefix).resolve():
        advice = f"run {active}/bin/avow, or install Avow there: {active}/bin/python -m pip install avow"
        return Finding("python", "warn", f"this avow runs in {prefix}, but the active environment is {active}", advice)
    if prefix == outside:
        advice = "a virtual environment is better: python3 -m venv .venv && . .venv/bin/activate && pip install avow"
        return Finding("python", "ok", f"installed into {prefix}, without a virtual environment", advice)
    return Finding("python", "ok", f"environment {prefix}{'' if active else ' (not active, run by its path)'}")


def check_libraries(needs: Iterable[Need] | None = None) -> list[Finding]:
    """One finding for the libraries that are always needed, and one for each extra."""
    known = list(read_needs() if needs is None else needs)
    extras = [name for name in USES if any(need.extra == name for need in known)]
    return [_base([need for need in known if not need.extra])] + [
        _extra(name, [need for need in known if need.extra == name]) for name in extras
    ]


def read_needs(lines: Iterable[str] | None = None) -> list[Need]:
    if lines is None:
        try:
            lines = requires("avow") or ()
        except PackageNotFoundError:  # run from sources that are not installed
            lines = ()
    found = (_REQUIREMENT.match(line) for line in lines)
    return [Need(match[1], match[2], match[3] or "") for match in found if match]


def _base(needs: list[Need]) -> Finding:
    wrong = [text for need in needs if (text := trouble(need))]
    if wrong:
        return Finding("library", "fail", "; ".join(wrong), "reinstall Avow: pip install --force-reinstall avow")
    return Finding("library", "ok", ", ".join(f"{need.name} {installed(need.name)}" for need in needs))


def _extra(name: str, needs: list[Need]) -> Finding:
    wrong = [text for need in needs if (text := trouble(need))]
    install = f"pip install 'avow[{name}]'"
    if not wrong:
        shown = ", ".join(f"{need.name} {installed(need.name)}" for need in needs)
        return Finding("extra", "ok", f"{name}: {shown}")
    if any(installed(need.name) and trouble(need) for need in needs):
        return Finding("extra", "warn", f"{name}: {'; '.join(wrong)}", f"install fitting versions: {install}")
    if name == "server":
        return Finding("extra", "warn", f"server: {'; '.join(wrong)}; needed by {USES[name]}", install)
    return Finding("extra", "ok", f"{name} is not installed; needed for {USES[name]}", install)


def trouble(need: Need) -> str:
    """Empty if it is installed in a version within the bounds."""
    found = installed(need.name)
    if not found:
        return f"{need.name} is not installed"
    return "" if fits(found, need.bounds) else f"{need.name} is {found}, but {need.bounds} is needed"


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
    """The release part of a version, padded: 4.3.0.dev1, 4.3.0 and 4.3 are equal."""
    release = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    parts = [int(part) for part in release[0].split(".")] if release else [0]
    return tuple(parts + [0] * (4 - len(parts)))


# ---------------------------------------------------------------------- Spark and Java


def check_spark(environment: Mapping[str, str] = os.environ, *, places: Sequence[str] | None = None) -> list[Finding]:
    found = installed("pyspark")
    if not found or find_spec("pyspark") is None:
        return []
    return [check_spark_home(environment, pyspark=found), *check_java(environment, places=places)]


def check_spark_home(environment: Mapping[str, str], *, pyspark: str) -> Finding:
    """If SPARK_HOME is set, PySpark starts the Spark there instead of its own."""
    home = environment.get("SPARK_HOME", "")
    if not home:
        source = 'with the data source "avow"' if find_spec("pyspark_avow") is not None else "without pyspark_avow"
        return Finding("spark", "ok", f"PySpark {pyspark}, {source}")
    version = _version_in(Path(home))
    if not version:
        advice = "unset SPARK_HOME to use PySpark's own Spark, or set it to the folder of a Spark installation"
        return Finding("spark", "warn", f"SPARK_HOME is {home}, which holds no Spark", advice)
    if numbers(version)[:2] != numbers(pyspark)[:2]:
        advice = f"unset SPARK_HOME, or install the same version: pip install pyspark=={version}"
        return Finding("spark", "warn", f"PySpark is {pyspark}, but the Spark in {home} is {version}", advice)
    return Finding("spark", "ok", f"PySpark {pyspark} with Spark {version} in {home}")


def _version_in(home: Path) -> str:
    for jar in (home / "jars").glob("spark-core_*.jar"):
        found = _SPARK_CORE.match(jar.stem)
        if found is not None:
            return found[1]
    return ""


def check_java(environment: Mapping[str, str], *, places: Sequence[str] | None = None) -> list[Finding]:
    from avow.spark.java import VERSIONS, find_java, java_version  # only if PySpark is installed

    findings = []
    home = environment.get("JAVA_HOME", "")
    if home and java_version(Path(home)) not in VERSIONS:
        version = java_version(Path(home))
        what = f"Java {version}, which Spark does not support" if version else "no Java"
        advice = f"unset JAVA_HOME, or set it to Java {VERSIONS[0]} or newer"
        findings.append(Finding("java", "warn", f"JAVA_HOME is {home}, which holds {what}", advice))
    try:
        java = find_java(environment) if places is None else find_java(environment, places=places)
    except NotInstalled as error:
        found, _, advice = str(error).partition("; nothing was started. ")
        return [*findings, Finding("java", "warn", found, advice)]
    return [*findings, Finding("java", "ok", f"Java {java.version} in {java.home}")]
