"""Where an application's unacknowledged messages are kept, so that they outlive a channel, or the process.

A channel puts what it is about to send into its store before a socket gets it, and takes it out when a commit that
covers it was acknowledged. What a store holds is therefore what the application must send again after a failure:

    store = FileStore(path)
    waiting = store.load()                    # of the channel before, perhaps of a process that was killed
    channel = await open_channel(dial, store=store)
    for value in waiting: channel.send(value)

A channel counts its messages from 1, and the next channel does too. So a store has numbers of its own, *serials*. The
first append of a channel (number 1) makes everything that is still stored a message to be sent again, and a value that
is sent again gets the serial it had: it is stored once, and goes when it is acknowledged on the new channel. What is
not sent again stays. One channel at a time uses a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from avow.channel.storefile import Appended, StoreFile
from avow.errors import InvalidRequest

if TYPE_CHECKING:
    from avow.channel.frames import Buffer


class PendingStore(Protocol):
    """Calls are short and made on the event loop. A store that cannot keep a message raises, and it is not sent."""

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        """Messages `number` and on of the current channel. They are kept when this returns."""
        ...

    def release(self, upto: int) -> None:
        """Messages up to this one of the current channel are acknowledged."""
        ...

    def load(self) -> list[bytes]:
        """All that is kept, in the order in which it was first appended."""
        ...

    def close(self) -> None: ...


class Span(Struct, gc=False):
    """Serials `first` to `last`."""

    first: int
    last: int


class Serials:
    """Which serial each message of the current channel has."""

    def __init__(self, *, last: int = 0) -> None:
        self.last = last
        self._spans: deque[Span] = deque()  # of the messages after released_to, in the order of the channel
        self._released_to = self._appended_to = 0
        self._again: dict[bytes, deque[int]] = {}  # what may be sent again, and which serials it has

    def begin(self, stored: Iterable[tuple[int, bytes]]) -> None:
        """A channel begins, and this is what the ones before it have left."""
        self._spans.clear()
        self._released_to = self._appended_to = 0
        self._again = {}
        for serial, value in stored:
            self._again.setdefault(value, deque()).append(serial)

    def append(self, number: int, values: Sequence[Buffer]) -> list[Appended]:
        """What of it must be stored: the rest is stored already."""
        if number != self._appended_to + 1:
            raise InvalidRequest(f"message {number} was stored after message {self._appended_to}; it was not kept")
        self._appended_to += len(values)
        if not self._again:
            return [self._new(values)] if values else []
        fresh: list[Appended] = []
        for value in values:
            serials = self._again.get(bytes(value))
            if serials is None:
                fresh.append(self._new([value]))
                continue
            self._add(serials.popleft(), 1)
            if not serials:
                del self._again[bytes(value)]
        return fresh

    def _new(self, values: Sequence[Buffer]) -> Appended:
        first = self.last + 1
        self.last += len(values)
        self._add(first, len(values))
        return Appended(first, values)

    def _add(self, first: int, count: int) -> None:
        if self._spans and self._spans[-1].last == first - 1:
            self._spans[-1].last += count
        else:
            self._spans.append(Span(first, first + count - 1))

    def release(self, upto: int) -> list[Span]:
        """The serials that go."""
        left = min(upto, self._appended_to) - self._released_to
        gone: list[Span] = []
        while left > 0:
            span = self._spans[0]
            last = min(span.last, span.first + left - 1)
            gone.append(Span(span.first, last))
            self._released_to += last - span.first + 1
            left -= last - span.first + 1
            span.first = last + 1
            if span.first > span.last:
                self._spans.popleft()
        return gone


class MemoryStore:
    """Outlives a channel, not its process."""

    def __init__(self) -> None:
        self._serials = Serials()
        self._values: dict[int, bytes] = {}

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        if number == 1:
            self._serials.begin(sorted(self._values.items()))
        for appended in self._serials.append(number, values):
            self._values.update(enumerate(map(bytes, appended.values), appended.first))

    def release(self, upto: int) -> None:
        for span in self._serials.release(upto):
            for serial in range(span.first, span.last + 1):
                del self._values[serial]

    def load(self) -> list[bytes]:
        return [value for _, value in sorted(self._values.items())]

    def close(self) -> None:
        pass


class FileStore:
    """Outlives its process, however that ends; with `sync` also the power, for the price of a sync for each turn.

    A sync happens on the event loop, which stands still for it. What is released may come back after a power cut, or
    when the process is killed between an acknowledgement and its record: sending it again is at least once.
    """

    def __init__(self, path: Path | str, *, sync: bool = False) -> None:
        self._file = StoreFile(Path(path), sync=sync)
        self._serials = Serials(last=self._file.last_serial)

    def append(self, number: int, values: Sequence[Buffer]) -> None:
        if number == 1:
            self._serials.begin(self._file.stored())
        self._file.append(self._serials.append(number, values))

    def release(self, upto: int) -> None:
        self._file.release([(span.first, span.last) for span in self._serials.release(upto)])

    def load(self) -> list[bytes]:
        return [value for _, value in self._file.stored()]

    def close(self) -> None:
        self._file.close()
