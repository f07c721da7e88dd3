"""Fenced blocks of a page of Markdown, and what the page says about running them.

A block of `python`, `console`, `bash`, `toml` or `sql` is run unless the line before it is a comment that says why not:

    <!-- not run: needs a second machine -->

A page may need what it does not show, such as a client that is open already. That stands in a comment, too, and is run
before the block it precedes:

    <!-- before
    client = await avow.connect("http://127.0.0.1:7401")
    -->

A block of `text` that follows a `python` block directly is what that block prints. A block whose first line is a
comment with nothing but a file's name (`# archive.toml`) is also saved under that name, for the blocks after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RUNNABLE: Final = ("python", "console", "bash", "toml", "sql")
_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_REASON: Final = re.compile(r"<!-- not run: (?P<reason>[^>]+?) -->\s*\Z")
_BEFORE: Final = re.compile(r"<!-- before\n(?P<code>(?:(?!-->).)*)-->\s*\Z", re.S)
_FILE: Final = re.compile(r"# (?P<name>[\w.-]+\.(?:toml|py|sh))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """`not_run` is the reason, empty if it is run; `prints` is None where the page does not say."""

    page: Path
    line: int
    language: str
    text: str
    before: str = ""
    not_run: str = ""
    prints: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        named = _FILE.match(self.text)
        return named["name"] if named else ""


def pages() -> tuple[Path, ...]:
    """Every page of the documentation; the README has its own test."""
    return tuple(sorted((ROOT / "docs").rglob("*.md")))


def blocks_of(page: Path) -> tuple[Block, ...]:
    return tuple(_blocks(page, page.read_text("utf-8")))


def _blocks(page: Path, whole: str) -> Iterator[Block]:
    fences = list(_FENCE.finditer(whole))
    for index, fence in enumerate(fences):
        if fence["language"] not in RUNNABLE:
            continue
        earlier = whole[fences[index - 1].end() if index else 0 : fence.start()]
        reason, before = _REASON.search(earlier), _BEFORE.search(earlier)
        yield Block(
            page=page,
            line=whole.count("\n", 0, fence.start()) + 1,
            language=fence["language"],
            text=_dedented(fence),
            before=before["code"] if before else "",
            not_run=reason["reason"] if reason else "",
            prints=_printed(whole, fences[index : index + 2]),
        )


def _printed(whole: str, pair: list[re.Match[str]]) -> str | None:
    if len(pair) < 2 or pair[0]["language"] != "python" or pair[1]["language"] != "text":
        return None
    return _dedented(pair[1]) if not whole[pair[0].end() : pair[1].start()].strip() else None


def _dedented(fence: re.Match[str]) -> str:
    width = len(fence["indent"])
    return "".join(line[width:] if line.strip() else line for line in fence["text"].splitlines(keepends=True))


def uses_spark(page: Path) -> bool:
    """Some block that is run starts a JVM."""
    return any(
        block.language == "sql" or "spark" in block.text.lower() or "avow pipeline run" in block.text
        for block in blocks_of(page)
        if not block.not_run and block.language != "toml"
    )
