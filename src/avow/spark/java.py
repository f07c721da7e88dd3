"""Which Java runs Spark.

Spark needs a JVM and says little when there is none, or one it cannot run on ("Java gateway process exited"). So the
Java is looked for before: `JAVA_HOME`, then `java` on the path, then the folders where distributions put theirs. The
first one of a version that Spark runs on is taken; if there is none, the error lists what was found, and says what to
install.

A Java home names its version in a file called `release`; only a home without one is asked by running it.
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
_ASK_S: Final = 20.0


class Java(Struct, frozen=True):
    home: Path
    version: int


class NoJava(NotInstalled):
    """There is none that Spark runs on."""

    def __init__(self, found: Sequence[Java]) -> None:
        super().__init__("Spark", extra="spark")
        seen = ", ".join(f"Java {java.version} in {java.home}" for java in found) or "no Java at all"
        wanted = ", ".join(map(str, VERSIONS[:-1])) + f" or {VERSIONS[-1]}"
        advice = f"Install one (apt-get install openjdk-{VERSIONS[0]}-jre-headless), or set JAVA_HOME to where it is"
        self.args = (f"Spark runs on Java {wanted}, and here is {seen}; nothing was started. {advice}",)


def find_java(environment: Mapping[str, str] | None = None, *, places: Sequence[str] = _PLACES) -> Java:
    """The first Java that Spark runs on. Raises NoJava, which names those it does not run on."""
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
    """The major version; 0 where there is no Java."""
    program = home / "bin" / "java"
    if not program.is_file():
        return 0
    try:
        said = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        said = _asked(program)
    found = _VERSION.search(said)
    if found is None:
        return 0
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # 1.8 is Java 8


def _asked(program: Path) -> str:
    try:
        answer = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout
