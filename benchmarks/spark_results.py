"""Results of Spark's benchmarks in one file, for a plot: `--json FILE` of each of them adds to it.

    {"spark": {...}, "spark-write": {...}, "spark-latency": {...}, "spark-archive": {...}}

A benchmark that runs again replaces what it had written; what others wrote stays.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="add the results to this file")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def add(path: Path | None, name: str, figures: Mapping[str, object]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**read(path), name: dict(figures)}, indent=2) + "\n")
