"""The image's pinned requirements, cut out of requirements/dev.txt, so that what runs is what was tested.

    .venv/bin/python deploy/lock.py

writes requirements.txt (a peer with every store that pledges can live in, and gRPC) and requirements-build.txt (what
makes the wheel). Which distributions those are is asked of the installed ones, for the image's Python; versions and
hashes are dev.txt's. A test fails when the files are not what this program would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE: Final = Path(__file__).resolve().parent
PINS: Final = HERE.parent / "requirements" / "dev.txt"
WANTED: Final = {
    "requirements.txt": "avow[server,grpc,postgres,mysql,redis]",
    "requirements-build.txt": "hatchling",
}
PYTHON: Final = {"python_version": "3.11", "python_full_version": "3.11.9"}
HEADER: Final = "# Written by deploy/lock.py from requirements/dev.txt: {wanted}\n"


def lock(wanted: str) -> str:
    pins = dict(pinned(PINS.read_text()))
    names = sorted(closure([Requirement(wanted)]) - {"avow"})
    return HEADER.format(wanted=wanted) + "".join(pins[name] for name in names)


def pinned(text: str) -> Iterator[tuple[str, str]]:
    """Each distribution with its line and hashes; comments are left out."""
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        lines = [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if lines:
            name = re.split(r"[=\[ ;]", lines[0], maxsplit=1)[0]
            yield canonicalize_name(name), "\n".join(lines).removesuffix(" \\") + "\n"


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """Of everything that these need, directly or not, with the extras they ask for."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = list(wanted)
    while waiting:
        requirement = waiting.pop()
        known = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if known not in found:
            found.add(known)
            waiting += needs(requirement)
    return {name for name, _ in found}


def needs(requirement: Requirement) -> Iterator[Requirement]:
    for line in requires(requirement.name) or ():
        needed = Requirement(line)
        extras = ("", *sorted(requirement.extras))
        if needed.marker is None or any(needed.marker.evaluate({**PYTHON, "extra": extra}) for extra in extras):
            yield needed


if __name__ == "__main__":
    for file, wanted in WANTED.items():
        (HERE / file).write_text(lock(wanted))
