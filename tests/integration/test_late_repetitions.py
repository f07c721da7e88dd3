"""A write is repeated after its lane has forgotten the write id: nobody can have it stored a second time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.http_peer import PeerProcess, serving, wait_until
from tests.integration.peer_channels import open_to, record, run

import avow
from avow.errors import Unknown
from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.wire.batch import encode_batch

RAW = {"content-type": "application/vnd.avow.batch"}
ONCE = {"messages": [{"value": "once"}]}
ID = uuid4()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


REPEATED: list[tuple[str, str, Any, dict[str, str] | None]] = [
    ("json", f"messages?write_id={ID.hex}", ONCE, None),
    ("json with its time", f"messages?write_id={uuid4().hex}&created_ms={now_ms()}", ONCE, None),
    ("a batch", "messages", bytes(encode_batch([b"once"], write_id=uuid4().bytes, created_ms=now_ms())), RAW),
    ("a batch without a time", "messages", bytes(encode_batch([b"once"], write_id=uuid4().bytes)), RAW),
    ("json, staged", f"transactions/t/messages?write_id={uuid4().hex}&deadline_s=3600", ONCE, None),
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    """Its queue has each of REPEATED, and then more writes than a lane remembers."""
    with serving(tmp_path_factory.mktemp("peer")) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert peer.ask("POST", "/v1/queues", {"name": "q"}).status == 201
        for _, path, body, headers in REPEATED:
            assert peer.ask("POST", f"/v1/queues/q/{path}", body, headers=headers).status == 200
        run(_fill(peer.url))
        yield peer


async def _fill(url: str) -> None:
    channel = await open_to(url, role="producer", queue="q")
    for number in range(WRITE_ID_WINDOW_COUNT + 500):
        if channel.suspended:
            await channel.writable()
        channel.send(record(b"%d" % number))
    await channel.commit()


def end(peer: PeerProcess) -> int:
    found: int = peer.ask("GET", "/v1/queues/q").json["lanes"][0]["end"]
    return found


@pytest.mark.parametrize(("path", "body", "headers"), [case[1:] for case in REPEATED], ids=[c[0] for c in REPEATED])
def test_a_repeated_request_is_unknown_and_stores_nothing(
    peer: PeerProcess, path: str, body: Any, headers: dict[str, str] | None
) -> None:
    before = end(peer)
    answer = peer.ask("POST", f"/v1/queues/q/{path}", body, headers=headers)
    assert (answer.status, answer.code) == (504, "UNKNOWN")
    assert answer.json["error"]["definite"] is False
    assert "created_ms" in answer.json["error"]["message"]
    assert end(peer) == before


def test_a_staged_batch_that_was_repeated_late_is_published_once(peer: PeerProcess) -> None:
    peer.ask("POST", f"/v1/queues/q/{REPEATED[4][1]}", ONCE)
    (published,) = peer.ask("POST", "/v1/queues/q/transactions/t/publish").json["published"]
    assert published["last_version"] == published["first_version"]


def test_a_new_request_that_says_when_it_was_made_is_stored(peer: PeerProcess) -> None:
    aged = {"avow-age-ms": "0"}
    for path, headers in ((f"created_ms={now_ms()}", None), ("", aged)):
        target = f"/v1/queues/q/messages?write_id={uuid4().hex}&{path}"
        assert peer.ask("POST", target, ONCE, headers=headers).status == 200
    assert peer.ask("POST", "/v1/queues/q/messages", ONCE).status == 200  # the peer chooses the id


def test_a_program_that_repeats_its_own_write_id_is_told_that_the_outcome_is_unknown(peer: PeerProcess) -> None:
    with avow.connect_blocking(peer.url, timeout_s=2.0) as client:
        queue = client.queue("q")
        before = queue.enqueue(b"new").last_version
        for told in (None, now_ms() - 3_600_000):
            with pytest.raises(Unknown):
                queue.enqueue(b"once", write_id=ID.bytes, created_ms=told)
        done = queue.enqueue(b"newer", write_id=uuid4().bytes, created_ms=now_ms())
        assert done.first_version == before + 1
        assert queue.enqueue(b"newer", write_id=done.write_id) == done
