"""The process that Spark forks its Python workers from: cheaper to start, and cheaper for each small batch.

Spark starts a daemon for each kind of work (looking a source up, planning a read, tasks, commits): about ten processes
until the first batch of a stream is done. Two things cost most of their time, and are avoided here:

 * each finds PySpark in `pyspark.zip`, which Spark puts before everything else on the path, and which holds no compiled
   modules: so each compiles a hundred files, 0.7 s of processor time. The same files are installed beside it, compiled
 * after every task a worker collects garbage among all that was ever imported, 50 ms, of which a batch of a stream has
   four. What is there after the first task is imported for good: it is frozen, and no longer looked through

`session` tells Spark of it by `spark.python.daemon.module`. Workers without Avow could not read a queue, either. What
would start a thread (PyArrow) is not imported here: a fork copies one thread, and the locks of all.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

ZIP: Final = "pyspark.zip"
SHARED: Final = ("pyspark.worker", "pyspark.sql.datasource", "avow.client.blocking")
"""What nearly every worker imports."""


def path_without_zip(path: list[str]) -> list[str]:
    """The same path, where the PySpark that is installed is not the one of the zip."""
    zipped = next((entry for entry in path if os.path.basename(entry) == ZIP), None)
    if zipped is None:
        return path
    rest = [entry for entry in path if entry != zipped]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None:
        return path
    home = os.path.dirname(os.path.dirname(os.path.dirname(zipped)))  # HOME/python/lib/pyspark.zip
    same = os.path.realpath(os.path.dirname(found.origin)) == os.path.realpath(home)
    return rest if same else path


def main() -> None:
    sys.path[:] = path_without_zip(sys.path)
    for name in SHARED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pages that a worker's collector does not touch are not copied
    _freeze_after_the_first_task()
    from pyspark.daemon import manager

    manager()


def _freeze_after_the_first_task() -> None:
    from pyspark import daemon

    work, done = daemon.worker, list[int]()

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - Spark's signature
        code = work(sock, authenticated)
        if not done:  # in this very process: it was forked before
            done.append(code)
            gc.collect()
            gc.freeze()
        return code

    daemon.worker = worker


if __name__ == "__main__":
    main()
