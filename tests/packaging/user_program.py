"""A program of a user who installed only the client: every call, with its types."""

import asyncio
import sys

import avow
from avow import BlockingQueue, Done
from avow.errors import UnknownQueue


def blocking(addresses: str) -> int:
    with avow.connect_blocking(addresses) as client:
        client.create_queue("orders")
        queue: BlockingQueue = client.queue("orders")
        done: Done = queue.enqueue(b"first", key=b"customer 7")
        assert done.last_version == 1
        return sum(batch.count for batch in queue.read(level="linearizable"))


async def streaming(addresses: str) -> list[bytes]:
    seen: list[bytes] = []
    async with await avow.connect(addresses) as client:
        async with client.producer("orders") as producer:
            await producer.send(b"second")
        async with client.subscribe("orders", "billing") as batches:
            async for batch in batches:
                seen += [bytes(value) for value in batch.values()]
                await batch.commit()
                if len(seen) == 2:
                    break
    return seen


def refused(addresses: str) -> str:
    with avow.connect_blocking(addresses) as client:
        try:
            client.queue("nowhere").enqueue(b"")
        except UnknownQueue as error:
            return error.code
    return ""


if __name__ == "__main__":
    results = (blocking(sys.argv[1]), asyncio.run(streaming(sys.argv[1])), refused(sys.argv[1]))
    sys.stdout.write(f"{results}\n")
