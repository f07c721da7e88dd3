"""Reading on the same machine as a peer: batches from its files, and all cases in which the files must not be used."""

from __future__ import annotations

import http.client
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import avow
from avow.client.blocking import BlockingClient
from avow.client.local_files import LocalFiles, NotLocal
from avow.client.reader import ReadBatch
from avow.errors import UnknownQueue
from avow.limits import LANE_SEGMENT_SIZE_BYTES
from avow.spark.source.data_source import arrow_schema, kafka_schema
from avow.spark.source.options import batch_options
from avow.spark.source.partition_reader import LanePart, read_part
from avow.spark.source.planning import LaneRange
from avow.testing.cluster import LocalCluster, wait_until
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.places import Places, decode_places
from avow.wire.ranges import CONTENT_TYPE as BATCHES

MESSAGE_BYTES = 256 * 1024
MESSAGES = 360  # of a queue: more than one file of a lane
IN_BATCH = 4


class Beside(NamedTuple):
    """A reader on the machine of a cluster of one."""

    address: str
    client: BlockingClient


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    with LocalCluster(1) as running, avow.connect_blocking(running.addresses) as client:
        yield Beside(running.addresses, client)


def filled(beside: Beside, name: str) -> None:
    """A queue whose lane has a full file and one that is being written."""
    beside.client.create_queue(name)
    for first in range(0, MESSAGES, IN_BATCH):
        beside.client.queue(name).enqueue_many([message(number) for number in range(first, first + IN_BATCH)])
    assert MESSAGES * MESSAGE_BYTES > LANE_SEGMENT_SIZE_BYTES
    wait_until(lambda: places(beside, name) is not None, what="the lane's files have them all")


@pytest.fixture(scope="module")
def orders(beside: Beside) -> str:
    filled(beside, "orders")
    return "orders"


def message(number: int) -> bytes:
    return b"%08d" % number * (MESSAGE_BYTES // 8)


def pages(beside: Beside, name: str, *, local: bool, after: int = 0) -> list[ReadBatch]:
    found = beside.client.queue(name).pages(lane=0, after=after, max_bytes=8 * 1024 * 1024, local=local)
    return [batch for page in found for batch in page]


def versions_and_values(batches: Sequence[ReadBatch]) -> list[tuple[int, bytes]]:
    """(version, value)"""
    return [(batch.first_version + row, value) for batch in batches for row, value in enumerate(batch.values())]


def memories(batches: Sequence[ReadBatch]) -> set[type]:
    """Where the bytes of the batches are: in a mapped file, in a file that was read, or in a response body."""
    return {type(batch._range.record.obj) for batch in batches}


def asked(beside: Beside, name: str, *, source: str = "127.0.0.1") -> tuple[str, bytes]:
    """The type and the body of a peer's answer to a reader at an address that prefers places."""
    address = urlsplit(beside.address)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, source_address=(source, 0), timeout=60)
    try:
        accept = {"accept": f"{PLACES}, {BATCHES};q=0.5"}
        connection.request("GET", f"/v1/queues/{name}/messages?lane=0&max=65536", headers=accept)
        answer = connection.getresponse()
        assert answer.status == 200
        return str(answer.getheader("content-type")), answer.read()
    finally:
        connection.close()


def places(beside: Beside, name: str) -> Places | None:
    """Of all messages of a filled queue; None as long as some are in no file."""
    kind, body = asked(beside, name)
    found = decode_places(body) if kind == PLACES else None
    return found if found and sum(one.count for one in found.ranges) == MESSAGES else None


def test_a_reader_on_the_same_machine_reads_batches_from_the_files(beside: Beside, orders: str) -> None:
    near, far = pages(beside, orders, local=True), pages(beside, orders, local=False)
    assert (
        versions_and_values(near)
        == versions_and_values(far)
        == [(number + 1, message(number)) for number in range(MESSAGES)]
    )
    assert memories(near) == {mmap.mmap, bytes}  # a full file, and the one that is being written
    assert memories(far) == {bytearray}


def test_a_read_from_files_may_start_inside_a_batch(beside: Beside, orders: str) -> None:
    for after in (1, IN_BATCH + 2, MESSAGES - 1):
        assert versions_and_values(pages(beside, orders, local=True, after=after))[0] == (after + 1, message(after))


def test_small_batches_are_sent_over_http(beside: Beside) -> None:
    beside.client.create_queue("small")
    for number in range(50):
        beside.client.queue("small").enqueue(b"%d" % number)
    found = pages(beside, "small", local=True)
    assert [value for _, value in versions_and_values(found)] == [b"%d" % number for number in range(50)]
    assert mmap.mmap not in memories(found)
    assert asked(beside, "small")[0] == BATCHES


def test_a_reader_from_another_address_gets_the_batches(beside: Beside, orders: str) -> None:
    assert asked(beside, orders)[0] == PLACES
    assert asked(beside, orders, source="127.0.0.2")[0] == BATCHES


def test_a_reader_who_may_not_read_the_files_gets_the_batches(
    beside: Beside, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: Any, *arguments: Any) -> int:
        if str(path).endswith(".log"):
            raise PermissionError(13, "not yours", path)
        return real(path, *arguments)

    monkeypatch.setattr("avow.client.local_files.os.open", refused)
    found = pages(beside, orders, local=True)
    assert len(versions_and_values(found)) == MESSAGES
    assert memories(found) == {bytearray}


def test_a_batch_that_was_read_survives_its_file(beside: Beside) -> None:
    filled(beside, "passing")
    reading = beside.client.queue("passing").pages(lane=0, max_bytes=8 * 1024 * 1024, max_count=8, local=True)
    first = next(reading)
    path = places(beside, "passing").files[0][0]  # type: ignore[union-attr]
    beside.client.delete_queue("passing")
    wait_until(lambda: not os.path.exists(path), what="the files are gone")
    assert versions_and_values(first) == [(number + 1, message(number)) for number in range(8)]
    with pytest.raises(UnknownQueue):
        list(reading)


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_spark_task_gets_the_same_rows_either_way(beside: Beside, orders: str, local: str) -> None:
    options = batch_options({"servers": beside.address, "subscribe": orders, "localReads": local})
    part = LanePart(LaneRange(orders, 0, 3, MESSAGES), preferred=0)
    rows = pa.Table.from_batches(read_part(options, part, arrow_schema(kafka_schema())))
    assert rows["offset"].to_pylist() == list(range(3, MESSAGES))
    assert rows["value"].to_pylist() == [message(version - 1) for version in range(3, MESSAGES)]


def changed(places: Places, **files: str) -> Places:
    """The same places in other files."""
    return Places(places.lane, [(files.get("path", path), full) for path, full in places.files], places.ranges)


def test_another_file_under_the_same_name_is_not_used(beside: Beside, orders: str, tmp_path: Path) -> None:
    found = places(beside, orders)
    assert found is not None
    first = Places(found.lane, found.files, found.ranges[:2])
    assert [one.first_version for one in LocalFiles().ranges(first)] == [1, 1 + IN_BATCH]
    with open(found.files[0][0], "rb") as file:
        head = file.read(3 * IN_BATCH * MESSAGE_BYTES)
    flipped = bytearray(head)
    flipped[first.ranges[1].at + 100_000] ^= 1
    contents = {"shorter": head[:1000], "empty": b"", "moved": b"12345678" + head, "flipped": bytes(flipped)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(NotLocal):
            LocalFiles().ranges(changed(first, path=str(tmp_path / name)))
    with pytest.raises(NotLocal):
        LocalFiles().ranges(changed(first, path=str(tmp_path / "missing")))
