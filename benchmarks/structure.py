"""Figures about the structure of the source tree: counted with `ast`, at a commit and in the working tree.

    python -m benchmarks structure                     the working tree
    python -m benchmarks structure --before dcd3e62    beside the tree of a commit
    python -m benchmarks structure --verbose           every place that was counted

What is counted, and by which rule, is in `structure_lanes` and `structure_rules`. `pubsub` and `two_phase` are counted
where they live in both trees; a package that a tree does not have counts as 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import builds
from benchmarks.builds import ROOT, BuildError
from benchmarks.structure_lanes import STRATEGIES, shared_attributes
from benchmarks.structure_rules import error_lists, http_clients, places_that_wait, single_importers
from benchmarks.structure_source import Source


class Row(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    places: list[str]

    @property
    def count(self) -> int:
        return len(self.places)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one tree."""

    name: str
    rows: list[Row]


def measure_tree(folder: Path, *, name: str) -> Column:
    """`folder` is a `src` folder."""
    source = Source(folder)
    lanes = [
        Row(
            title=f"{strategy}: attributes of a lane changed in more than one file",
            places=[
                f"{attribute}: {', '.join(files)}" for attribute, files in shared_attributes(source, package).items()
            ],
        )
        for strategy, package in STRATEGIES.items()
    ]
    passing, other = error_lists(source)
    product, testing = http_clients(source)
    rows = [
        *lanes,
        Row(title="places that hold sends back until a sync", places=places_that_wait(source)),
        Row(title="lists of passing errors", places=passing),
        Row(title="other lists that are asked for an error's code", places=other),
        Row(title="HTTP/1.1 clients in the product (without doctor)", places=product),
        Row(title="HTTP/1.1 clients in avow.testing and avow_lab", places=testing),
        Row(
            title="modules with one importer, in the same package",
            places=[f"{module} <- {importer}" for module, importer in single_importers(source).items()],
        ),
    ]
    return Column(name=name, rows=rows)


def measure_columns(before: str | None, *, root: Path) -> list[Column]:
    """Raises BuildError when there is no such commit."""
    columns = []
    if before is not None:
        build = builds.describe_commit(before, root=root)
        with tempfile.TemporaryDirectory(prefix="avow-structure-") as folder:
            source = builds.unpack_commit(build, Path(folder) / "before", root=root)
            columns.append(measure_tree(source, name=build.commit[:10]))
    return [*columns, measure_tree(root / "src", name="working tree")]


def print_columns(columns: list[Column], console: Console, *, verbose: bool) -> None:
    table = Table()
    table.add_column("figure", no_wrap=True)
    for column in columns:
        table.add_column(column.name, justify="right", no_wrap=True)
    for rows in zip(*(column.rows for column in columns), strict=True):
        table.add_row(rows[0].title, *(str(row.count) for row in rows))
    console.print(table)
    for column in columns if verbose else ():
        for row in column.rows:
            console.print(f"\n{column.name}, {row.title}: {row.count}", markup=False, highlight=False)
            for place in row.places:
                console.print(f"  {place}", markup=False, highlight=False, soft_wrap=True)


def main(words: list[str], *, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks structure", description="The structure of src, counted."
    )
    parser.add_argument("--before", metavar="COMMIT", help="count the tree of this commit too")
    parser.add_argument("--verbose", action="store_true", help="print every place that was counted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every place that was counted to this file")
    options = parser.parse_args(words)
    try:
        columns = measure_columns(options.before, root=root)
    except (BuildError, OSError) as error:
        print(f"structure: {error}", file=sys.stderr)
        return 2
    print_columns(columns, Console(width=None if sys.stdout.isatty() else 140), verbose=options.verbose)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(columns), indent=2) + b"\n")
    return 0
