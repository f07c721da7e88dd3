"""One message from `Queue.enqueue` to its answer, hop by hop, as the code runs it.

    python -m benchmarks walk                        hops, files and returns of the working tree
    python -m benchmarks walk --before dcd3e62       beside those of a commit
    python -m benchmarks walk --markdown             the table of docs/architecture.md
    python -m benchmarks walk --write                put that table into docs/architecture.md

A client that is connected and knows its queue sends one message to a peer that is a cluster of its own. Both run on
one event loop in one thread, over a real connection and with real files (`walk_driver`); the disk is a fast one, which
is synced in place. `sys.setprofile` records each call into a file of the build, `sys.settrace` whether it changes
something.

The rule:

 1. A message during which a timer fires or another thread works is not counted: others are sent, until three in a row
    made the same calls.
 2. Only a call whose caller is in another file counts. What the event loop calls has no caller, and counts. Returning
    from a call and resuming a coroutine are not calls.
 3. A question does not count. A question is a call that changes nothing, neither by itself nor by what it calls: it
    stores no attribute, item or global, and calls no method that changes a collection, writes, schedules or resolves
    (`walk_driver` has the list). What a constructor stores in the new object is not a change. So a getter, a check, an
    encoding that builds one value or a clean-up that finds nothing is a question.
 4. Setting a timer is not a hop: whether one is set depends on which are set already, and not on the message.
 5. Calls in a row into the same file are one hop. A hop into a file where the message was before is a return.

`files` is the number of different files, so hops = files + returns. `calls` follows rules 1, 2 and 5 alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import builds
from benchmarks.builds import ROOT, BuildError
from benchmarks.walk_words import WORDS

PAGE: Final = Path("docs") / "architecture.md"
BEGIN: Final = "<!-- walk: begin -->"
END: Final = "<!-- walk: end -->"
RETURN: Final = "\u21a9"
_DRIVER: Final = Path(__file__).with_name("walk_driver.py")
_DRIVER_S: Final = 120.0
_TIMERS: Final = frozenset({"DueTimes.note"})


class Call(msgspec.Struct, frozen=True):
    """`caller` is an index into the list of calls; -1: the event loop."""

    file: str
    function: str
    line: int
    caller: int
    changes: bool


class Hop(msgspec.Struct, frozen=True):
    """A visit to a file. `returns`: the message was there before."""

    file: str
    functions: list[str]
    returns: bool


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    hops: list[Hop]
    calls: int

    @property
    def files(self) -> int:
        return len({hop.file for hop in self.hops})

    @property
    def returns(self) -> int:
        return sum(hop.returns for hop in self.hops)

    def sentence(self) -> str:
        return f"{len(self.hops)} hops, {self.files} files, {self.returns} returns"


def run_message(source: Path) -> list[Call]:
    """The calls of one message of a build; `source` is its `src` folder. Raises BuildError."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_DRIVER)],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            timeout=_DRIVER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"the message of {source} was not answered within {_DRIVER_S:g} s") from None
    if done.returncode or not done.stdout:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"the message of {source} was not followed to its answer: {last}")
    return msgspec.json.decode(done.stdout, type=list[Call])


def hops_of(calls: Sequence[Call]) -> list[Hop]:
    return _visits(
        call for call, changes in zip(calls, _changing(calls), strict=True) if changes and _crosses(call, calls)
    )


def walk_of(calls: Sequence[Call], *, name: str) -> Walk:
    crossing = _visits(call for call in calls if _crosses(call, calls))
    return Walk(name=name, hops=hops_of(calls), calls=len(crossing))


def _crosses(call: Call, calls: Sequence[Call]) -> bool:
    return call.caller < 0 or calls[call.caller].file != call.file


def _changing(calls: Sequence[Call]) -> list[bool]:
    """Whether a call or anything it calls changes something. A caller stands before what it calls."""
    changing = [call.changes and call.function not in _TIMERS for call in calls]
    for index in reversed(range(len(calls))):
        caller = calls[index].caller
        if caller >= 0 and changing[index]:
            changing[caller] = True
    return changing


def _visits(calls: Iterable[Call]) -> list[Hop]:
    hops: list[Hop] = []
    seen: set[str] = set()
    for call in calls:
        if not hops or hops[-1].file != call.file:
            hops.append(Hop(call.file, [], call.file in seen))
            seen.add(call.file)
        if call.function not in hops[-1].functions:
            hops[-1].functions.append(call.function)
    return hops


# ---------------------------------------------------------------------- the page


def markdown(walk: Walk) -> str:
    """What stands between the markers of docs/architecture.md."""
    lines = [
        f"**{len(walk.hops)} hops** through **{walk.files} files**, **{walk.returns}** of them returns ({RETURN}).",
        "",
        "| hop | | file | function | what happens |",
        "|---|---|---|---|---|",
    ]
    for number, hop in enumerate(walk.hops, 1):
        functions = ", ".join(f"`{function}`" for function in hop.functions)
        sign = RETURN if hop.returns else ""
        lines.append(f"| {number} | {sign} | `{hop.file}` | {functions} | {'; '.join(_words(hop))} |")
    return "\n".join(lines) + "\n"


def wordless(walk: Walk) -> list[str]:
    """Functions of the walk that `walk_words` says nothing about, by its keys."""
    return [key for hop in walk.hops for key in _keys(hop) if key not in WORDS]


def _words(hop: Hop) -> list[str]:
    return [WORDS[key] for key in _keys(hop) if key in WORDS]


def _keys(hop: Hop) -> list[str]:
    package = hop.file.partition("/")[0]
    return [f"{package} {function}" for function in hop.functions]


def page_with(text: str, table: str) -> str:
    """The page with another table. Raises BuildError when it has no markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BuildError(f"{PAGE} has no lines {BEGIN!r} and {END!r} around the table")
    return f"{before}{BEGIN}\n{table}{END}{after}"


# ---------------------------------------------------------------------- the command


def follow_tree(*, root: Path) -> Walk:
    """Of the working tree. Raises BuildError."""
    return walk_of(run_message(root / "src"), name="working tree")


def follow_commit(commit: str, *, root: Path) -> Walk:
    """Raises BuildError, also when there is no such commit."""
    build = builds.describe_commit(commit, root=root)
    with tempfile.TemporaryDirectory(prefix="avow-walk-") as folder:
        source = builds.unpack_commit(build, Path(folder) / "before", root=root)
        return walk_of(run_message(source), name=build.commit[:10])


def print_walks(walks: list[Walk], console: Console) -> None:
    table = Table()
    for title in ("tree", "hops", "files", "returns", "calls between files"):
        table.add_column(title, justify="left" if title == "tree" else "right", no_wrap=True)
    for walk in walks:
        table.add_row(walk.name, *map(str, (len(walk.hops), walk.files, walk.returns, walk.calls)))
    console.print(table)


def main(words: list[str], *, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks walk", description="One message, hop by hop.")
    parser.add_argument("--before", metavar="COMMIT", help="count the tree of this commit too")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print every hop as JSON")
    output.add_argument("--markdown", action="store_true", help="print the table of docs/architecture.md")
    output.add_argument("--write", action="store_true", help="write that table into docs/architecture.md")
    options = parser.parse_args(words)
    try:
        walks = [] if options.before is None else [follow_commit(options.before, root=root)]
        walks.append(follow_tree(root=root))
        if options.write:
            page = root / PAGE
            page.write_text(page_with(page.read_text(), markdown(walks[-1])))
    except (BuildError, OSError) as error:
        print(f"walk: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(walks), indent=2).decode())
    elif options.markdown:
        print(markdown(walks[-1]), end="")
    else:
        print_walks(walks, Console(width=None if sys.stdout.isatty() else 120))
    for key in wordless(walks[-1]):
        print(f"walk: benchmarks/walk_words.py says nothing about {key!r}", file=sys.stderr)
    return 0
