"""What a channel costs, and whether it holds: beside the WebSocket library it runs on, under resets, without acks.

    throughput   messages of 100 B from one process to another, rounds of three ways taken in turn:
                   library   `websockets` as its documentation has it: `await send` for each, `async for` at the end
                   channel   a commit every 256 messages, acknowledged by the other end
                   packed    the library again, the same bytes in messages of 64 KiB: what a channel's packets are
                 The claim is a ratio within the run: channel to library at least 0.7
    resets       both ends send at once through a proxy that resets connections after a random number of bytes
    withheld     a fast sender, and a receiver that takes and acknowledges nothing for a while: memory of both

`python -m benchmarks channel throughput --rounds 7`, `... resets --messages 100000 --resets 500`,
`... withheld --seconds 60`. Exit code 1 when a claim did not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop
from msgspec import Struct
from websockets.asyncio.client import connect

from avow.channel.connector import connect_channel
from avow.limits import MIB
from benchmarks.channel_far import Far
from benchmarks.channel_faults import GROWTH_BYTES_MAX, WITHHELD_BYTES, run_resets, run_withheld

MESSAGE_BYTES: Final = 100
COMMIT_EVERY: Final = 256
PACKED_BYTES: Final = 64 * 1024
ROUNDS: Final = 7
MESSAGES: Final = 100_000
RATIO_MIN: Final = 0.7


# ---------------------------------------------------------------------- throughput


class Sample(Struct, frozen=True):
    per_s: float
    near_us: float  # processor time of a message, on the sending end
    far_us: float


async def by_library(url: str, messages: int) -> None:
    message = bytes(MESSAGE_BYTES)
    async with connect(url, compression=None) as socket:
        for _ in range(messages):
            await socket.send(message)
        await _check(socket, messages=messages, size=messages * MESSAGE_BYTES)


async def by_packed(url: str, messages: int) -> None:
    size = messages * MESSAGE_BYTES
    async with connect(url, compression=None) as socket:
        sent = 0
        for at in range(0, size, PACKED_BYTES):
            await socket.send(bytes(min(PACKED_BYTES, size - at)))
            sent += 1
        await _check(socket, messages=sent, size=size)


async def _check(socket: Any, *, messages: int, size: int) -> None:
    await socket.send("how many?")
    counted = json.loads(await socket.recv())
    if counted != {"messages": messages, "bytes": size}:
        raise RuntimeError(f"{messages} messages of {size} bytes were sent, and {counted} were counted")


async def by_channel(url: str, messages: int) -> None:
    message = bytes(MESSAGE_BYTES)
    async with await connect_channel(url) as channel:
        for number in range(1, messages + 1):
            if channel.suspended:
                await channel.writable()
            channel.send(message)
            if number % COMMIT_EVERY == 0:
                channel.commit()
        await channel.commit()


WAYS: Final[dict[str, Callable[[str, int], Coroutine[Any, Any, None]]]] = {
    "library": by_library,
    "channel": by_channel,
    "packed": by_packed,
}


def measure(way: str, far: Far, messages: int) -> Sample:
    url = far.ready["channel" if way == "channel" else "library"]
    before, near_before = far.ask(), time.process_time()
    began = time.perf_counter()
    uvloop.run(WAYS[way](url, messages))
    spent, near = time.perf_counter() - began, time.process_time() - near_before
    after = far.ask()
    if way == "channel" and after["messages"] - before["messages"] != messages:
        raise RuntimeError(f"{messages} messages were sent, and {after['messages'] - before['messages']} counted")
    return Sample(messages / spent, near / messages * 1e6, (after["cpu_s"] - before["cpu_s"]) / messages * 1e6)


def throughput(*, rounds: int = ROUNDS, messages: int = MESSAGES) -> dict[str, object]:
    samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
    with Far("serve") as far:
        for way in WAYS:
            measure(way, far, messages // 10)
        for _ in range(rounds):
            for way, found in samples.items():
                found.append(measure(way, far, messages))
    for way, found in samples.items():
        print(
            f"{way:<10}{_spread([one.per_s for one in found], ',.0f')} messages/s   processor time per message: "
            f"sender {_spread([one.near_us for one in found], '.2f')} µs, "
            f"receiver {_spread([one.far_us for one in found], '.2f')} µs"
        )
    ratios = {
        way: [ours.per_s / theirs.per_s for ours, theirs in zip(samples["channel"], samples[way], strict=True)]
        for way in ("library", "packed")
    }
    held = statistics.median(ratios["library"]) >= RATIO_MIN
    print(
        f"channel to library {_spread(ratios['library'], '.2f')}, wanted at least {RATIO_MIN}; "
        f"to packed {_spread(ratios['packed'], '.2f')}"
    )
    return {
        "messages": messages,
        "rounds": {way: [one.per_s for one in found] for way, found in samples.items()},
        "channel_to_library": statistics.median(ratios["library"]),
        "channel_to_packed": statistics.median(ratios["packed"]),
        "held": held,
    }


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


# ---------------------------------------------------------------------- the command


def speed_held(*, rounds: int, messages: int) -> bool:
    return bool(throughput(rounds=rounds, messages=messages)["held"])


def resets(*, messages: int, resets: int, seed: int) -> bool:
    found = uvloop.run(run_resets(messages=messages, resets=resets, seed=seed))
    print(
        f"{found.messages:,} messages each way in {found.seconds:.1f} s through {found.resets:,} resets and "
        f"{found.sockets:,} sockets: each once and in order; {found.commits:,} commits completed, in order; "
        f"suspended {found.suspensions:,} times"
    )
    return True


def withheld(*, seconds: float) -> bool:
    found = run_withheld(seconds=seconds)
    print(
        f"acks withheld for {found.seconds:g} s: {found.sent:,} messages of {WITHHELD_BYTES:,} B sent, then suspended "
        f"with {found.pending_bytes / MIB:.1f} MiB pending\n"
        f"memory grew by {found.sender_growth_bytes / MIB:.1f} MiB (sender) and "
        f"{found.receiver_growth_bytes / MIB:.1f} MiB (receiver); limit {GROWTH_BYTES_MAX / MIB:.1f} MiB\n"
        f"went on {found.resumed_s * 1000:.1f} ms after the first ack; {found.sent_after:,} messages in the next "
        f"second, memory then {found.growth_after_bytes / MIB:.1f} MiB above the start"
    )
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks channel", description="what a channel costs and holds")
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("throughput")
    speed.add_argument("--rounds", type=int, default=ROUNDS)
    speed.add_argument("--messages", type=int, default=MESSAGES)
    broken = commands.add_parser("resets")
    broken.add_argument("--messages", type=int, default=100_000)
    broken.add_argument("--resets", type=int, default=500)
    broken.add_argument("--seed", type=int, default=1)
    commands.add_parser("withheld").add_argument("--seconds", type=float, default=60.0)
    given = vars(parser.parse_args(arguments))
    command = given.pop("command")
    commands_by_name: dict[str, Callable[..., bool]] = {
        "throughput": speed_held,
        "resets": resets,
        "withheld": withheld,
    }
    return 0 if commands_by_name[command](**given) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
