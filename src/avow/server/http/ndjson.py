"""Messages as lines of JSON, for people, scripts and languages without a client library.

A value is bytes. UTF-8 is shown as text, anything else as base64 under another name, so a reader can tell which it got.
Headers are a map: if several have the same name the last is shown; raw batches have all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.json import Encoder

from avow.node.records import Served
from avow.server.http.schemas import Message
from avow.wire.batch import Batch, pack_entry

_encoder: Final = Encoder()


def lines_of(served: Sequence[Served], *, lane: int) -> bytes:
    """One line for each message, each with its newline."""
    messages: list[Message] = []
    for one in served:
        batch = Batch(pack_entry(one.entry))
        messages += [
            Message(**message_fields(batch, one.offset + step, lane=lane, version=one.first_version + step))
            for step in range(one.count)
        ]
    return _encoder.encode_lines(messages)


def message_fields(batch: Batch, number: int, *, lane: int, version: int) -> dict[str, Any]:
    """One message of a batch as the fields of `schemas.Message`."""
    times = batch.times()
    time_ms = batch.created_ms if times is None else times[number]
    fields: dict[str, Any] = {"lane": lane, "version": version, "time_ms": time_ms}
    _put(fields, "value", batch.value(number))
    if (key := batch.key(number)) is not None:
        _put(fields, "key", key)
    for name, value in batch.headers(number):
        shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        try:
            fields.setdefault("headers", {})[shown] = str(value, "utf-8")
        except UnicodeDecodeError:
            fields.setdefault("headers_base64", {})[shown] = bytes(value)
    return fields


def _put(fields: dict[str, Any], name: str, value: memoryview) -> None:
    try:
        fields[name] = str(value, "utf-8")
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = bytes(value)
