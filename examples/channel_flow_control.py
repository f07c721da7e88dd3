"""A fast sender, a slow receiver, and nothing in between that grows.

    python examples/channel_flow_control.py [--messages 1000] [--limit 100]

The receiver acknowledges a commit only 50 ms after it came. The sender is suspended each time its limit of unanswered
messages is reached, and goes on as soon as the answer is there. Halfway through, its socket is cut: nothing is lost.
"""

from __future__ import annotations

import argparse
import asyncio
from time import monotonic

from avow.channel.connector import connect_channel
from avow.channel.endpoint import Channel
from avow.channel.listener import listen
from avow.channel.protocol.events import Bounds


class SlowReceiver:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seen: list[bytes] = []
        self._loop = loop

    def begin(self, channel: Channel) -> None:
        """A channel was opened: say what to do with what comes."""
        channel.on_messages = lambda values: self.seen.extend(bytes(value) for value in values)
        channel.on_commit = lambda commit_id: self._acknowledge_later(channel, commit_id)

    def _acknowledge_later(self, channel: Channel, commit_id: int) -> None:
        """Pretends that storing takes a while. Delaying the answer is all there is to push-back."""
        self._loop.call_later(0.05, channel.ack_commit, commit_id)


async def send_all(url: str, *, count: int, limit: int) -> tuple[int, int]:
    """How often the sender was suspended, and the most messages it ever had unanswered."""
    suspended_count = most = 0
    async with await connect_channel(url, bounds=Bounds(pending_count=limit)) as channel:
        for number in range(count):
            if channel.suspended:
                suspended_count += 1
                await channel.writable()
            channel.send(b"message %d" % number)
            most = max(most, channel.non_acked_message_count)
            if number == count // 2:
                channel.cut()  # the network fails; the channel does not
        await channel.commit()
    return suspended_count, most


async def main(count: int, limit: int) -> None:
    receiver = SlowReceiver(asyncio.get_running_loop())
    listener = await listen(receiver.begin)
    began = monotonic()
    suspended_count, most = await send_all(listener.url, count=count, limit=limit)
    await listener.close()
    in_order = receiver.seen == [b"message %d" % number for number in range(count)]
    print(f"{count} messages in {monotonic() - began:.1f} s, each once and in order: {in_order}")
    print(f"the sender was suspended {suspended_count} times and never had more than {most} unanswered")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--messages", type=int, default=1000)
    arguments.add_argument("--limit", type=int, default=100)
    given = arguments.parse_args()
    asyncio.run(main(given.messages, given.limit))
