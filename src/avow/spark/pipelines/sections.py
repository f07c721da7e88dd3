"""Reads a section of a pipeline's file key by key and collects all mistakes with their places. Pure.

A file may have several mistakes, and a person wants to see all of them at once. Each reader below records a mistake and
continues with a harmless value; `Mistakes.check` raises one error at the end. An unknown key is a mistake, too: a
mistyped `trim` would otherwise silently not trim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from avow.errors import InvalidRequest


class Mistakes:
    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[str] = []

    def note(self, place: str, what: str) -> None:
        self._found.append(f"{place}: {what}")

    def check(self) -> None:
        """Raises InvalidRequest with all mistakes."""
        if not self._found:
            return
        listed = "; ".join(self._found)
        raise InvalidRequest(f"{self._file} is not a valid pipeline: {listed}. Nothing was started")


class Section:
    """`place` is the section's name in messages; empty for the top of the file."""

    def __init__(self, found: Mapping[str, Any], place: str, mistakes: Mistakes) -> None:
        self._found, self._place, self._mistakes = dict(found), place, mistakes
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        return key in self._found

    def wrong(self, key: str, what: str) -> None:
        self._mistakes.note(f"[{self._place}] {key}" if self._place else key, what)

    def value(self, key: str) -> Any:
        """The value as TOML has it; None if the key is missing."""
        self._asked.append(key)
        return self._found.get(key)

    def text(self, key: str, default: str = "", *, required: bool = False) -> str:
        found = self.value(key)
        if found is None:
            if required:
                self.wrong(key, "is missing")
            return default
        if not isinstance(found, str) or not found.strip():
            self.wrong(key, f"must be a text, not {found!r}")
            return default
        return found.strip()

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        found = self.text(key, default)
        if found not in known:
            self.wrong(key, f"must be one of {', '.join(known)}, not {found!r}")
            return default
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.value(key)
        if found is None:
            return ()
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            self.wrong(key, f"must be a list of names, not {found!r}")
            return ()
        return tuple(dict.fromkeys(found))

    def flag(self, key: str, *, default: bool = False) -> bool:
        found = self.value(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            self.wrong(key, f"must be true or false, not {found!r}")
            return default
        return found

    def whole(self, key: str, *, least: int = 0) -> int | None:
        found = self.value(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            self.wrong(key, f"must be a whole number from {least}, not {found!r}")
            return None
        return found

    def settings(self, key: str) -> dict[str, str]:
        """Names and values, converted to text."""
        found = self.value(key)
        if found is None:
            return {}
        if not isinstance(found, dict) or any(isinstance(one, dict | list) for one in found.values()):
            self.wrong(key, "must hold names and values; quote names that contain dots")
            return {}
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in found.items()}

    def section(self, key: str, *, required: bool = False) -> Section:
        found = self.value(key)
        if found is None and required:
            self._mistakes.note(f"[{key}]", "is missing")
        if found is not None and not isinstance(found, dict):
            self.wrong(key, f"must be a section, [{key}], not {found!r}")
            found = None
        return Section(found or {}, key, self._mistakes)

    def one_of(self, *keys: str, required: bool = True) -> str:
        """The one of these keys that is given; empty if none or several are."""
        given = [key for key in keys if key in self._found]
        if len(given) > 1:
            self.wrong(" and ".join(given), "exclude each other: keep one")
            return ""
        if not given and required:
            self.wrong(" or ".join(keys), "is missing")
        return given[0] if given else ""

    def close(self) -> None:
        """Records unknown keys as mistakes."""
        for key in self._found:
            if key not in self._asked:
                near = get_close_matches(key, self._asked, n=1)
                known = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(set(self._asked)))}"
                self.wrong(key, f"is unknown; {known}")
