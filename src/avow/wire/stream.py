"""The frame decoder: cuts a TCP stream into whole frames without copying them.

The interface is that of asyncio's BufferedProtocol: `get_buffer` returns where the next bytes go, `buffer_updated`
takes their number and returns the frames that are complete now. Nothing here does IO; `receive` takes bytes instead.

Frames are views of the chunk into which they were received, and what is decoded from them (batches waiting for a sync,
entries kept for followers) may keep such views for long. So a chunk is never written twice: when it is full, a new one
is allocated and only the beginning of an incomplete frame is copied. A chunk is freed with its last view. Frames start
on multiples of 8 bytes in their chunk, because chunks start with a frame and frame lengths are multiples of 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from avow.errors import CountOverflow, Malformed
from avow.limits import FRAME_SIZE_BYTES_MAX, KIB
from avow.wire.frames import next_length

if TYPE_CHECKING:
    from avow.wire.record import Buffer

CHUNK_SIZE_BYTES: Final = 256 * KIB
_START_SIZE_BYTES: Final = 12  # enough of a frame to read its length
_FREE_SIZE_BYTES_MIN: Final = 4 * KIB  # below this, a new chunk costs less than reading in small pieces


class Decoder:
    """Takes bytes in arbitrary pieces and returns whole frames in order. After an error it only raises it again."""

    def __init__(self, *, chunk_size_bytes: int = CHUNK_SIZE_BYTES, length_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        """`length_max` may be changed later: it is low until the other side is known."""
        self.length_max = length_max
        self._chunk_size_bytes = max(chunk_size_bytes, _START_SIZE_BYTES)
        self._frames = self._bytes = self._chunks = 0
        self._error: Malformed | None = None
        self._length = 0  # of the next frame; 0: not known yet
        self._take_chunk(self._chunk_size_bytes, b"")

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """The buffer for the next bytes; never empty. The hint is not needed, because a frame states its length."""
        del sizehint
        self._raise_error()
        if self._lacks_room(len(self._writable) - self._end):
            self._take_chunk(max(self._chunk_size_bytes, self._length), self._readable[self._start : self._end])
        return self._writable[self._end :]

    def _lacks_room(self, free: int) -> bool:
        if self._length:
            return self._start + self._length > len(self._writable)
        return free < min(_FREE_SIZE_BYTES_MIN, self._chunk_size_bytes)

    def _take_chunk(self, size: int, beginning: Buffer) -> None:
        self._writable = memoryview(bytearray(size))
        self._readable = self._writable.toreadonly()
        self._writable[: len(beginning)] = beginning
        self._start, self._end = 0, len(beginning)  # of the bytes received and not returned yet
        self._chunks += 1

    def buffer_updated(self, count: int) -> list[memoryview]:
        """`count` bytes were written to the last buffer. Returns the frames that are complete now.

        Raises Malformed at the first invalid byte. Whole frames before it are returned first; then the next call
        raises.
        """
        self._raise_error()
        frames = self._advance(count)
        if not frames:
            self._raise_error()
        return frames

    def receive(self, data: Buffer) -> list[memoryview]:
        """The same for bytes in memory, which are copied."""
        self._raise_error()
        frames: list[memoryview] = []
        view = memoryview(data)
        while view and self._error is None:
            room = self.get_buffer()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            frames += self._advance(size)
            view = view[size:]
        if not frames:
            self._raise_error()
        return frames

    def _advance(self, count: int) -> list[memoryview]:
        self._end += count
        self._bytes += count
        frames: list[memoryview] = []
        try:
            while self._start + self._find_length() <= self._end and self._length:
                frames.append(self._readable[self._start : self._start + self._length])
                self._start += self._length
        except Malformed as malformed:
            self._error = malformed
        self._frames += len(frames)
        return frames

    def _find_length(self) -> int:
        """The length of the next frame; 0 until its first 12 bytes have arrived."""
        known = self._end - self._start >= _START_SIZE_BYTES
        self._length = next_length(self._readable, self._start) if known else 0
        if self._length > self.length_max:
            raise CountOverflow("frame length", expected=f"<= {self.length_max}", found=self._length, at=8)
        return self._length

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def statistics(self) -> dict[str, int]:
        return {
            "frames": self._frames,
            "bytes": self._bytes,
            "chunks": self._chunks,
            "unfinished_bytes": self._end - self._start,
        }
