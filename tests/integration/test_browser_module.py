"""The browser's module in Node: its core is the same as Python's, and then its size, its types and its sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.browser.far import FOLDER, Far, listening, proxied, run_in_node, webchannels
from tests.browser.meeting import meet
from tests.browser.mutants import MUTANTS

from avow.channel import browser

SIZE_BYTES_MAX = 5_120
MODULE = "avow-channel.js"
VECTORS = sorted((FOLDER.parent.parent / "tests/vectors/channel").glob("*.json"))
NODE = shutil.which("node")


def node(script: str, *arguments: str, module: Path | None = None) -> Any:
    assert NODE, "Node is needed, version 20 or later"
    environment = {**os.environ, **({"AVOW_CHANNEL_MODULE": module.as_uri()} if module else {})}
    command = [NODE, str(FOLDER / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---------------------------------------------------------------------- the core


def test_the_browsers_core_follows_all_vectors() -> None:
    found = node("vectors.mjs", *map(str, VECTORS))
    assert found["differences"] == []
    assert found["vectors"] >= 60


@pytest.mark.parametrize("mistake", MUTANTS)
def test_the_vectors_detect_an_error(mistake: str, tmp_path: Path) -> None:
    before, after = MUTANTS[mistake]
    source = browser.files()[MODULE][1].decode()
    assert source.count(before) == 1
    mutant = tmp_path / "mutant.mjs"
    mutant.write_text(source.replace(before, after))
    assert node("vectors.mjs", *map(str, VECTORS), module=mutant)["differences"]


@pytest.mark.parametrize("dials", ["python", "browser"])
def test_both_cores_understand_each_other_through_cuts_at_random(dials: str) -> None:
    counts = asyncio.run(meet(seeds=range(200), dials=dials))
    assert counts["sent"] > 2_000
    assert counts["cuts"] > 500
    assert counts["late"] > 100


# ---------------------------------------------------------------------- the files


def test_the_module_is_small_when_compressed() -> None:
    source = browser.files()[MODULE][1]
    assert len(gzip.compress(source, compresslevel=9, mtime=0)) + len(MODULE) + 1 <= SIZE_BYTES_MAX


def test_the_files_have_content_types_that_browsers_accept() -> None:
    found = {name: content_type for name, (content_type, _) in browser.files().items()}
    assert found == {
        "avow-channel.js": "text/javascript; charset=utf-8",
        "avow-channel.d.ts": "text/plain; charset=utf-8",
        "webchannel-socket.js": "text/javascript; charset=utf-8",
    }


def test_the_types_match_the_exports_of_the_module() -> None:
    types = re.sub(r"/\*\*.*?\*/", "", browser.files()["avow-channel.d.ts"][1].decode(), flags=re.DOTALL)
    real = node("names.mjs")
    promised = set(re.findall(r"^export (?:class|function) (\w+)", types, re.MULTILINE))
    assert promised == set(real.pop("exports"))
    for name, members in real.items():
        block = re.search(rf"(?:interface|class) {name}\b[^{{]*{{(.*?)^}}", types, re.DOTALL | re.MULTILINE)
        assert block, name
        found = set(re.findall(r"^\t(?:readonly )?(\w+)\??[(:]", block[1], re.MULTILINE)) - {"constructor"}
        assert found == set(members), name


def test_misuse_is_refused_before_anything_is_opened() -> None:
    assert node("misuse.mjs") == {"bounds": ["INVALID_REQUEST"] * 4 + [""], "resend": "BUSY", "url": "TypeError"}


# ---------------------------------------------------------------------- live, over Node's own WebSocket


def test_messages_both_ways_survive_resets() -> None:
    async def go() -> None:
        far = Far(count=500)
        async with listening(far) as listener, proxied(listener, seed=7) as proxy:
            bounds = {"pending_count": 60}
            found = await run_in_node("exchange", over=lambda: True, url=proxy.url, count=500, every=25, bounds=bounds)
        assert far.words == [str(number) for number in range(1, 501)]
        assert found["received"] == 500
        assert found["wrong"] == []
        assert (found["callbacks"], far.acked) == (20, 10)
        assert found["end"] is None
        assert proxy.resets >= 10

    asyncio.run(go())


def test_hooks_may_be_slow_and_may_fail() -> None:
    async def go() -> None:
        far = Far()
        async with listening(far) as listener:
            found = await run_in_node("hooks", over=lambda: len(far.ends) == 4, url=listener.url)
        assert found["order"] == ["a", "b", "commit 1"]
        assert (found["broken"]["reason"], found["broken"]["text"]) == ("ABORTED", "Error: no")
        assert found["missing"] == "ABORTED"
        assert (found["closing"][0]["reason"], found["closing"][1]) == ("CLOSED", ["a"])
        reasons = [end.reason if end else None for end in far.ends]
        assert reasons == [None, "ABORTED", "ABORTED", "CLOSED"]
        assert [len(end.pending) for end in far.ends if end] == [2, 2, 2]

    asyncio.run(go())


def test_nothing_is_sent_to_a_socket_whose_buffer_is_full() -> None:
    async def go() -> None:
        far = Far()
        async with listening(far) as listener:
            found = await run_in_node("sockets", over=lambda: bool(far.ends), url=listener.url)
        assert found["protocols"] == ["avow.channel.v1", "avow.bearer.YT9iPmN-"]
        assert found["held"] == [1, False]
        assert found["sent"] == 2
        assert far.words == ["waits"]

    asyncio.run(go())


def test_without_a_connection_it_gives_up_in_time_and_returns_all_messages() -> None:
    async def go() -> None:
        far = Far()
        async with listening(far) as listener, proxied(listener) as proxy:
            proxy.refusing = True
            found = await run_in_node("impatient", over=lambda: True, url=proxy.url, patience_s=0.5)
        assert found["end"]["reason"] == found["waited"] == "EXPIRED"
        assert found["end"]["pending"] == [{"number": 1, "value": "kept", "fate": "unsent", "commit": 1}]
        assert proxy.connections >= 1  # how many fit into half a second is up to the machine

    asyncio.run(go())


# ---------------------------------------------------------------------- live, over WebChannel


@pytest.mark.parametrize("package", ["firebase", "closure"])
def test_a_channel_runs_over_webchannel_with_the_published_packages(package: str) -> None:
    async def go() -> None:
        far = Far(count=300)
        async with webchannels(far) as server, proxied(server, seed=3) as proxy:
            url = proxy.url.replace("ws:", "http:") + "v1/webchannel?role=reader&queue=a%20b"
            wanted = {"url": url, "count": 300, "every": 20, "bounds": {"pending_count": 100}, "token": "se/cr+et??"}
            found = await run_in_node(
                "exchange", script="webchannel.mjs", arguments=(package,), over=lambda: True, **wanted
            )
        assert far.words == [str(number) for number in range(1, 301)]
        assert (found["received"], found["wrong"], found["callbacks"], found["pending"]) == (300, [], 15, 0)
        assert found["end"] is None
        assert proxy.resets > 5
        assert {(asked, token) for asked, token in server.asked} == {("role=reader queue=a b", b"Bearer se/cr+et??")}

    asyncio.run(go())


@pytest.mark.parametrize("package", ["firebase", "closure"])
def test_over_webchannel_the_end_frame_leaves_before_the_session_is_closed(package: str) -> None:
    async def go() -> None:
        far = Far(count=10)
        async with webchannels(far) as server:
            host, port = server.address
            wanted = {"url": f"http://{host}:{port}/v1/webchannel", "count": 10, "every": 5}
            await run_in_node(
                "exchange", script="webchannel.mjs", arguments=(package,), over=lambda: bool(far.ends), **wanted
            )
        assert far.ends == [None]

    asyncio.run(go())
