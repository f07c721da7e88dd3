"""A daemon that forks Spark's Python workers: it starts faster, and each small batch costs less.

Spark starts a daemon for each kind of work (finding a source, planning a read, tasks, commits): about ten processes
until the first batch of a stream is done. Two costs dominate their time and are avoided here:

 * Each process imports PySpark from `pyspark.zip`, which Spark puts first on the path. The zip holds no compiled
   modules, so each process compiles a hundred files, which takes 0.7 s of CPU. The same files are installed beside it,
   compiled.
 * After every task, a worker runs a garbage collection over all imported objects: 50 ms, four times per batch of a
   stream. Objects that exist after the first task stay for the life of the process, so they are frozen (`gc.freeze`)
   and not traversed again.

`session` sets this module in `spark.python.daemon.module`. Workers need Avow anyway to read a queue. A module that
starts a thread (PyArrow) must not be imported here: a fork copies one thread, but the locks of all.
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
"""Modules that nearly every worker imports."""


def path_without_zip(path: list[str]) -> list[str]:
    """The path without the zip, unless the installed PySpark is another one than that of the zip."""
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
    gc.freeze()  # the worker's collector does not touch these pages, so they stay shared after the fork
    _freeze_after_the_first_task()
    from pyspark.daemon import manager

    manager()


def _freeze_after_the_first_task() -> None:
    from pyspark import daemon

    work, done = daemon.worker, list[int]()

    def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - Spark's signature
        code = work(sock, authenticated)
        if not done:  # per process: each worker is a fork with its own copy of the list
            done.append(code)
            gc.collect()
            gc.freeze()
        return code

    daemon.worker = worker


if __name__ == "__main__":
    main()
