"""What a nursery is asked and what it answers: one line of JSON each."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Start(Struct, frozen=True, tag=True):
    """Answered with the child's pid. `command` is what would follow `python`."""

    command: tuple[str, ...]
    out: str
    log: str
    environment: dict[str, str]


class Look(Struct, frozen=True, tag=True):
    """Answered with the exit code of a child, or nothing while it runs. A second look at one that ended: the same."""

    pid: int


Request: TypeAlias = Start | Look


class Answer(Struct, frozen=True, omit_defaults=True):
    value: int | None = None
    error: str = ""
