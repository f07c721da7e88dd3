"""`pip install avow` is a small client: what is in the wheel, how large it is, how quickly it starts, what it says is
missing, and that it works against real peers."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.packaging.locking import ROOT

from avow.testing.cluster import LocalCluster

PROGRAM = Path(__file__).with_name("user_program.py")
SIZE_BYTES_MAX = 40_000_000
IMPORT_STARTS_MAX = 15.0  # in starts of a Python that imports nothing: 10 ms of a processor
CONNECT_STARTS_MAX = 30.0  # with what a first use loads


def ran(*command: str | Path, cwd: Path | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_the_wheel_has_the_package_its_types_and_pages_but_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {
        "avow",
        "avow_lab",
        "pyspark_avow",
        f"{_stem(wheel)}.dist-info",
    }
    assert "avow/py.typed" in names
    assert "avow/channel/browser/avow-channel.js" in names
    assert not [name for name in names if "vectors" in name]
    package = ROOT / "src" / "avow"
    served = {path for kind in ("*.html", "*.css", "*.js", "*.svg") for path in package.rglob(kind)}
    assert {f"avow/{path.relative_to(package)}" for path in served} <= names


def _stem(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2])


def test_a_client_with_its_dependencies_takes_less_than_40_megabytes(client: Path) -> None:
    """By the sizes of its files, compiled ones included; blocks of a disk are not counted."""
    (packages,) = client.glob("lib/python3*/site-packages")
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < SIZE_BYTES_MAX


@pytest.mark.parametrize(
    ("program", "starts_max"),
    [
        ("import avow", IMPORT_STARTS_MAX),
        ("import avow; avow.connect, avow.connect_blocking", CONNECT_STARTS_MAX),
    ],
)
def test_importing_takes_at_most_a_few_times_the_start_of_python(client: Path, program: str, starts_max: float) -> None:
    """The best of five fresh processes of either kind, in turn, in time of the processor: a ratio within one run."""

    def took_s(program: str) -> float:
        return float(ran(client / "bin" / "python", "-c", f"{program}; import time; print(time.process_time())").stdout)

    took = [(took_s(program), took_s("pass")) for _ in range(5)]
    assert min(importing for importing, _ in took) < starts_max * min(start for _, start in took)


def test_no_module_of_the_client_needs_an_extra(client: Path) -> None:
    program = (
        "import importlib, pkgutil, avow.client, avow.wire, avow.channel\n"
        "for package in (avow.client, avow.wire, avow.channel):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
    )
    done = ran(client / "bin" / "python", "-c", program)
    assert done.returncode == 0, done.stderr


def test_the_client_enqueues_reads_produces_and_subscribes(client: Path) -> None:
    with LocalCluster(1) as cluster:
        done = ran(client / "bin" / "python", PROGRAM, cluster.addresses)
        shown = ran(client / "bin" / "avow", "read", "orders", "--values-only", "--api", cluster.addresses)
    assert done.stdout == "(1, [b'first', b'second'], 'UNKNOWN_QUEUE')\n", done.stderr
    assert shown.stdout == "first\nsecond\n", shown.stderr


def test_a_user_s_program_passes_mypy_with_the_installed_types(client: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    mistakes = ("avow.Nonsense", 'avow.connect_blocking(7).queue("orders").enqueue("text")')
    wrong.write_text("\n".join([PROGRAM.read_text(), *mistakes, ""]))
    python, cache = client / "bin" / "python", tmp_path / "cache"
    command = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", cache)
    done = ran(*command, PROGRAM, cwd=tmp_path, timeout_s=120)
    assert done.returncode == 0, done.stdout
    found = ran(*command, wrong, cwd=tmp_path).stdout
    assert len(re.findall(r"wrong.py:\d+: error: .*\[arg-type\]", found)) == 2
    assert re.search(r'wrong.py:\d+: error: Module has no attribute "Nonsense"  \[attr-defined\]', found)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("serve", "server"),
        ("up --temporary", "server"),
        ("prove --minutes 1", "server"),
        ("pipeline run nothing.toml", "spark"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(client: Path, tmp_path: Path, words: str, extra: str) -> None:
    done = ran(client / "bin" / "avow", *words.split(), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("avow: NOT_INSTALLED: ")
    assert f"pip install 'avow[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_commands_is_shown_without_any_extra(client: Path) -> None:
    done = ran(client / "bin" / "avow", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"enqueue", "doctor", "prove"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("avow.server.serve", "server"),
        ("avow.spark", "spark"),
        ("pyspark_avow", "spark"),
        ("avow.barrier.redis", "redis"),
        ("avow.barrier.mongo", "mongo"),
        ("avow.barrier.sqlalchemy", "sqlalchemy"),
        ("avow.pledge.stores.postgres", "postgres"),
        ("avow.pledge.stores.mysql", "mysql"),
        ("avow.pledge.stores.redis", "redis"),
    ],
)
def test_a_module_that_needs_an_extra_names_it(client: Path, module: str, extra: str) -> None:
    done = ran(client / "bin" / "python", "-c", f"import {module}")
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'avow[{extra}]'")


def test_a_batch_as_arrow_and_a_branch_by_grpc_name_their_extras(client: Path) -> None:
    program = (
        "from avow.errors import NotInstalled\n"
        "from avow.wire.arrow import to_arrow\n"
        "from avow.pledge.branches.grpc import check_installed\n"
        "for work in (lambda: to_arrow(b''), check_installed):\n"
        "    try: work()\n"
        "    except NotInstalled as error: print(error.extra)\n"
    )
    assert ran(client / "bin" / "python", "-c", program).stdout == "arrow\ngrpc\n"
