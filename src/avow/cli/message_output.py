"""Messages on standard output: as text, as the JSON lines of the API, or only their values."""

from __future__ import annotations

import base64
import enum
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Protocol

import msgspec
import typer

if TYPE_CHECKING:
    from avow.client.reader import Message


ValuesOption = Annotated[bool, typer.Option("--values-only", help="Print only the values, one per line.")]


class Batch(Protocol):
    """The batches of the async and the blocking reader."""

    @property
    def count(self) -> int: ...
    @property
    def first_version(self) -> int: ...
    def values(self) -> list[bytes]: ...
    def messages(self) -> list[Message]: ...


class Form(enum.Enum):
    text = "text"
    json = "json"
    values = "values"


def form_of(*, as_json: bool, values_only: bool) -> Form:
    if values_only:
        return Form.values
    return Form.json if as_json else Form.text


class Printer:
    """Prints at most `limit` messages; `remaining` is how many more it will print."""

    __slots__ = ("_form", "_out", "printed", "remaining")

    def __init__(self, form: Form, *, limit: int | None = None, out: BinaryIO | None = None) -> None:
        self._form, self._out = form, out or sys.stdout.buffer
        self.printed = 0
        self.remaining = limit if limit is not None else sys.maxsize

    def print(self, batch: Batch) -> int:
        """Returns the last version that was printed, 0 if none was."""
        count = min(batch.count, self.remaining)
        if count <= 0:
            return 0
        lines: Iterable[bytes]
        if self._form is Form.values:
            lines = batch.values()[:count]
        else:
            line = _as_json if self._form is Form.json else _as_text
            lines = [line(message) for message in batch.messages()[:count]]
        self._out.write(b"\n".join(lines) + b"\n")
        self._out.flush()
        self.remaining -= count
        self.printed += count
        return batch.first_version + count - 1


def _as_text(message: Message) -> bytes:
    """lane:version, the key if there is one, and the raw value."""
    key = b"" if message.key is None else b"  " + message.key
    return b"%d:%d%s  %s" % (message.lane, message.version, key, message.value)


def _as_json(message: Message) -> bytes:
    found: dict[str, Any] = {"lane": message.lane, "version": message.version, **_bytes("value", message.value)}
    if message.key is not None:
        found |= _bytes("key", message.key)
    for name, value in message.headers:
        for kind, text in _bytes("headers", value).items():
            found.setdefault(kind, {})[name] = text
    return msgspec.json.encode({**found, "time_ms": message.time_ms})


def _bytes(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
