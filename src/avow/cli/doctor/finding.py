"""The result of a check of `avow doctor`: its verdict, what was found, and what to do."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """`fail`: something does not work. `warn`: it works only in part or not as it should."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
