"""Runs the blocks of one page, in order, in one folder and one namespace, against a real cluster.

Addresses of `avow up` (ports 7401 to 7403) stand for those of the cluster at hand. Python may await at the top level;
all of a page's awaits share one event loop. Each `$` line of a console is a shell of its own that inherits what earlier
lines exported. `avow pipeline run` is called in this process and not in a shell: a JVM for each line would be most of
the time that the tests take.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any, Final

from tests.docs.docs_blocks import Block
from typer.testing import CliRunner

from avow.cli.main import app_of
from avow.client.blocking import BlockingClient
from avow.client.client import Client
from avow.server.access import load_tokens
from avow.server.settings import Settings, load
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.pipelines.spec import parse_spec

COMMAND_S: Final = 300
_USUAL: Final = re.compile(r"127\.0\.0\.1:740([1-3])")
_IN_PROCESS: Final = "avow pipeline run "
_NOT_CONNECTED: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 5


class Page:
    """`base` is the port of which `avow up` counts from; `close` ends what the page left open."""

    def __init__(self, folder: Path, *, base: int) -> None:
        self._folder, self._base = folder, base
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._loop = asyncio.Runner()
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "AVOW_API": ",".join(f"http://127.0.0.1:{base + number}" for number in (1, 2, 3)),
            "COLUMNS": "160",
        }

    def run(self, blocks: Iterable[Block]) -> None:
        """The folder must be the current one: relative paths of Python begin there."""
        for block in blocks:
            if block.before:
                self._python(self._here(block.before), place=f"{block.place} (before)")
            if block.not_run:
                continue
            text = self._here(block.text)
            if block.file:
                (self._folder / block.file).write_text(text)
            getattr(self, f"_run_{block.language}")(block, text)

    def close(self) -> None:
        for value in self._names.values():
            if isinstance(value, BlockingClient):
                value.close()
            elif isinstance(value, Client):
                self._loop.run(value.close())
        self._loop.close()

    def _here(self, text: str) -> str:
        return _USUAL.sub(lambda found: f"127.0.0.1:{self._base + int(found[1])}", text)

    # ------------------------------------------------------------------ python

    def _run_python(self, block: Block, text: str) -> None:
        out = self._python(text, place=block.place, line=block.line)
        if block.prints is not None:
            check_output(block.prints, out, place=block.place)

    def _python(self, text: str, *, place: str, line: int = 0) -> str:
        code = compile("\n" * line + text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if code.co_flags & inspect.CO_COROUTINE:
                self._loop.run(_awaited(code, self._names))
            else:
                self._exec(code)
        return out.getvalue()

    def _exec(self, code: CodeType) -> None:
        """Spark gives a Python worker ten seconds to connect back, and no setting changes that. Only if one took longer
        is the block run again."""
        for left in range(_STARTS_MAX - 1, -1, -1):
            try:
                exec(code, self._names)
            except Exception as error:
                if not left or _NOT_CONNECTED not in str(error):
                    raise
            else:
                return

    def _run_sql(self, block: Block, text: str) -> None:
        from avow.spark import session

        for statement in filter(None, (part.strip() for part in text.split(";\n"))):
            session().sql(statement.removesuffix(";")).collect()

    # ------------------------------------------------------------------ shells

    def _run_bash(self, block: Block, text: str) -> None:
        code, out = self._shell(f"set -e\n{text}")
        assert code == 0, f"{block.place}: {out}"

    def _run_console(self, block: Block, text: str) -> None:
        for command, shown in commands_of(text):
            code, out = self._pipeline(command) if command.startswith(_IN_PROCESS) else self._shell(command)
            assert code == 0, f"{block.place}: $ {command}\nended with {code}:\n{out}"
            if shown:
                check_output(shown, out, place=f"{block.place}: $ {command}")

    def _shell(self, command: str) -> tuple[int, str]:
        kept = self._folder / ".environment"
        run = subprocess.run(
            ["bash", "-c", f"set -o pipefail\n{command}\nended=$?\nenv -0 > {shlex.quote(str(kept))}\nexit $ended"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if kept.exists():
            self._environment = dict(pair.split("=", 1) for pair in kept.read_text().split("\0") if "=" in pair)
            kept.unlink()
        return run.returncode, run.stdout

    def _pipeline(self, command: str) -> tuple[int, str]:
        words = shlex.split(command, comments=True)
        before = dict(os.environ)
        os.environ["AVOW_API"] = self._environment["AVOW_API"]
        try:
            done = CliRunner().invoke(app_of(["pipeline"]), words[1:], catch_exceptions=False)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return done.exit_code, done.output

    # ------------------------------------------------------------------ files

    def _run_toml(self, block: Block, text: str) -> None:
        """Its reader must accept it: a pipeline, an audit, tokens, or the settings of a peer."""
        found = tomllib.loads(text)
        file = self._folder / (block.file or "block.toml")
        if found.get("kind") == "audit":
            AuditSpec.from_table(found)
        elif "kind" in found:
            parse_spec(found, file=file, environment={})
        elif "token" in found:
            file.write_text(text)
            load_tokens(Settings(tokens=str(file)))
        else:
            load(found, environment={})


async def _awaited(code: Any, names: dict[str, Any]) -> None:
    await eval(code, names)


def commands_of(text: str) -> list[tuple[str, str]]:
    """Each `$` line, with the `>` lines that continue it, and the output shown below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def check_output(shown: str, out: str, *, place: str) -> None:
    """`...` stands for anything within a line, and alone on a line for any lines."""
    parts: list[str] = []
    for line in shown.rstrip().splitlines():
        pattern = re.escape(line.rstrip()).replace(r"\.\.\.", r"[^\n]*")
        parts.append(r"(?:[^\n]*\n)*?" if line.strip() == "..." else rf"{pattern}[^\S\n]*\n")
    found = "".join(f"{line.rstrip()}\n" for line in out.splitlines())
    assert re.fullmatch("".join(parts) + r"\s*", found), f"{place} shows\n{shown}\nand there was\n{out}"
