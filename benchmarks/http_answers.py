"""What the outgoing HTTP/1.1 connection costs for one answer, without a socket: bytes in, a callback out.

A client's answers are small (the versions of a write) and come many at a time on one connection, or large (a page of
batches) and are received into memory of their exact size. A service that is called for a branch sends one small answer
at a time. Each figure is the best of several rounds, in microseconds for one answer.
Run it with `python -m benchmarks.http_answers`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, Final

from avow.limits import KIB, MIB
from avow.transport.connection import Connection

ROUNDS: Final = 15
WRITTEN: Final = b'{"lane":0,"first":1234567,"last":1234567,"count":1}'
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 01 Feb 2025 12:00:00 GMT\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\navow-coordinator: 2\r\n\r\n"
)


class NoTransport(asyncio.Transport):
    """Takes requests and drops them."""

    def write(self, data: object) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("the connection gave up")


def answers_us(stream: bytes, *, answers: int, repeats: int) -> float:
    """`stream` holds this many answers and arrives in pieces as large as the connection takes them."""
    heard = 0

    def reply(_: object) -> None:
        nonlocal heard
        heard += 1

    connection = Connection(lambda _: None)
    connection.connection_made(NoTransport())
    view, request = memoryview(stream), (b"",)
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        for _ in range(repeats):
            for _ in range(answers):
                connection.send(request, reply)
            at = 0
            while at < len(stream):
                buffer = connection.get_buffer(-1)
                taken = min(len(buffer), len(stream) - at)
                buffer[:taken] = view[at : at + taken]
                connection.buffer_updated(taken)
                at += taken
        best = min(best, (perf_counter() - began) / (answers * repeats))
    if heard != ROUNDS * repeats * answers:
        raise AssertionError(f"{heard} answers were heard")
    return best * 1e6


def main() -> dict[str, object]:
    small = HEAD % len(WRITTEN) + WRITTEN
    return {
        "one at a time": answers_us(small, answers=1, repeats=20_000),
        "100 pipelined": answers_us(small * 100, answers=100, repeats=200),
        "page of 256 KiB": answers_us(HEAD % (256 * KIB) + bytes(256 * KIB), answers=1, repeats=300),
        "page of 4 MiB": answers_us(HEAD % (4 * MIB) + bytes(4 * MIB), answers=1, repeats=20),
    }


if __name__ == "__main__":
    for name, figure in main().items():
        print(f"{name:>18}  {figure:8.2f} µs")
