"""Transcripts: a sequence of events as a text that people read and tests check.

A test that builds three peers, passes messages between them and asserts seven numbers is hard to read for others than
its author, and a diagram in the documentation is never run. A transcript is both at once: commands, and everything that
was observed after each of them.

    # Peer 1 takes over; then a client writes.        comment, at the start of a line
    claim 1                                           one or more commands
    ----
    1 -> 2  Claim 1.1                                 what was observed, to the next blank line; `ok`: nothing
    ...

`replay` runs the commands and returns the same text with what was observed this time; a transcript holds when both are
equal. To write a new one, write its commands and check carefully what `replay` puts below them. Nothing in it is random
and no clock is read, so the same commands give the same text.

The first command is `cluster`; it chooses the strategy and with it the other commands (see `bench` for those of both,
`two_phase` and `pubsub` for the rest; docs/transcripts.md lists them for authors).
"""

from __future__ import annotations

from difflib import unified_diff
from typing import Final, TypeAlias

from msgspec import Struct

from avow.errors import AvowError
from avow_lab.transcripts.pubsub import PubSubBench
from avow_lab.transcripts.text import TranscriptError, Words
from avow_lab.transcripts.two_phase import TwoPhaseBench

__all__ = ["TranscriptError", "difference", "replay"]

RULE: Final = "----"
NOTHING: Final = "ok"

AnyBench: TypeAlias = TwoPhaseBench | PubSubBench


class Block(Struct, frozen=True):
    """Lines up to a blank one. Without commands it is prose. `number` is that of its first line, from 1."""

    number: int
    above: list[str]  # comments and commands as written
    commands: list[str]


def replay(text: str) -> str:
    """The same transcript with what its commands show now. Raises TranscriptError where it is wrong."""
    bench: AnyBench | None = None
    written: list[str] = []
    for block in _blocks(text):
        written += block.above
        if block.commands:
            shown: list[str] = []
            for line in block.commands:
                bench, lines = _perform(bench, line, block.number)
                shown += lines
            written += [RULE, *(shown or [NOTHING])]
        written.append("")
    return "\n".join(written)


def difference(text: str, *, name: str = "transcript") -> str:
    """Expected against observed, as a unified diff; empty when the transcript holds."""
    seen = replay(text)
    lines = unified_diff(
        text.splitlines(), seen.splitlines(), fromfile=f"{name} (expected)", tofile=f"{name} (seen)", lineterm="", n=4
    )
    return "\n".join(lines)


def _perform(bench: AnyBench | None, line: str, number: int) -> tuple[AnyBench, list[str]]:
    words = Words(line)
    try:
        if words.name == "cluster":
            return _cluster(words), []
        if bench is None:
            raise TranscriptError(f"`{line}` comes before `cluster`")
        return bench, bench.perform(words)
    except (TranscriptError, AvowError, ValueError) as error:
        raise TranscriptError(f"in the block at line {number}, `{line}`: {error}") from error


def _cluster(words: Words) -> AnyBench:
    strategy = words.option("strategy", "two-phase")
    if strategy not in ("two-phase", "pub-sub"):
        raise TranscriptError(f"strategy={strategy} is neither two-phase nor pub-sub")
    bench = TwoPhaseBench(words) if strategy == "two-phase" else PubSubBench(words)
    words.finish()
    return bench


def _blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    group: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            first = first if group else number
            group.append(line.rstrip())
        elif group:
            blocks.append(_block(first, group))
            group = []
    return blocks


def _block(number: int, lines: list[str]) -> Block:
    above = lines[: lines.index(RULE)] if RULE in lines else lines
    return Block(number, above, [line for line in above if not line.startswith("#")])
