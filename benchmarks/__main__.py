"""`make bench`: all figures in one run, kept as JSON in .bench/figures.json. Exit code 1 when a target was missed.

Figures with a disk in them are ratios within the same run (see each module). Name some of them to run only those:
`python -m benchmarks decode storage`. `against` compares with other systems and takes options of its own: `python -m
benchmarks against --rounds 3`. Its targets are told as reached or not and do not change the exit code. `channel` alone
is its throughput; what it does under faults has commands of its own: `python -m benchmarks channel resets`, `...
channel withheld`. `simulator --coverage 200` names the lines of `avow.node` that no seed reached, and measures nothing.
`lanes --shapes 1000x1` is what so many idle lanes cost. `pledges` takes options too: `... pledges --seconds 10 --rounds
5`; what a dead endpoint does to others is `... pledges stuck`. `spark` (reading) and `spark-write` need Java; they take
`--rounds` and `--peers`, and how much there is to read (`--messages`, `--lanes`) or to write (`--rows`).
`spark-latency` is the age of a message when its row is readable, `spark-archive` reads ten million back from table and
queue, `spark-plot` draws what they wrote with `--json FILE`. The last two run only when they are named. `ab --before
COMMIT` compares the build of a commit with the working tree; `structure --before COMMIT` counts what their source trees
are made of, and `walk --before COMMIT` the hops of one message through their files. `partitions` (as root) is the time
from the end of a partition to an acknowledged write. `held` is what a peer holds for clients that ask for or send much,
`mark` what the mark of the log costs by when it is synced.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    ab,
    against,
    channel,
    decode,
    held_bytes,
    lanes,
    mark,
    partitions,
    pledges,
    pledges_stuck,
    simulator,
    spark_archive,
    spark_latency,
    spark_plot,
    spark_read,
    spark_write,
    storage,
    structure,
    walk,
)

PARTS: dict[str, Callable[[], dict[str, object]]] = {
    "decode": decode.main,
    "storage": storage.main,
    "simulator": simulator.main,
    "lanes": lanes.main,
    "channel": channel.throughput,
    "pledges": pledges.throughput,
    "spark": spark_read.main,
    "spark-write": spark_write.main,
    "spark-latency": spark_latency.main,
}
SPARKS: dict[str, Callable[[list[str]], dict[str, object]]] = {
    "spark": spark_read.main,
    "spark-write": spark_write.main,
    "spark-latency": spark_latency.main,
    "spark-archive": spark_archive.main,
    "spark-plot": spark_plot.main,
}


AB = "ab"
AGAINST = "against"
CHANNEL = "channel"
HELD = "held"
LANES = "lanes"
MARK = "mark"
PARTITIONS = "partitions"
PLEDGES = "pledges"
SIMULATOR = "simulator"
STRUCTURE = "structure"
STUCK = "stuck"
WALK = "walk"


def main(names: list[str]) -> int:
    if names[:1] == [AB]:
        return ab.main(names[1:])
    if names[:1] == [HELD]:
        return held_bytes.main(names[1:])
    if names[:1] == [MARK]:
        return mark.main(names[1:])
    if names[:1] == [STRUCTURE]:
        return structure.main(names[1:])
    if names[:1] == [WALK]:
        return walk.main(names[1:])
    if names[:1] == [PARTITIONS]:
        return partitions.main(names[1:])
    if names[:1] == [AGAINST]:
        return against.main(names[1:])
    if names[:1] == [CHANNEL] and len(names) > 1 and names[1] not in PARTS:
        return channel.main(names[1:])
    if names[:1] == [SIMULATOR] and len(names) > 1 and names[1] not in PARTS:
        return simulator.command(names[1:])
    if names[:1] == [LANES] and len(names) > 1 and names[1] not in PARTS:
        return lanes.command(names[1:])
    if names[:2] == [PLEDGES, STUCK]:
        return pledges_stuck.main(names[2:])
    if names[:1] == [PLEDGES] and len(names) > 1 and names[1] not in PARTS:
        return pledges.main(names[1:])
    if names and names[0] in SPARKS and not all(name in PARTS for name in names):
        return 0 if SPARKS[names[0]](names[1:])["held"] else 1
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        known = ", ".join([*PARTS, AGAINST, AB, HELD, MARK, PARTITIONS, STRUCTURE, WALK])
        print(f"bench: there is no part {unknown[0]!r}; there are {known}", file=sys.stderr)
        return 2
    missed = measure_parts(names or list(PARTS))
    if not names:
        print(f"\n== {AGAINST}")
        against.main([])
    print("\nall targets of the parts reached" if not missed else f"\ntargets missed in: {', '.join(missed)}")
    return 1 if missed else 0


def measure_parts(names: list[str]) -> list[str]:
    """Those that missed a target."""
    figures: dict[str, object] = {"python": platform.python_version(), "machine": platform.machine()}
    missed = []
    for name in names:
        print(f"\n== {name}")
        part = PARTS[name]()
        figures[name] = part
        if not part["held"]:
            missed.append(name)
    folder = Path(".bench")
    folder.mkdir(exist_ok=True)
    (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
