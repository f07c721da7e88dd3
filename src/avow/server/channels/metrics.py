"""Counters of a peer's channels: the roles increment them, `avow.server.metrics` reads them."""

from __future__ import annotations


class ChannelCounters:
    __slots__ = ("opened", "pushed", "received")

    def __init__(self) -> None:
        self.opened = 0  # channels opened; resumed ones are not counted again
        self.received = 0  # channel messages from clients
        self.pushed = 0  # channel messages to clients
