"""What a disk, or a person, does to the files of a data folder: every kind of file, every kind of loss.

deleted     the file is gone
shortened   its end is gone
zeroed      all of it, or the second half, reads as zeros
swapped     it has the content of another file of its kind, and the other one has its content
old         it is as it was some time ago, and everything else is not
flipped     some bits changed
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: kind: the files of it in a data folder. Of the log, the segment that was written last comes first.
KINDS: Final = {
    "log": "wal/*.wal",
    "lane file": "lanes/*/*.log",
    "index": "lanes/*/*.idx",
    "snapshot": "lanes/*/*.snap",
    "checkpoint": "checkpoint-*",
    "mark": "mark-*",
    "identity": "identity*",
    "peer list": "peers*",
}
LOSSES: Final = ("deleted", "shortened", "zeroed", "swapped", "old", "flipped")
EVERY: Final = tuple((kind, loss) for kind in KINDS for loss in LOSSES)
_FLIPPED_BYTES: Final = 24


def files_of(kind: str, folder: Path) -> list[Path]:
    found = [path for path in folder.glob(KINDS[kind]) if not path.name.endswith((".new", ".lost"))]
    return sorted(found, key=lambda path: (-path.stat().st_mtime_ns, path.name))


def lose(folder: Path, earlier: Path, kind: str, loss: str, rng: random.Random) -> str:
    """Damage one file. `earlier` is a copy of the folder. Returns what was done; empty: there is no such file."""
    candidates = [path for path in files_of(kind, folder) if used_bytes(path)]
    if loss == "old":
        candidates = [path for path in candidates if _is_older(earlier / path.relative_to(folder), path)]
    if loss == "swapped" and len(candidates) < 2:
        return ""
    if not candidates:
        return ""
    path = candidates[0] if kind == "log" or rng.random() < 0.5 else rng.choice(candidates)
    name = path.relative_to(folder)
    if loss == "deleted":
        path.unlink()
    elif loss == "shortened":
        size = rng.choice([0, used_bytes(path) // 2, max(0, used_bytes(path) - rng.randrange(1, 5_000))])
        os.truncate(path, size)
        return f"{name} shortened to {size} bytes"
    elif loss == "zeroed":
        _zero(path, after=rng.choice([0, used_bytes(path) // 2]))
    elif loss == "swapped":
        other = rng.choice([each for each in candidates if each != path])
        aside = path.with_name(path.name + ".aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)
        return f"{name} swapped with {other.relative_to(folder)}"
    elif loss == "old":
        shutil.copyfile(earlier / name, path)
    else:
        flip(path, rng, share=1.0)
    return f"{name} {loss}"


def copy_folder(folder: Path, target: Path) -> None:
    """All files that can be lost. Zeros at the end of a log segment are left as a hole."""
    for kind in KINDS:
        for path in files_of(kind, folder):
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, copy.open("wb") as file:
                file.write(source.read(used_bytes(path)))
                file.truncate(path.stat().st_size)


def flip(path: Path, rng: random.Random, *, share: float) -> int:
    """Flip bits in the first `share` of the used part. Returns how many bytes changed."""
    used = int(used_bytes(path) * share)
    if not used:
        return 0
    with path.open("r+b", buffering=0) as file:
        for _ in range(_FLIPPED_BYTES):
            at = rng.randrange(used)
            before = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([before[0] ^ 1 << rng.randrange(8)]), at)
    return _FLIPPED_BYTES


def used_bytes(path: Path) -> int:
    """Up to the last byte that is not zero: log segments are preallocated with zeros."""
    step = 1 << 20
    with path.open("rb", buffering=0) as file:
        for start in range((path.stat().st_size - 1) // step * step, -1, -step):
            piece = os.pread(file.fileno(), step, start).rstrip(b"\0")
            if piece:
                return start + len(piece)
    return 0


def in_turn(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Every kind with every loss, again and again, each time in another order."""
    while True:
        yield from rng.sample(EVERY, len(EVERY))


def _is_older(earlier: Path, path: Path) -> bool:
    return earlier.exists() and earlier.read_bytes() != path.read_bytes()


def _zero(path: Path, *, after: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(after)
        file.truncate(size)
