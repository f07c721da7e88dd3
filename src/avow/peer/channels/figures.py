"""What the channels of a peer count, in one place: roles add to it, metrics read it."""

from __future__ import annotations


class Figures:
    __slots__ = ("opened", "pushed", "received")

    def __init__(self) -> None:
        self.opened = 0  # channels that began, resumed ones not counted again
        self.received = 0  # messages of channels, from clients
        self.pushed = 0  # to clients
