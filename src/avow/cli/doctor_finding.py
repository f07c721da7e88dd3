"""What a check of `avow doctor` returns: how bad it is, what was found, and what to do about it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """`fail`: something does not work. `warn`: it works, and not as it should, or not everything does."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
