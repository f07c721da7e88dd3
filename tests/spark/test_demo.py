"""`avow demo` as a person runs it: its numbers are counted again from outside, and nothing is left when it ends.

Two runs at the same time, on their own ports. One is interrupted while Spark starts. The other is audited, loses a row
of its table on purpose, is audited again, and keeps running because of `--keep`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from avow.client.blocking import connect_blocking
from avow.spark.tables import open_table
from avow.testing.cluster_wait import wait_until
from avow_lab.demo.chain import CUSTOMERS

ORDERS = 200
RUN_S = 400.0


class Demo:
    """Without a folder it has a temporary one. Whatever it forgets is found in `scratch`, which all of them share."""

    def __init__(self, scratch: Path, folder: Path | None, *flags: str) -> None:
        self.scratch, self.folder = scratch, folder or scratch / "avow-demo-"
        named = scratch.parent / (folder.name if folder else "temporary")
        self._out, self._errors = named.with_suffix(".out"), named.with_suffix(".err")
        place = ("--data", str(folder)) if folder else ()
        command = [sys.executable, "-m", "avow.cli", "demo", "--json", *place, *flags]
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            environment = {**os.environ, "TMPDIR": str(scratch)}
            self.process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.read_text().split("\n")[:-1]]

    def wait_for(self, event: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            ended = self.process.poll() is not None
            seen = next((one for one in self.events() if one["event"] == event), None)
            assert seen or not ended, self._errors.read_text()
            return seen

        seen = wait_until(found, timeout_s=RUN_S, what=lambda: f"{event}: {self._out.read_text()}")
        assert seen is not None
        return seen

    def left(self) -> list[str]:
        """Other processes that name its folder."""
        named = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if str(self.folder).encode() in words and path.parent.name != str(self.process.pid):
                named.append(words.decode(errors="replace"))
        return named

    def forgotten(self) -> list[str]:
        """The scratch folder's contents, except the claims of ports, which all clusters share."""
        return [path.name for path in self.scratch.iterdir() if not path.name.startswith("avow-ports")]

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(RUN_S)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Demo]]:
    folder = tmp_path_factory.mktemp("demo")
    folder.chmod(0o755)
    scratch = folder / "tmp"
    scratch.mkdir()
    made = {
        "kept": Demo(scratch, folder / "kept", "--orders", str(ORDERS), "--seed", "7", "--keep", "--plant", "lost"),
        "interrupted": Demo(scratch, None),
    }
    yield made
    for demo in made.values():
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.wait()


def test_an_interrupted_demo_leaves_nothing(demos: dict[str, Demo]) -> None:
    demo = demos["interrupted"]
    demo.wait_for("shop")
    assert demo.left()
    assert demo.end() == 130
    assert demo.left() == []
    assert demo.forgotten() == []


def test_its_numbers_match_database_queue_and_table_and_a_missing_row_is_named(demos: dict[str, Demo]) -> None:
    demo = demos["kept"]
    verdict, audited = demo.wait_for("verdict"), demo.wait_for("audited")
    ordered, sent = database_ids(demo), queue_ids(demo)
    rows = open_table(f"delta:{demo.folder / 'orders'}").count()
    assert len(set(ordered)) == len(ordered) > ORDERS / 2
    assert sent == ordered
    assert rows == len(ordered) - 1
    assert audited["clean"] is True
    assert counts(audited) == [len(ordered)] * 3
    assert verdict["clean"] is False
    assert counts(verdict) == [len(ordered), len(ordered), rows]
    assert verdict["wrong"] == [f"lost: 1 in the queue, not in the table ({ordered[0]})"]
    assert verdict["told_committed"] == len(ordered)
    assert verdict["told_committed"] + verdict["told_rolled_back"] > ORDERS  # and those of the first customer
    assert_story(demo, verdict)
    assert demo.process.poll() is None
    assert demo.end() == 1
    assert demo.left() == []
    assert demo.forgotten() == []


def database_ids(demo: Demo) -> list[str]:
    with closing(sqlite3.connect(demo.folder / "shop.db")) as connection:
        return sorted(row[0] for row in connection.execute("select id from orders"))


def queue_ids(demo: Demo) -> list[str]:
    with connect_blocking(demo.wait_for("peers")["addresses"]) as client:
        batches = client.queue("orders").read(level="linearizable")
        return sorted(json.loads(bytes(value))["order_id"] for batch in batches for value in batch.values())


def counts(event: dict[str, Any]) -> list[int]:
    return [event["counted"][name] for name in ("committed", "messages", "rows")]


def assert_story(demo: Demo, verdict: dict[str, Any]) -> None:
    names = [one["event"] for one in demo.events() if one["event"] in ("killing", "taken_over", "returned", "decided")]
    assert names == ["killing", "taken_over", "returned", "killing", "returned", "decided"]
    takeover, decided = verdict["takeover"], verdict["decided"]
    assert takeover["peer"] not in takeover["successors"]
    assert takeover["longest_s"] > 0
    assert takeover["usual_s"] > 0
    assert 0 <= decided["undecided"] <= CUSTOMERS
    assert decided["committed"] + decided["rolled_back"] == decided["undecided"]
