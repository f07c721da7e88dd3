"""A producing program, run in a separate process by tests that kill it.

    python client_programs.py ADDRESSES QUEUE STORE FIRST LAST

It sends the numbers from FIRST up to LAST, one to a turn of the loop, and says on standard output what it has sent so
far (`sent 12`), what it knows to be in the queue (`committed 12`), and before all that when the store is resolved.
"""

from __future__ import annotations

import asyncio
import sys

import avow


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def produce(addresses: str, queue: str, store: str, first: int, last: int) -> None:
    async with await avow.connect(addresses) as client, client.producer(queue, store=store) as producer:
        say("resolved")
        for number in range(first, last):
            await producer.send(b"%d" % number)
            await asyncio.sleep(0.0005)  # a turn: it is in the store now
            say(f"sent {number}")
            if number % 50 == 49:
                await producer.commit()
                say(f"committed {number}")


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
