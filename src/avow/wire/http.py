"""The client side of HTTP/1.1 without a socket: encodes requests and parses answers.

`AnswerParser` owns the memory that bytes are received into, so that bodies are copied as rarely as possible:

    parser.buffer()          the buffer for the next bytes; never empty
    parser.received(count)   this many bytes were written to it; returns the first complete answer, or None
    parser.next_answer()     the next answer of the same bytes; call it until it returns None
    parser.ended()           the other side closed the connection: returns the answer whose body ends there, or None

*The fast path.* A peer's answers are simple: a short head and a Content-Length. One `find` finds the end of such a
head, and one regular expression checks it and extracts its numbers. A body that did not arrive with its head gets
memory of exactly its size, and `buffer()` is that memory: a megabyte of batches is copied once, by the kernel.

*The slow path*, for other services: chunked bodies, bodies that end with the connection, interim answers (1xx,
skipped), answers without a body (204, 304, to HEAD), HTTP/1.0.

The parser is strict (RFC 9112), because bytes that two programs parse differently allow response smuggling. It refuses
an answer with both Content-Length and Transfer-Encoding, or one of them twice, folded headers, codings other than
chunked, spaces before a colon, control characters and lone line ends. Chunk extensions and trailers are read and
dropped. Everything is bounded (`Bounds`). A refused answer raises `NotHttp`, and nothing more can be read.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from avow.errors import InvalidRequest
from avow.limits import KIB, MIB

if TYPE_CHECKING:
    from avow.wire.record import Buffer

INTERIM_COUNT_MAX: Final = 16  # before one answer
CHUNK_LINE_SIZE_BYTES_MAX: Final = 1 * KIB

_LONG_HEAD: Final = "the head of the answer is too long"
_LONG_BODY: Final = "the body of the answer is too long"
_NO_BODY: Final = frozenset({204, 304})
_HEAD_END: Final = b"\r\n\r\n"
_BEGINNING: Final = b"http/1."
_NAME: Final = rb"[!#$%&'*+.^_`|~0-9a-z-]++"
_TEXT: Final = rb"[^\x00-\x08\x0a-\x1f\x7f]*+"
_PLAIN_LINES: Final = rb"(?:\r\n(?!content-length:|transfer-encoding:|connection:)" + _NAME + rb":" + _TEXT + rb")*+"

# A whole head in lower case with a Content-Length and no other header that determines where the answer ends.
_simple_head: Final = re.compile(
    rb"http/1\.1 ((?!204|304)[2-9][0-9][0-9])(?: " + _TEXT + rb")?+" + _PLAIN_LINES + rb"\r\n"
    rb"content-length:[ \t]*+([0-9]{1,15})[ \t]*+" + _PLAIN_LINES
).fullmatch
_status_line: Final = re.compile(rb"http/1\.([01]) ([1-9][0-9][0-9])(?: " + _TEXT + rb")?+").fullmatch
_header_line: Final = re.compile(rb"(" + _NAME + rb"):[ \t]*+(" + _TEXT + rb")").fullmatch
_chunk_line: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*+(?:;" + _TEXT + rb")?+").fullmatch
_length: Final = re.compile(rb"[0-9]{1,15}").fullmatch
_target: Final = re.compile(r"[!-~]+").fullmatch
_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_value: Final = re.compile(r"[\t -~\x80-\xff]*").fullmatch


class Address(Struct, frozen=True):
    """`host` has no brackets, also for IPv6."""

    host: str
    port: int
    tls: bool = False

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class Bounds(Struct, frozen=True):
    """`chunk_size_bytes`: the buffer of a connection for heads and small bodies; it grows for a longer head."""

    head_size_bytes_max: int = 32 * KIB
    body_size_bytes_max: int = 64 * MIB
    chunk_size_bytes: int = 64 * KIB


PEER_BOUNDS: Final = Bounds()


class Answer(Struct, frozen=True, gc=False):
    """`head` is in lower case, including values, because most values needed are numbers and words. `sent_head` is the
    head as it was sent."""

    status: int
    head: bytes
    body: bytes | bytearray
    sent_head: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: bytes) -> bytes:
        """The value of a header in lower case; empty if it is absent. `name` is in lower case."""
        found = self.head.find(b"\r\n" + name + b":")
        if found < 0:
            return b""
        start = found + len(name) + 3
        end = self.head.find(b"\r\n", start)
        return self.head[start : end if end >= 0 else None].strip()

    def number(self, name: bytes) -> int | None:
        value = self.header(name)
        return int(value) if value.isdigit() else None

    def sent_values(self, name: bytes) -> tuple[bytes, ...]:
        """Every value of a header as it was sent. `name` is in lower case."""
        begin = b"\r\n" + name + b":"
        found = self.head.find(begin)
        values: list[bytes] = []
        while found >= 0:
            start = found + len(begin)
            end = self.head.find(b"\r\n", start)
            values.append(self.sent_head[start : end if end >= 0 else None].strip())
            found = self.head.find(begin, start)
        return tuple(values)


class Lost(Struct, frozen=True, gc=False):
    """No answer will come. `sent`: the other side may have received the request and acted on it. `begun`: a part of an
    answer arrived. `headed`: the body was too long; this is the answer without it."""

    sent: bool
    reason: str
    begun: bool = False
    headed: Answer | None = None

    @property
    def untouched(self) -> bool:
        return not self.begun


Reply: TypeAlias = Callable[[Answer | Lost], None]


class NotHttp(Exception):
    """The bytes received are not an HTTP/1.1 answer, or exceed a limit. `headed`: as in `Lost`."""

    def __init__(self, reason: str, headed: Answer | None = None) -> None:
        super().__init__(reason)
        self.headed = headed


# ------------------------------------------------------------------------------------------------- requests


def address_of(url: str) -> tuple[Address, str]:
    """The address of a URL, and its path without a slash at the end. Raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as cause:
        raise InvalidRequest(f"{url!r} is not a valid URL: {cause}; nothing was sent") from cause
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"{url!r} is not an HTTP URL with a host; nothing was sent")
    tls = parts.scheme == "https"
    return Address(host, port or (443 if tls else 80), tls), parts.path.rstrip("/")


def request_of(
    method: str, target: str, address: Address, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[bytes, ...]:
    """The bytes of a request, in parts. Raises InvalidRequest for characters that would end a line of it."""
    given = dict(headers or {})
    if not _target(target) or not _name(method):
        raise InvalidRequest(f"{method!r} {target!r} is not a valid method and target; nothing was sent")
    for name, value in given.items():
        if not _name(name) or not _value(value):
            raise InvalidRequest(f"header {name!r} has an invalid name or value; nothing was sent")
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    if body or method in ("POST", "PUT", "PATCH"):
        lines += f"Content-Length: {len(body)}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: {address.authority}\r\n{lines}\r\n".encode("latin-1")
    return (head, body) if body else (head,)


# -------------------------------------------------------------------------------------------------- answers


class AnswerParser:
    """The answers on one connection. `closes`: the answer returned last is the last one; later bytes are not read."""

    __slots__ = (
        "_body",
        "_body_size_max",
        "_body_view",
        "_chunk",
        "_chunk_view",
        "_end",
        "_filled",
        "_head",
        "_head_size_max",
        "_interim_count",
        "_is_last",
        "_start",
        "_unsized",
        "answers_count",
        "bodiless",
        "closes",
    )

    def __init__(self, bounds: Bounds) -> None:
        self._head_size_max, self._body_size_max = bounds.head_size_bytes_max, bounds.body_size_bytes_max
        self._chunk = bytearray(bounds.chunk_size_bytes)
        self._chunk_view = memoryview(self._chunk)
        self._start = self._end = 0  # range of the received, unparsed bytes in the chunk
        self._head = Answer(0, b"", b"")  # the answer whose body is being received, without the body
        self._is_last = False  # the connection ends with that answer
        self._body: bytearray | None = None  # a body of known size that did not arrive whole with its head
        self._body_view = self._chunk_view
        self._filled = 0
        self._unsized: _Chunks | _UntilEnd | None = None  # a body of unknown size
        self._interim_count = 0
        self.answers_count = 0
        self.bodiless: set[int] = set()  # which answers, counted from 0, are to HEAD
        self.closes = False

    @property
    def begun(self) -> bool:
        """Whether a part of an answer has arrived."""
        in_body = self._body is not None or self._unsized is not None
        return self._start < self._end or in_body or self._interim_count > 0

    def buffer(self) -> memoryview:
        if self._body is not None:
            return self._body_view[self._filled :]
        return self._chunk_view[self._end :]

    def received(self, count: int) -> Answer | None:
        """Raises NotHttp. Afterwards call `next_answer` until it returns None, and only then `buffer`."""
        if self._body is None:
            self._end += count
            return self.next_answer()
        self._filled += count
        if self._filled < len(self._body):
            return None
        body, self._body, self._body_view = self._body, None, self._chunk_view
        return self._whole(self._head, body)

    def next_answer(self) -> Answer | None:
        """None: more bytes are needed, and `buffer` has space for them. Raises NotHttp."""
        if not self._end:
            return None
        while self._start < self._end and self._body is None and not self.closes:
            if self._unsized is not None:
                if not self._read_unsized(self._unsized):
                    break
                return self._whole(self._head, self._unsized_body())
            start = self._start
            head_end = self._chunk.find(_HEAD_END, start, self._end)
            if head_end < 0:
                self._check_beginning()
                break
            if head_end - start > self._head_size_max:
                raise NotHttp(_LONG_HEAD)
            sent_head = bytes(self._chunk_view[start:head_end])
            head = sent_head.lower()
            simple = _simple_head(head)
            if simple is not None and not self.bodiless:
                status, length = simple.groups()
                body_at = head_end + 4
                whole = body_at + int(length)
                if whole <= self._end and whole - body_at <= self._body_size_max:
                    self._start = whole
                    if whole == self._end:  # usually: everything that was received is read
                        self._start = self._end = 0
                    self.answers_count += 1
                    self._interim_count = 0
                    return Answer(int(status), head, bytes(self._chunk_view[body_at:whole]), sent_head)
                self._begin_body(Answer(int(status), head, b"", sent_head), body_at, length=int(length))
            else:
                self._start = head_end + 4
                answer = self._read_head(head, sent_head)
                if answer is not None:
                    return answer
        self._make_room()
        return None

    def ended(self) -> Answer | None:
        """The other side closed the connection normally."""
        if not isinstance(self._unsized, _UntilEnd):
            return None
        return self._whole(self._head, self._unsized_body())

    def _whole(self, head: Answer, body: bytes | bytearray) -> Answer:
        self.answers_count += 1
        self._interim_count = 0
        self.closes = self._is_last
        return Answer(head.status, head.head, body, head.sent_head)

    # ------------------------------------------------------------------------------------------------ heads

    def _read_head(self, head: bytes, sent_head: bytes) -> Answer | None:
        """Parse a head on the slow path. None: it was interim, or its body follows."""
        form = _form_of(head)
        if form.status < 200:
            self._interim_count += 1
            if self._interim_count > INTERIM_COUNT_MAX:
                raise NotHttp(f"more than {INTERIM_COUNT_MAX} interim answers")
            return None
        answer = Answer(form.status, head, b"", sent_head)
        self._is_last = form.closes
        to_head = self.answers_count in self.bodiless
        self.bodiless.discard(self.answers_count)
        if to_head or form.status in _NO_BODY:
            return self._whole(answer, b"")
        if form.chunked:
            self._head, self._unsized = answer, _Chunks(trailers_size_max=self._head_size_max)
        elif form.length is None:
            self._head, self._unsized, self._is_last = answer, _UntilEnd(), True
        elif form.length <= min(self._end - self._start, self._body_size_max):
            body_at, self._start = self._start, self._start + form.length
            return self._whole(answer, bytes(self._chunk_view[body_at : self._start]))
        else:
            self._begin_body(answer, self._start, length=form.length)
        return None

    def _check_beginning(self) -> None:
        """Check an incomplete head: fail at once if it cannot be an answer."""
        begun = self._end - self._start
        if begun - len(_HEAD_END) >= self._head_size_max:
            raise NotHttp(_LONG_HEAD)
        first = bytes(self._chunk_view[self._start : min(self._start + len(_BEGINNING), self._end)])
        if not _BEGINNING.startswith(first.lower()):
            raise NotHttp(_not_http("no answer begins with", self._chunk[self._start : self._end]))

    # ----------------------------------------------------------------------------------------------- bodies

    def _begin_body(self, head: Answer, body_at: int, *, length: int) -> None:
        if length > self._body_size_max:
            raise NotHttp(_LONG_BODY, head)
        here = self._end - body_at
        self._head = head
        self._body = bytearray(length)
        self._body_view = memoryview(self._body)
        self._body_view[:here] = self._chunk_view[body_at : self._end]
        self._filled, self._start = here, self._end

    def _read_unsized(self, unsized: _Chunks | _UntilEnd) -> bool:
        self._start += unsized.take(self._chunk_view[self._start : self._end])
        if len(unsized.body) > self._body_size_max:
            raise NotHttp(_LONG_BODY, self._head)
        return unsized.is_whole

    def _unsized_body(self) -> bytearray:
        assert self._unsized is not None
        body, self._unsized = self._unsized.body, None
        return body

    def _make_room(self) -> None:
        left = self._end - self._start
        if self._start:
            if left:
                self._chunk_view[:left] = bytes(self._chunk_view[self._start : self._end])
            self._start, self._end = 0, left
        if left == len(self._chunk):
            longer = bytearray(2 * left)
            longer[:left] = self._chunk
            self._chunk, self._chunk_view = longer, memoryview(longer)


def lost_after(reason: str, parser: AnswerParser, broken: NotHttp | None = None) -> Lost:
    """The result of a request that was sent and whose answer would have been this parser's next one."""
    if broken is None:
        return Lost(sent=True, reason=reason, begun=parser.begun)
    return Lost(sent=True, reason=reason, begun=True, headed=broken.headed)


class _Chunks:
    """A chunked body (RFC 9112, 7.1): size in hexadecimal, bytes, and so on up to size 0; then trailers.

    chunk     = size [ ";" extension ] CRLF bytes CRLF
    last      = "0" [ ";" extension ] CRLF *( trailer CRLF ) CRLF
    """

    __slots__ = ("_left", "_reading", "_trailers_size", "_trailers_size_max", "body", "is_whole")

    def __init__(self, *, trailers_size_max: int) -> None:
        self.body = bytearray()
        self.is_whole = False
        self._reading = _Reading.SIZE
        self._left = 0  # of the chunk
        self._trailers_size, self._trailers_size_max = 0, trailers_size_max

    def take(self, data: memoryview) -> int:
        """The number of bytes read; fewer than all if a line is incomplete, or the body is complete."""
        at = 0
        while at < len(data) and not self.is_whole:
            if self._reading is _Reading.BYTES:
                piece = data[at : at + self._left]
                self.body += piece
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._reading = _Reading.BYTES_END
                continue
            line_end = bytes(data[at : at + CHUNK_LINE_SIZE_BYTES_MAX]).find(b"\r\n")
            if line_end < 0:
                if len(data) - at >= CHUNK_LINE_SIZE_BYTES_MAX:
                    raise NotHttp(_not_http("a line between chunks is too long", data[at:]))
                break
            self._read_line(bytes(data[at : at + line_end]))
            at += line_end + 2
        return at

    def _read_line(self, line: bytes) -> None:
        if self._reading is _Reading.SIZE:
            found = _chunk_line(line)
            if found is None:
                raise NotHttp(_not_http("not the size of a chunk", line))
            self._left = int(found[1], 16)
            self._reading = _Reading.BYTES if self._left else _Reading.TRAILERS
        elif self._reading is _Reading.BYTES_END:
            if line:
                raise NotHttp(_not_http("a chunk is longer than its size", line))
            self._reading = _Reading.SIZE
        elif not line:
            self.is_whole = True
        else:
            self._trailers_size += len(line) + 2
            if self._trailers_size > self._trailers_size_max or _header_line(line.lower()) is None:
                raise NotHttp(_not_http("trailers that are too long, or no headers", line))


class _Reading(enum.Enum):
    SIZE = "size"
    BYTES = "bytes"
    BYTES_END = "the line end after a chunk"
    TRAILERS = "trailers"


class _UntilEnd:
    """A body that ends with the connection."""

    __slots__ = ("body",)

    is_whole: Final = False

    def __init__(self) -> None:
        self.body = bytearray()

    def take(self, data: memoryview) -> int:
        self.body += data
        return len(data)


# ---------------------------------------------------------------------------------------- what a head says


class _Form(NamedTuple):
    status: int
    length: int | None
    chunked: bool
    closes: bool


def _form_of(head: bytes) -> _Form:
    """How an answer with this lower-case head ends. Raises NotHttp."""
    first, *lines = head.split(b"\r\n")
    found = _status_line(first)
    if found is None:
        raise NotHttp(_not_http("not the first line of an answer", head))
    old, status = found[1] == b"0", int(found[2])
    if status == 101 or (status < 200 and old):
        raise NotHttp(_not_http("no interim answer", head))
    lengths, codings, options = _deciding(lines)
    if len(lengths) + len(codings) > 1 or (codings and old):
        raise NotHttp(_not_http("its length is said in more than one way", head))
    if lengths and not _length(lengths[0]):
        raise NotHttp(_not_http("its Content-Length is no number", lengths[0]))
    if codings and codings[0] != b"chunked":
        raise NotHttp(_not_http("a transfer coding other than chunked", codings[0]))
    closes = b"close" in options or (old and b"keep-alive" not in options)
    return _Form(status, int(lengths[0]) if lengths else None, bool(codings), closes)


def _deciding(lines: list[bytes]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The values of Content-Length and Transfer-Encoding, and the options of Connection."""
    lengths, codings, options = [], [], []
    for line in lines:
        found = _header_line(line)
        if found is None:
            raise NotHttp(_not_http("no header", line))
        name, value = found[1], found[2].rstrip(b" \t")
        if name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            codings.append(found[2].rstrip(b" "))  # with a tab behind it, some read another coding
        elif name == b"connection":
            options += [option.strip(b" \t") for option in value.split(b",")]
    return lengths, codings, options


def _not_http(what: str, found: Buffer) -> str:
    return f"not HTTP/1.1: {what}: {bytes(found[:80])!r}"
