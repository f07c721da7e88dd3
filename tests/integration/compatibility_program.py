"""Fills the peers at the given addresses with one of everything that a peer keeps on disk.

    python -m tests.integration.compatibility_program ADDRESSES [snapshots]

With `snapshots` there is so much of it that the metadata lane and a lane of a queue write one. The program runs with
the packages of the version whose peers it fills, so that its client encodes what is stored. It prints what it wrote, as
it was told by the peers, in one line of JSON: `values` by queue and lane, `writes` with their ids and outcomes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid5

from tests.integration.compatibility_view import ask

import avow
from avow.client.client import Client
from avow.client.outcomes import Done
from avow.wire.encode import encode_batch

NAMESPACE = UUID("0f5e2a43-7a1b-5c7e-8f0e-6b1f6c1d9e52")
YEARS_S = 9 * 365 * 24 * 3600.0
DAY_S = 24 * 3600.0
TIME_MS = 1_700_000_000_000
WRITERS, SMALL_WRITES = 8, 12
METADATA_CHANGES = 520  # a snapshot follows 512 entries of the metadata lane,
LARGE_WRITES = 20  # and 128 MiB of a queue's lane
LARGE_VALUES = [bytes(1 << 20)] * 7
CHECKBACK = "http://127.0.0.1:9/checkback"


class Program:
    def __init__(self, client: Client, addresses: str) -> None:
        self._client, self._addresses = client, addresses
        self.values: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.writes: list[dict[str, Any]] = []

    async def run(self, *, snapshots: bool) -> dict[str, Any]:
        await self._create()
        await self._orders()
        await self._payments()
        await self._compressed()
        await self._small()
        await self._streamed()
        await self._events()
        await self._transactions("staged")
        await self._cursors()
        await self._trimmed()
        await self._pledges()
        if snapshots:
            await self._snapshots()
        return {"values": self.values, "writes": self.writes}

    async def _create(self) -> None:
        client = self._client
        for name, lanes in {"orders": 1, "payments": 2, "packed": 1, "small": 1, "streamed": 2, "staged": 2}.items():
            await client.create_queue(name, lanes=lanes)
        for name in ("trimmed", "pledged", "deleted"):
            await client.create_queue(name)
        for name in ("events", "trimmed-events"):
            await client.create_queue(name, strategy="pub-sub")
        await client.create_queue("ruled", retention={"age_s": 1_000})
        await client.change_queue("ruled", retention={"age_s": int(YEARS_S), "size_bytes": 1_000_000_000})
        await client.queue("deleted").enqueue(b"never seen again")
        await client.delete_queue("deleted")

    # ------------------------------------------------------------------ messages

    async def _orders(self) -> None:
        """Every column a message has, alone and together, and an expected cursor."""
        orders = self._client.queue("orders")
        await self._enqueue("orders", [b"plain"])
        await self._enqueue("orders", [b"keyed"], keys=[b"customer 7"])
        await self._enqueue("orders", [b"with headers"], headers=[{"source": b"shop", "bytes": b"\xff\x00"}])
        await self._enqueue(
            "orders",
            [b"all", b"\xff\xfe is no text", b""],
            keys=[b"customer 8", None, b"\xff"],
            headers=[{"one": b"1", "two": b"2"}, None, {}],
            times=[TIME_MS, TIME_MS + 1, TIME_MS + 2],
        )
        end = len(self.values["orders"][0])
        self._acknowledged("orders", [b"expected"], [await orders.enqueue(b"expected", expected=end, lane=0)])

    async def _payments(self) -> None:
        for lane in (0, 1):
            for number in range(3):
                await self._enqueue("payments", [b"lane %d, %d" % (lane, number)] * 2, lane=lane)

    async def _compressed(self) -> None:
        api = self._addresses.split(",")[0]
        for codec in ("zstd", "lz4"):
            values = [b"%s message %d" % (codec.encode(), number) for number in range(20)]
            write_id = _write_id("packed", codec)
            record = encode_batch(values, write_id=write_id, created_ms=TIME_MS, compression=codec)
            kind = "application/vnd.avow.batch"
            status, body = ask(api, "POST", "/v1/queues/packed/messages", bytes(record), kind=kind)
            assert status == 200, body
            (span,) = json.loads(body)["written"]
            done = Done("packed", span["lane"], span["first_version"], span["last_version"], write_id)
            self._acknowledged("packed", values, [done])

    async def _small(self) -> None:
        """Single messages of several clients at the same time, which the coordinator merges into few records."""

        async def one(writer: int) -> None:
            async with await avow.connect(self._addresses) as client:
                for number in range(SMALL_WRITES):
                    write_id = _write_id("small", f"{writer} {number}")
                    value = b"writer %d, %d" % (writer, number)
                    done.append((value, await client.queue("small").enqueue(value, write_id=write_id)))

        done: list[tuple[bytes, Done]] = []
        await asyncio.gather(*[one(writer) for writer in range(WRITERS)])
        for value, acknowledged in sorted(done, key=lambda pair: pair[1].first_version):
            self._acknowledged("small", [value], [acknowledged], remember=acknowledged.first_version % 8 == 0)

    async def _streamed(self) -> None:
        """Through a channel; read through another one, up to a commit in the middle."""
        values = [b"streamed %d" % number for number in range(20)]
        async with self._client.producer("streamed") as producer:
            for number, value in enumerate(values):
                await producer.send(value, lane=number % 2)
            await producer.commit()
        for number, value in enumerate(values):
            self.values["streamed"][number % 2].append(value.decode())
        async with self._client.subscribe("streamed", "channel reader") as batches:
            async for batch in batches:
                await batch.commit()
                break

    async def _events(self) -> None:
        for number in range(4):
            keys = [b"a", None] if number % 2 else None
            await self._enqueue("events", [b"event %d" % number, b"\xff %d" % number], keys=keys)

    async def _transactions(self, queue: str) -> None:
        staged = self._client.queue(queue)
        published = staged.transaction("published", deadline_s=DAY_S)
        for lane in (0, 1):
            await published.enqueue_many([b"published 0", b"published 1"], lane=lane)
        discarded = staged.transaction("discarded", deadline_s=DAY_S)
        await discarded.enqueue_many([b"discarded"], lane=0)
        await self._enqueue(queue, [b"between"], lane=0)
        still_open = staged.transaction("open", deadline_s=DAY_S)
        await still_open.enqueue_many([b"open"], lane=0)
        for done in await published.publish():
            self._acknowledged(queue, [b"published 0", b"published 1"], [done], remember=False)
        await discarded.discard()
        await self._enqueue(queue, [b"after"], lane=0)

    # ------------------------------------------------------------------ what is known of them

    async def _cursors(self) -> None:
        await self._client.queue("orders").move_cursor("billing", {0: 2})
        await self._client.queue("orders").move_cursor("auditor", {0: 5}, hold=True)
        await self._client.queue("orders").reset_cursor("auditor", {0: 1})
        await self._client.queue("payments").move_cursor("billing", {0: 3, 1: 6})
        (lane,) = self.values["events"]
        await self._client.queue("events").move_cursor("reader", {lane: 3}, hold=True)

    async def _trimmed(self) -> None:
        for name in ("trimmed", "trimmed-events"):
            for number in range(6):
                await self._enqueue(name, [b"%d.%d" % (number, index) for index in range(5)])
            (lane,) = self.values[name]
            await self._client.queue(name).trim(lane, 12)

    async def _pledges(self) -> None:
        client = self._client
        done = client.pledge("delivered", wait_result=True).publish("pledged", "delivered", key="k")
        await done.submit()
        self.values["pledged"][0].append("delivered")
        prepared = client.pledge("prepared", timeout_to_fail_s=YEARS_S).publish("pledged", "prepared")
        await prepared.prepare(CHECKBACK)
        await client.pledge("submitted", delay_s=YEARS_S).publish("pledged", {"submitted": True}).submit()

    async def _snapshots(self) -> None:
        """Of a lane with cursors and decided and open transactions; then its messages are trimmed, all but the last."""
        for change in range(METADATA_CHANGES):
            await self._client.change_queue("ruled", retention={"age_s": int(YEARS_S), "size_bytes": 1 << 40 | change})
        name = "trimmed-long"
        await self._client.create_queue(name, lanes=2)
        await self._transactions(name)
        await self._client.queue(name).move_cursor("reader", {0: 4})
        for _ in range(LARGE_WRITES):
            await self._enqueue(name, LARGE_VALUES, lane=0)
        await self._enqueue(name, [b"behind the snapshot"], lane=0)
        await self._client.queue(name).trim(0, len(self.values[name][0]) - 1)
        await self._client.queue(name).trim(1, 1)

    # ------------------------------------------------------------------ what was written

    async def _enqueue(self, queue: str, values: list[bytes], **options: Any) -> None:
        write_id = _write_id(queue, str(len(self.writes)))
        done = await self._client.queue(queue).enqueue_many(values, write_id=write_id, **options)
        self._acknowledged(queue, values, done)

    def _acknowledged(
        self, queue: str, values: list[bytes], acknowledged: list[Done], *, remember: bool = True
    ) -> None:
        (done,) = acknowledged
        known = self.values[queue][done.lane]
        assert (done.first_version, done.last_version) == (len(known) + 1, len(known) + len(values)), (queue, done)
        known += [
            quote(value[:100], safe=" ,") for value in values
        ]  # longer ones are trimmed, and compared with nothing
        if remember:
            write_id = done.write_id.hex()
            versions = [done.first_version, done.last_version]
            self.writes.append({"queue": queue, "lane": done.lane, "write_id": write_id, "versions": versions})


def _write_id(queue: str, name: str) -> bytes:
    return uuid5(NAMESPACE, f"{queue} {name}").bytes


async def main(addresses: str, *, snapshots: bool) -> None:
    async with await avow.connect(addresses, timeout_s=60.0) as client:
        sys.stdout.write(json.dumps(await Program(client, addresses).run(snapshots=snapshots)) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], snapshots="snapshots" in sys.argv[2:]))
