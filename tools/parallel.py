"""Runs commands at the same time and prints the output of each when it ends: `python -m tools.parallel 2 mypy ruff`.

The first argument is how many run at once. They start in the order given, so the longest should be first. All of them
run even if one fails; the exit code is 1 then, and the last line names those that failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple


class Ended(NamedTuple):
    command: str
    code: int
    seconds: float
    output: str


def run(command: str) -> Ended:
    began = time.monotonic()
    ended = subprocess.run(
        command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return Ended(command, ended.returncode, time.monotonic() - began, ended.stdout.decode(errors="replace"))


def main(arguments: Sequence[str]) -> int:
    at_once, commands = int(arguments[0]), arguments[1:]
    failed = list[str]()
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(run, command) for command in commands]):
            ended = done.result()
            print(f"$ {ended.command}  # {ended.seconds:.1f} s\n{ended.output.rstrip()}", flush=True)
            if ended.code:
                failed.append(f"{ended.command} (exit code {ended.code})")
    if failed:
        print(f"failed: {'; '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
