"""The lines of the README, as they stand there, typed into a second terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_cluster import AVOW, ROOT, Up

README = (ROOT / "README.md").read_text("utf-8")


def lines_of(section: str) -> list[str]:
    text = README.partition(f"## {section}\n")[2].partition("\n## ")[0]
    block = re.search(r"```console\n(.*?)```", text, re.DOTALL)
    assert block is not None, section
    return [line.removeprefix("$ ") for line in block[1].splitlines() if line.startswith("$ ")]


def test_the_first_command_is_the_one_that_make_runs() -> None:
    assert lines_of("Two commands")[0].startswith("make run")
    assert re.search(
        r"^run: install.*\n\t@\$\(BIN\)/avow up \$\(ARGS\)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )


def test_the_second_terminal_enqueues_reads_kills_a_peer_and_goes_on(up: Up) -> None:
    script = "\n".join(["set -ex", *lines_of("In a second terminal")])
    environment = {**os.environ, "AVOW_API": up.addresses}
    run = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for part in ("0:1  first", "0:3  third", "10,000 messages stored", "0:10004  one peer is dead", "3 peers, 2 up"):
        assert part in run.stdout
    up.wait_for("restarted")


def test_the_python_of_the_readme_runs(up: Up) -> None:
    printed = ""
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        code = re.sub(r'"http://[^"]*"', repr(up.addresses), block)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
        printed += run.stdout
    for value in ("paid", "shipped", "line 1", "line 2", "\n0 1 ", "Delivered(gid="):
        assert value in printed


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(((?:docs|tests|CHANGELOG)[^)#]*)\)", README))))
def test_what_the_readme_links_to_is_there(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_command_is_installed() -> None:
    assert Path(AVOW).exists()
