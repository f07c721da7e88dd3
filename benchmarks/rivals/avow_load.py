"""The load generator for Avow's own Python client, in a process of its own. Prints one line of JSON, as the C ones do.

    write   `window` requests under way. Batches of one are `queue.send(value)`: a future for each message, the next one
            sent from its callback, so what an application that awaits single messages would see. Larger ones are
            `await queue.enqueue_many(values)` in as many tasks as requests are under way
    fill    `messages` messages in batches of `batch`, as fast as it goes
    read    everything in the queue, from the first version on, into Arrow record batches. Processor time is this
            process's own: the figure is messages for each second of one core

Run as `python -m benchmarks.rivals.avow_load '{"do": "write", ...}'`. Of Avow it uses the public names of the client
only, because `benchmarks ab` runs it with other builds of Avow too.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop

import avow
from benchmarks.rivals.work import MESSAGE_BYTES, Sample

if TYPE_CHECKING:
    from avow.client.outcomes import Done
    from avow.client.queue import Queue

TIMED_EVERY: Final = 16  # of single messages: the clock shall not be what is measured
FILL_TASKS: Final = 4
_CPUCLOCK_SCHED: Final = 2  # include/linux/posix-timers.h: how the clock of another process is named


class Order(msgspec.Struct, frozen=True, kw_only=True):
    do: str
    addresses: str
    queue: str
    window: int = 1
    batch: int = 1
    seconds: float = 1.0
    warmup_s: float = 0.2
    messages: int = 0
    pids: list[int] = []


def cpu_s(pids: list[int]) -> float:
    """User and system time of these processes so far, all threads. Linux has a clock of nanoseconds for each process;
    /proc/PID/stat counts in hundredths of a second, which is 1 % of a short turn."""
    return sum(time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) for pid in pids)


class Counter:
    """Counts what is acknowledged while the clock runs."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.messages = self.requests = 0
        self.latencies_us: list[float] = []
        self.measuring, self.stopping = False, False

    def count(self, messages: int) -> None:
        if self.measuring:
            self.messages += messages
            self.requests += 1

    def timed(self, began: float) -> None:
        if self.measuring:
            self.latencies_us.append((time.perf_counter() - began) * 1e6)

    async def watch(self) -> Sample:
        """Warm up, measure, stop. What is under way then is for the caller to wait for."""
        await asyncio.sleep(self.order.warmup_s)
        servers, own, start = cpu_s(self.order.pids), time.process_time(), time.perf_counter()
        self.measuring = True
        await asyncio.sleep(self.order.seconds)
        self.measuring, self.stopping = False, True
        spent = time.perf_counter() - start
        return Sample(
            messages=self.messages,
            requests=self.requests,
            seconds=spent,
            p50_us=statistics.median(self.latencies_us),
            server_cpu_s=cpu_s(self.order.pids) - servers,
            client_cpu_s=time.process_time() - own,
        )


class Singles:
    """A message is replaced by the next one when its future is done."""

    def __init__(self, queue: Queue, counter: Counter) -> None:
        self._queue, self._counter = queue, counter
        self._value = b"m" * MESSAGE_BYTES
        self._sent = self._under_way = 0
        self._over = asyncio.get_running_loop().create_future()

    async def run(self) -> Sample:
        for _ in range(self._counter.order.window):
            self._send()
        sample = await self._counter.watch()
        await self._over
        return sample

    def _send(self) -> None:
        self._under_way += 1
        self._sent += 1
        future = self._queue.send(self._value)
        if self._sent % TIMED_EVERY and self._counter.order.window > 1:
            future.add_done_callback(self._done)
        else:
            began = time.perf_counter()
            future.add_done_callback(lambda future: self._timed(future, began))

    def _timed(self, future: asyncio.Future[Done], began: float) -> None:
        self._counter.timed(began)
        self._done(future)

    def _done(self, future: asyncio.Future[Done]) -> None:
        self._under_way -= 1
        if (error := future.exception()) is not None:
            self._counter.stopping = True
            if not self._over.done():
                self._over.set_exception(error)
            return
        self._counter.count(1)
        if not self._counter.stopping:
            self._send()
        elif not self._under_way and not self._over.done():
            self._over.set_result(None)


async def write_batches(queue: Queue, counter: Counter) -> Sample:
    values = [b"m" * MESSAGE_BYTES] * counter.order.batch

    async def writer() -> None:
        while not counter.stopping:
            began = time.perf_counter()
            await queue.enqueue_many(values)
            counter.timed(began)
            counter.count(len(values))

    async with asyncio.TaskGroup() as group:
        for _ in range(counter.order.window):
            group.create_task(writer())
        watch = group.create_task(counter.watch())
    return watch.result()


async def fill(queue: Queue, order: Order) -> Sample:
    values = [b"m" * MESSAGE_BYTES] * order.batch
    batches = iter(range(-(-order.messages // order.batch)))
    servers, own, start = cpu_s(order.pids), time.process_time(), time.perf_counter()

    async def writer() -> int:
        written = 0
        for _ in batches:
            await queue.enqueue_many(values)
            written += 1
        return written

    written = sum(await asyncio.gather(*(writer() for _ in range(FILL_TASKS))))
    return Sample(
        messages=written * order.batch,
        requests=written,
        seconds=time.perf_counter() - start,
        p50_us=0.0,
        server_cpu_s=cpu_s(order.pids) - servers,
        client_cpu_s=time.process_time() - own,
    )


async def read(queue: Queue, order: Order) -> Sample:
    async for batch in queue.read(after=0, lane=0, until=1):
        batch.to_arrow()  # imports Arrow, once in the life of a reader
    messages = batches = 0
    servers, own, start = cpu_s(order.pids), time.process_time(), time.perf_counter()
    async for batch in queue.read(after=0, lane=0, until=order.messages):
        messages += batch.to_arrow().num_rows
        batches += 1
    return Sample(
        messages=messages,
        requests=batches,
        seconds=time.perf_counter() - start,
        p50_us=0.0,
        server_cpu_s=cpu_s(order.pids) - servers,
        client_cpu_s=time.process_time() - own,
    )


async def carry_out(order: Order) -> Sample:
    async with await avow.connect(order.addresses) as client:
        queue = client.queue(order.queue)
        await queue.enqueue(b"m" * MESSAGE_BYTES) if order.do == "write" else None
        if order.do == "read":
            return await read(queue, order)
        if order.do == "fill":
            return await fill(queue, order)
        counter = Counter(order)
        return await (Singles(queue, counter).run() if order.batch == 1 else write_batches(queue, counter))


def main(text: str) -> None:
    sample = uvloop.run(carry_out(msgspec.json.decode(text, type=Order)))
    print(msgspec.json.encode(sample).decode())


if __name__ == "__main__":
    main(sys.argv[1])
