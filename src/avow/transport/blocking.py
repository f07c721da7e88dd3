"""The blocking HTTP/1.1 connection, for programs without an event loop: commands, a joining peer, tests.

It sends one request at a time over a plain socket and parses answers with `avow.wire.http`. Like the asyncio
connection, `ask` returns an `Answer` or `Lost` and does not raise. There are two timeouts: one to connect, with TLS, to
each address of the host; and one from the first byte of a request to the last of its answer, so that a server that
sends a byte now and then cannot block the caller.

It never retries or follows redirects, and it ignores proxy settings in the environment.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final

from avow.wire.http import (
    PEER_BOUNDS,
    Address,
    Answer,
    AnswerParser,
    Bounds,
    Lost,
    NotHttp,
    address_of,
    lost_after,
    request_of,
)

if TYPE_CHECKING:
    from avow.wire.record import Buffer

CONNECT_S: Final = 3.0


class BlockingConnection:
    """Connects at the first `ask`, stays open for the next, reconnects after a loss. For one thread at a time."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = CONNECT_S,
        bounds: Bounds = PEER_BOUNDS,
    ) -> None:
        self.address = address
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._bounds = bounds
        self._socket: socket.socket | None = None
        self._parser = AnswerParser(bounds)

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(
        self, method: str, target: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
    ) -> Answer | Lost:
        """Send a request and wait for its answer. Raises InvalidRequest for a request that cannot be encoded."""
        parts = request_of(method, target, self.address, headers=headers, body=body)
        return self.ask(parts, timeout_s=timeout_s, to_head=method == "HEAD")

    def ask(self, parts: Sequence[Buffer], *, timeout_s: float, to_head: bool = False) -> Answer | Lost:
        """`to_head`: the method is HEAD, whose answer has no body whatever its headers say."""
        if self._socket is not None and _is_readable(self._socket):
            self.close()  # the server closed it, or sent an unrequested answer
        opened = self._socket or self._connect()
        if isinstance(opened, Lost):
            return opened
        outcome = self._exchange(opened, parts, timeout_s=timeout_s, to_head=to_head)
        if isinstance(outcome, Lost) or self._parser.closes or self._parser.begun:
            self.close()
        else:
            self._parser.next_answer()  # there is none; this resets the parser for the next answer
        return outcome

    def close(self) -> None:
        """May be called repeatedly; the next `ask` connects again."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    # ------------------------------------------------------------------------------------------ the socket

    def _connect(self) -> socket.socket | Lost:
        until = monotonic() + self._connect_timeout_s
        where = (self.address.host, self.address.port)
        with contextlib.ExitStack() as unless_open:
            try:
                opened = unless_open.enter_context(socket.create_connection(where, self._connect_timeout_s))
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.address.tls:
                    opened.settimeout(max(until - monotonic(), 0.001))
                    context = self._tls or ssl.create_default_context()
                    opened = unless_open.enter_context(context.wrap_socket(opened, server_hostname=where[0]))
            except TimeoutError:
                return Lost(sent=False, reason=f"no connection within {self._connect_timeout_s:g} s")
            except (OSError, UnicodeError) as cause:
                return Lost(sent=False, reason=reason_of(cause))
            unless_open.pop_all()
        self._socket, self._parser = opened, AnswerParser(self._bounds)
        return opened

    def _exchange(
        self, opened: socket.socket, parts: Sequence[Buffer], *, timeout_s: float, to_head: bool
    ) -> Answer | Lost:
        parser, until = self._parser, monotonic() + timeout_s
        if to_head:
            parser.bodiless.add(parser.answers_count)
        try:
            opened.settimeout(timeout_s)
            opened.sendall(b"".join(parts))
            while True:
                left = until - monotonic()
                if left <= 0:
                    raise TimeoutError
                opened.settimeout(left)
                count = opened.recv_into(parser.buffer())
                answer = parser.received(count) if count else parser.ended()
                if answer is not None:
                    return answer
                if not count:
                    return lost_after("the connection was closed before the answer was complete", parser)
        except NotHttp as broken:
            return lost_after(str(broken), parser, broken)
        except TimeoutError:
            return lost_after(f"no answer for {timeout_s:g} s", parser)
        except OSError as cause:
            return lost_after(reason_of(cause), parser)


def _is_readable(opened: socket.socket) -> bool:
    """Whether there is input. Before a request is sent, it cannot be the answer to it."""
    watched = select.poll()
    watched.register(opened, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(watched.poll(0))


def connection_to(
    url: str, *, tls: ssl.SSLContext | None = None, connect_timeout_s: float = CONNECT_S
) -> BlockingConnection:
    """A connection to the host and port of a URL; the path is ignored. Raises InvalidRequest."""
    address, _ = address_of(url)
    return BlockingConnection(address, tls=tls, connect_timeout_s=connect_timeout_s)


def reason_of(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.lower() if text[1:].islower() else text
