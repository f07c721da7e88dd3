"""Finds a Java that Spark runs on.

Without a suitable JVM Spark fails with an unclear error ("Java gateway process exited"). So Avow looks for one first:
`JAVA_HOME`, then `java` on the PATH, then the folders in which distributions install it. The first one of a supported
version is used. If there is none, the error lists what was found and says what to install.

The version is read from the file `release` of a Java home; only without that file is `java -version` run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from avow.errors import NotInstalled

VERSIONS: Final = (17, 21, 25)
_PLACES: Final = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")
_VERSION: Final = re.compile(r'(?:JAVA_VERSION=|version )"(\d+)(?:\.(\d+))?')
_RUN_S: Final = 20.0


class Java(Struct, frozen=True):
    home: Path
    version: int


class NoJava(NotInstalled):
    """No installed Java is supported by Spark."""

    def __init__(self, found: Sequence[Java]) -> None:
        super().__init__("Spark", extra="spark")
        seen = ", ".join(f"Java {java.version} in {java.home}" for java in found) or "no Java"
        wanted = ", ".join(map(str, VERSIONS[:-1])) + f" or {VERSIONS[-1]}"
        advice = f"Install one (apt-get install openjdk-{VERSIONS[0]}-jre-headless), or set JAVA_HOME to its folder"
        self.args = (f"Spark needs Java {wanted}, but this machine has {seen}; nothing was started. {advice}",)


def find_java(environment: Mapping[str, str] | None = None, *, places: Sequence[str] = _PLACES) -> Java:
    """The first Java that Spark supports. Raises NoJava, which lists the unsupported ones."""
    found: list[Java] = []
    for home in _homes(os.environ if environment is None else environment, places):
        version = java_version(home)
        if version in VERSIONS:
            return Java(home, version)
        if version:
            found.append(Java(home, version))
    raise NoJava(found)


def _homes(environment: Mapping[str, str], places: Sequence[str]) -> Iterator[Path]:
    named = environment.get("JAVA_HOME")
    if named:
        yield Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for place in places:
        for home in sorted(Path(place).glob("*")):
            yield home / "Contents" / "Home" if (home / "Contents" / "Home").is_dir() else home


def java_version(home: Path) -> int:
    """The major version; 0 if there is no Java."""
    program = home / "bin" / "java"
    if not program.is_file():
        return 0
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _version_output(program)
    found = _VERSION.search(text)
    if found is None:
        return 0
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # 1.8 is Java 8


def _version_output(program: Path) -> str:
    try:
        answer = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=_RUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout
