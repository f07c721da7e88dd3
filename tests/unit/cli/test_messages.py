"""Messages on standard output, as text and as JSON."""

from __future__ import annotations

import io
import json

import pytest

from avow.cli.message_output import Form, Printer
from avow.client.reader import Message


class Batch:
    """Read results from a list."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.lane, self.count, self.first_version = messages[0].lane, len(messages), messages[0].version

    def values(self) -> list[bytes]:
        return [message.value for message in self._messages]

    def messages(self) -> list[Message]:
        return self._messages


MESSAGES = [
    Message(0, 7, b"plain", None, (), 1_700_000_000_000),
    Message(0, 8, b"keyed", b"k", (("trace", b"abc"), ("raw", b"\xff")), 1_700_000_000_001),
    Message(0, 9, b"\xff\x00", None, (), 1_700_000_000_002),
]


def printed(form: Form, *, limit: int | None = None) -> tuple[bytes, Printer, int]:
    out = io.BytesIO()
    printer = Printer(form, limit=limit, out=out)
    last = printer.print(Batch(MESSAGES))  # type: ignore[arg-type]
    return out.getvalue(), printer, last


def test_the_default_output_shows_lane_version_key_and_value() -> None:
    assert printed(Form.text)[0] == b"0:7  plain\n0:8  k  keyed\n0:9  \xff\x00\n"


def test_values_are_printed_as_the_bytes_that_were_written() -> None:
    assert printed(Form.values)[0] == b"plain\nkeyed\n\xff\x00\n"


def test_json_output_has_the_json_lines_of_the_api() -> None:
    plain, keyed, raw = (json.loads(line) for line in printed(Form.json)[0].splitlines())
    assert plain == {"lane": 0, "version": 7, "value": "plain", "time_ms": 1_700_000_000_000}
    assert (keyed["key"], keyed["headers"], keyed["headers_base64"]) == ("k", {"trace": "abc"}, {"raw": "/w=="})
    assert (raw["value_base64"], "value" in raw) == ("/wA=", False)


@pytest.mark.parametrize(("limit", "last"), [(1, 7), (2, 8), (3, 9), (10, 9)])
def test_a_printer_stops_at_its_limit_and_knows_the_last_version(limit: int, last: int) -> None:
    text, printer, reached = printed(Form.values, limit=limit)
    assert (printer.printed, reached) == (min(limit, 3), last)
    assert text.count(b"\n") == min(limit, 3)
    assert printer.remaining == limit - printer.printed


def test_a_printer_with_limit_0_prints_nothing() -> None:
    out = io.BytesIO()
    printer = Printer(Form.text, limit=0, out=out)
    assert printer.print(Batch(MESSAGES)) == 0  # type: ignore[arg-type]
    assert out.getvalue() == b""
