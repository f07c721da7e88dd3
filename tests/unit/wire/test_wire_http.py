"""The response parser: the same result however bytes are cut, and as another parser; all sizes are bounded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avow.errors import InvalidRequest
from avow.limits import KIB
from avow.wire.http import (
    CHUNK_LINE_SIZE_BYTES_MAX,
    INTERIM_COUNT_MAX,
    Address,
    Answer,
    AnswerParser,
    Bounds,
    NotHttp,
    address_of,
    request_of,
)

SMALL = Bounds(head_size_bytes_max=4 * KIB, body_size_bytes_max=64 * KIB, chunk_size_bytes=256)
REFUSED = "refused"


class Read:
    """The result of parsing some bytes: answers as (status, body), and the final state."""

    def __init__(self, pieces: Iterable[bytes], *, bounds: Bounds = SMALL, to_head: Iterable[int] = ()) -> None:
        self.parser = AnswerParser(bounds)
        self.parser.bodiless.update(to_head)
        self.answers: list[Answer] = []
        self.refused: NotHttp | None = None
        try:
            for piece in pieces:
                self._feed(piece)
        except NotHttp as error:
            self.refused = error

    def _feed(self, data: bytes) -> None:
        while data and not self.parser.closes:
            buffer = self.parser.buffer()
            assert buffer
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            answer = self.parser.received(taken)
            while answer is not None:
                self.answers.append(answer)
                answer = self.parser.next_answer()

    def end(self) -> Read:
        last = None if self.refused else self.parser.ended()
        self.answers += [] if last is None else [last]
        return self

    @property
    def seen(self) -> list[object]:
        found: list[object] = [(one.status, one.sent_head, bytes(one.body)) for one in self.answers]
        return [*found, REFUSED] if self.refused else found

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(one.body) for one in self.answers]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


# ---------------------------------------------------------------------------------- generated answers

names = st.sampled_from([b"Date", b"X-A", b"content-type", b"Avow-Next", b"x_y", b"Content-Lengthy", b"Connections"])
texts = st.text(st.sampled_from("azAZ09 ;,=/\t\xe4"), max_size=20).map(lambda text: text.encode("latin-1"))
extras = st.lists(st.builds(lambda name, value: name + b":" + value + b"\r\n", names, texts), max_size=4)


@st.composite
def sized(draw: st.DrawFn) -> tuple[bytes, bytes]:
    body, before, after = draw(st.binary(max_size=700)), b"".join(draw(extras)), b"".join(draw(extras))
    name = draw(st.sampled_from([b"Content-Length", b"content-length", b"CONTENT-LENGTH"]))
    space, kept = (
        draw(st.sampled_from([b"", b" ", b" \t"])),
        draw(st.sampled_from([b"", b"Connection: keep-alive\r\n"])),
    )
    head = b"HTTP/1.1 %d Any\r\n" % draw(st.sampled_from([200, 201, 307, 404, 503]))
    return head + before + kept + b"%b:%b%d%b\r\n" % (name, space, len(body), space) + after + b"\r\n" + body, body


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=5))
    extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"']))
    written = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    trailers = draw(st.sampled_from([b"", b"X-Sum: 5\r\n", b"A: b\r\nC: d\r\n"]))
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(draw(extras)) + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(written) + b"0\r\n" + trailers + b"\r\n", b"".join(pieces)


bare = st.sampled_from([(b"HTTP/1.1 204 No Content\r\n\r\n", b""), (b"HTTP/1.1 304 Same\r\nETag: x\r\n\r\n", b"")])
interim = st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
whole = st.builds(lambda before, found: (before + found[0], found[1]), interim, sized() | chunked() | bare)
streams = st.lists(whole, min_size=1, max_size=6)


@given(answers=streams, data=st.data())
def test_answers_are_parsed_in_order_however_the_bytes_are_cut(
    answers: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(raw for raw, _ in answers)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    read = Read(cut(stream, places))
    assert (read.bodies, read.refused) == ([body for _, body in answers], None)
    assert not read.parser.begun


@settings(max_examples=30)
@given(answers=streams)
def test_a_cut_at_every_single_byte_changes_nothing(answers: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(raw for raw, _ in answers)
    expected = Read([stream]).seen
    assert Read(stream[at : at + 1] for at in range(len(stream))).seen == expected
    for at in range(1, min(len(stream), 400)):
        assert Read([stream[:at], stream[at:]]).seen == expected


@given(body=st.binary(max_size=1_000), places=st.lists(st.integers(0, 1_000), max_size=5), old=st.booleans())
def test_a_body_without_a_length_ends_with_its_connection(body: bytes, places: list[int], old: bool) -> None:
    head = b"HTTP/1.%d 200 OK\r\nDate: now\r\n\r\n" % (not old)
    read = Read(cut(head + body, places))
    assert read.answers == []
    assert read.parser.begun
    assert read.end().bodies == [body]
    assert read.parser.closes


# ------------------------------------------------------------------------------------- another parser


class Twin:
    """The same, as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.found: list[tuple[int, bytes]] = []
        self._body = b""
        self.refused = False
        self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.refused = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status: Any = self._parser.get_status_code()
        if status >= 200:
            self.found.append((status, self._body))
        self._body = b""


@given(answers=streams)
def test_a_second_parser_agrees(answers: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(raw for raw, _ in answers)
    twin, read = Twin(stream), Read([stream])
    assert not twin.refused
    assert [(one.status, bytes(one.body)) for one in read.answers] == twin.found


unchunked = st.lists(
    st.builds(lambda before, found: before + found[0], interim, sized() | bare), min_size=1, max_size=4
)
DAMAGES = [b"", b"\r", b"\n", b"\0", b" ", b":", b",", b"0", b"9", b"\t", b"A", b"-", b"\r\n", b"\x7f", b"\xff"]


@settings(max_examples=400)
@given(answers=streams.map(lambda found: [raw for raw, _ in found]) | unchunked, data=st.data())
def test_damaged_input_is_refused_or_parsed_as_by_the_second_parser(answers: list[bytes], data: st.DataObject) -> None:
    """One byte is replaced, put in or left out. This parser may be stricter, and must never find another answer."""
    stream = b"".join(answers)
    at = data.draw(st.integers(0, len(stream) - 1))
    damaged = stream[:at] + data.draw(st.sampled_from(DAMAGES)) + stream[at + data.draw(st.integers(0, 1)) :]
    read, twin = Read([damaged]), Twin(damaged)
    found = [(one.status, bytes(one.body)) for one in read.answers]
    if read.refused or read.parser.closes:
        assert found == twin.found[: len(found)]
    elif twin.refused and b"chunked" in damaged.lower():
        assert found[: len(twin.found)] == twin.found  # chunk extensions are ignored here
    else:
        assert found == twin.found


@given(data=st.binary(max_size=300), places=st.lists(st.integers(0, 300), max_size=4))
@example(data=b"\r\n\r\n", places=[1])
@example(data=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", places=[47])
def test_any_bytes_are_answers_refused_or_incomplete(data: bytes, places: list[int]) -> None:
    assert Read(cut(data, places)).seen == Read([data]).seen
    headed = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data
    assert Read(cut(headed, [47 + place for place in places])).seen == Read([headed]).seen


# ------------------------------------------------------------------------------------------- refused input


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK",
        b"HTTP/1.1 99 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 200 O\0K",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x1",
        b"HTTP/1.1 200 OK\r\nContent-Length: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding : chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\r\n folded",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\tX: a",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\rTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: \0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nno header",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n: nameless",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX\xe4: a",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket",
        b"HTTP/1.0 100 Continue",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    ],
)
def test_an_ambiguous_head_is_refused(head: bytes) -> None:
    assert Read([head + b"\r\n\r\n1"]).seen == [REFUSED]


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b" 1\r\n",
        b"-1\r\n",
        b"1 a\r\n",
        b"0x1\r\n",
        b"1\n",
        b"\r\n",
        b"1\r\nab\r\n",
        b"0\r\n folded\r\n\r\n",
        b"f" * 16 + b"\r\n",
        b"1;" + b"a" * CHUNK_LINE_SIZE_BYTES_MAX,
        b"0\r\n" + b"T: t\r\n" * 1_000,
    ],
)
def test_invalid_chunks_are_refused(body: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"\r\n"
    assert Read([data]).seen == [REFUSED]
    assert Read(data[at : at + 1] for at in range(len(data))).seen == [REFUSED]


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_everything_has_a_bound(step: int) -> None:
    def read(data: bytes) -> Read:
        return Read(data[at : at + step] for at in range(0, len(data), step))

    head = b"HTTP/1.1 200 OK\r\nX: "
    fits = head + b"a" * (SMALL.head_size_bytes_max - len(head) - 19) + b"\r\nContent-Length: 0"
    assert len(fits) == SMALL.head_size_bytes_max
    assert read(fits + b"\r\n\r\n").bodies == [b""]
    assert read(head + b"a" + fits[len(head) :] + b"\r\n\r\n").refused
    assert read(head + b"a" * SMALL.head_size_bytes_max).refused
    assert read(b"HTTP/1.1 100 Continue\r\n\r\n" * INTERIM_COUNT_MAX + fits + b"\r\n\r\n").bodies == [b""]
    assert read(b"HTTP/1.1 100 Continue\r\n\r\n" * (INTERIM_COUNT_MAX + 1)).refused


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("form", ["sized", "sized, last", "chunked", "until the end"])
def test_the_head_of_a_body_that_is_too_long_is_known(form: str, more: int) -> None:
    size = SMALL.body_size_bytes_max + more
    heads = {
        "sized": b"Content-Length: %d\r\n" % size,
        "sized, last": b"Content-Length: %d\r\nConnection: close\r\n" % size,
        "chunked": b"Transfer-Encoding: chunked\r\n",
        "until the end": b"",
    }
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, bytes(size)) if form == "chunked" else bytes(size)
    read = Read([b"HTTP/1.1 418 Teapot\r\n" + heads[form] + b"\r\n" + body]).end()
    if not more:
        assert read.bodies == [bytes(size)]
        return
    assert read.refused is not None
    assert read.refused.headed is not None
    assert (read.refused.headed.status, read.refused.headed.body) == (418, b"")


def test_bytes_of_another_protocol_are_refused_before_the_head_is_complete() -> None:
    assert Read([b"SSH-2.0-OpenSSH_9.2\r\n"]).seen == [REFUSED]
    assert Read([b"\x15\x03\x01\x00\x02"]).seen == [REFUSED]
    assert Read([b"HTTP/1"]).seen == []


# ----------------------------------------------------------------------------------------------- partial answers


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Foo , CLOSE", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive", False),
        (b"HTTP/1.1 200 OK\r\nConnection: closed", False),
        (b"HTTP/1.1 200 OK", False),
        (b"HTTP/1.0 200 OK", True),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", False),
    ],
)
@pytest.mark.parametrize("body", [b"", b"x" * 1_000])
def test_a_connection_ends_only_with_an_answer_that_closes_it(head: bytes, closes: bool, body: bytes) -> None:
    data = head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    early = Read([data[:-1]])
    assert not early.parser.closes
    read = Read([data + b"HTTP/1.1 204 No\r\n\r\n"])
    assert (read.bodies, read.parser.closes) == ([body] if closes else [body, b""], closes)


def test_answers_to_head_have_no_body() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    read = Read([head + b"first" + head + chunks + head + b"third"], to_head=[1, 2])
    assert read.bodies == [b"first", b"", b"", b"third"]
    assert not read.parser.bodiless


def test_header_values_are_returned_as_sent_and_in_lower_case() -> None:
    (answer,) = Read(
        [b"HTTP/1.1 200 OK\r\nDtm-Result: SUCCESS \r\nX: y\r\nDTM-RESULT:Ongoing\r\nContent-Length:0\r\n\r\n"]
    ).answers
    assert answer.sent_values(b"dtm-result") == (b"SUCCESS", b"Ongoing")
    assert answer.header(b"dtm-result") == b"success"
    assert answer.sent_values(b"absent") == ()


# ------------------------------------------------------------------------------------------------- requests


def test_a_request_is_bytes() -> None:
    address = Address("::1", 7400)
    assert request_of("GET", "/v1/x?a=b", address) == (b"GET /v1/x?a=b HTTP/1.1\r\nHost: [::1]:7400\r\n\r\n",)
    assert request_of("POST", "/", Address("h", 1), headers={"A": "b"}) == (
        b"POST / HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 0\r\n\r\n",
    )
    assert request_of("PUT", "/", Address("h", 1), body=b"xyz")[1] == b"xyz"


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/a b", {}),
        ("GET", "/a\r\nX: y", {}),
        ("GET", "/ä", {}),
        ("GET", "", {}),
        ("GET /x", "/", {}),
        ("GET", "/", {"Authorization": "Bearer a\r\nX: y"}),
        ("GET", "/", {"A:": "b"}),
        ("GET", "/", {"A": "€"}),
    ],
)
def test_fields_that_would_corrupt_a_request_are_refused(method: str, target: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        request_of(method, target, Address("h", 1), headers=headers)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:7400", (Address("host", 7400), "")),
        ("https://host", (Address("host", 443, tls=True), "")),
        ("http://[::1]:80/base/", (Address("::1", 80), "/base")),
    ],
)
def test_a_url_is_split_into_host_port_and_path(url: str, expected: tuple[Address, str]) -> None:
    assert address_of(url) == expected


@pytest.mark.parametrize("url", ["host:7400", "ftp://host", "http://", "http://host:x", "http://host:99999"])
def test_an_invalid_url_is_an_invalid_request(url: str) -> None:
    with pytest.raises(InvalidRequest):
        address_of(url)
