"""How many events a simulated second of proof costs, and which lines of the node no seed has reached.

`python -m benchmarks simulator` gives the events per second of one core, for queues of each strategy and of both. The
figure counts everything a campaign does for a seed, also drawing the plan and building the cluster. It is CPU time, so
other load on the machine disturbs it little.

`python -m benchmarks simulator --coverage 200` runs so many seeds of each under a tracer, and names the lines in
functions of `avow.node` that none of them reached. It is slow, and it is no target: what is only for people (views,
messages of errors) is not reached by design.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import avow.node
from avow_lab.simulator.plan import STRATEGIES
from avow_lab.simulator.simulation import simulate

SEEDS: Final = 200
EVENTS_PER_S_MIN: Final = 75_000
NODE: Final = Path(next(iter(avow.node.__path__)))


def measure(strategy: str) -> dict[str, float]:
    began = time.process_time()
    verdicts = [simulate(seed, strategy=strategy) for seed in range(SEEDS)]
    spent = time.process_time() - began
    events = sum(verdict.events for verdict in verdicts)
    return {"events": events, "cpu_s": spent, "events_per_s": events / spent}


def main() -> dict[str, object]:
    figures = {strategy: measure(strategy) for strategy in STRATEGIES}
    for strategy, figure in figures.items():
        print(f"{strategy:<12}{figure['events_per_s']:>10,.0f} events per second of one core ({SEEDS} seeds)")
    slowest = min(figure["events_per_s"] for figure in figures.values())
    return {"strategies": figures, "held": slowest >= EVENTS_PER_S_MIN}


# ---------------------------------------------------------------------- lines that were never reached


class Reached:
    """The lines of some files that were executed, by file."""

    def __init__(self, folder: Path) -> None:
        self._prefix = str(folder)
        self.lines: dict[str, set[int]] = {}

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self._prefix):
            return None
        lines = self.lines.setdefault(name, set())
        lines.add(frame.f_lineno)

        def local(inner: FrameType, _event: str, _argument: Any) -> Any:
            lines.add(inner.f_lineno)
            return local

        return local


def lines_of(code: CodeType) -> set[int]:
    """Those of the functions in a module; its own and those of class bodies ran when it was imported."""
    found: set[int] = set()
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        if inner.co_flags & 0x2:  # of a function: it has local variables of its own
            found |= {line for _, _, line in inner.co_lines() if line and line != inner.co_firstlineno}
        found |= lines_of(inner)
    return found


def ranges(lines: set[int]) -> str:
    spans: list[list[int]] = []
    for line in sorted(lines):
        if spans and line - spans[-1][1] <= 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def coverage(seeds: int) -> None:
    reached = Reached(NODE)
    sys.settrace(reached)
    try:
        for strategy in STRATEGIES:
            for seed in range(seeds):
                simulate(seed, strategy=strategy)
    finally:
        sys.settrace(None)
    whole = left = 0
    for path in sorted(NODE.rglob("*.py")):
        lines = lines_of(compile(path.read_text(), str(path), "exec"))
        missed = lines - reached.lines.get(str(path), set())
        whole, left = whole + len(lines), left + len(missed)
        print(f"{path.relative_to(NODE)!s:<28}{len(lines) - len(missed):>5} of {len(lines):<5}{ranges(missed)}")
    print(f"{whole - left} of {whole} lines reached by {seeds} seeds of each of {', '.join(STRATEGIES)}")


def command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulator", description=__doc__)
    parser.add_argument("--coverage", type=int, metavar="SEEDS", required=True, help="name the lines never reached")
    coverage(parser.parse_args(arguments).coverage)
    return 0


if __name__ == "__main__":
    main()
