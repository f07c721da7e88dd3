"""What `avow doctor` looks at where Spark is installed: PySpark, the Spark it would start, and the Java below.

Spark fails late and far from the cause: a JAVA_HOME without Java, or a SPARK_HOME of another version, end in "Java
gateway process exited" or in a class that is missing. Where Spark is not installed nothing of this is wanted, and
nothing is said. A peer needs none of it, so nothing here fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from avow.cli.doctor_finding import Finding
from avow.cli.doctor_install import installed, numbers
from avow.errors import NotInstalled

_CORE: Final = re.compile(r"spark-core_[0-9.]+-([0-9][0-9.]*)")


def check_spark(environment: Mapping[str, str] = os.environ, *, places: Sequence[str] | None = None) -> list[Finding]:
    found = installed("pyspark")
    if not found or find_spec("pyspark") is None:
        return []
    return [check_spark_home(environment, pyspark=found), *check_java(environment, places=places)]


def check_spark_home(environment: Mapping[str, str], *, pyspark: str) -> Finding:
    """PySpark starts the Spark of SPARK_HOME, when it is set, instead of the one it brought along."""
    home = environment.get("SPARK_HOME", "")
    if not home:
        shipped = "found by it as avow" if find_spec("pyspark_avow") is not None else "without pyspark_avow"
        return Finding("spark", "ok", f"PySpark {pyspark}, {shipped}")
    version = _version_in(Path(home))
    if not version:
        advice = "unset SPARK_HOME, and PySpark uses its own; or set it to where Spark is"
        return Finding("spark", "warn", f"SPARK_HOME is {home}, and no Spark is there", advice)
    if numbers(version)[:2] != numbers(pyspark)[:2]:
        advice = f"unset SPARK_HOME, or make them the same: pip install pyspark=={version}"
        return Finding("spark", "warn", f"PySpark is {pyspark}, and the Spark in {home} is {version}", advice)
    return Finding("spark", "ok", f"PySpark {pyspark} with Spark {version} in {home}")


def _version_in(home: Path) -> str:
    for jar in (home / "jars").glob("spark-core_*.jar"):
        found = _CORE.match(jar.stem)
        if found is not None:
            return found[1]
    return ""


def check_java(environment: Mapping[str, str], *, places: Sequence[str] | None = None) -> list[Finding]:
    from avow.spark.java import VERSIONS, find_java, java_version  # only where Spark is

    findings = []
    home = environment.get("JAVA_HOME", "")
    if home and java_version(Path(home)) not in VERSIONS:
        version = java_version(Path(home))
        what = f"Java {version}, which Spark does not run on" if version else "no Java"
        advice = f"unset it, or set it to a Java {VERSIONS[0]} or newer"
        findings.append(Finding("java", "warn", f"JAVA_HOME is {home}, and there is {what}", advice))
    try:
        java = find_java(environment) if places is None else find_java(environment, places=places)
    except NotInstalled as error:
        said, _, advice = str(error).partition("; nothing was started. ")
        return [*findings, Finding("java", "warn", said, advice)]
    return [*findings, Finding("java", "ok", f"Java {java.version} in {java.home}")]
