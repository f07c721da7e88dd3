"""The program that the tests of the fork server start: it reports what it inherited, then exits or waits."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

IMPORTED_BY = os.getpid()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--code", type=int)
    given = parser.parse_args()
    sys.stderr.write(f"{os.getpid()} began\n")
    report = {
        "url": f"http://127.0.0.1:{given.port or 7}",
        "pid": os.getpid(),
        "session": os.getsid(0),
        "imported_by": IMPORTED_BY,
        "threads": threading.active_count(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],  # the last is of listdir
        "colour": os.environ.get("COLOUR", ""),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    if given.code is not None:
        raise SystemExit(given.code)
    signal.pause()


if __name__ == "__main__":
    main()
