"""Questions to one peer and no other: what it shows of the cluster, and every lane as it stores it.

The client asks whichever peer answers. To find out whether peers agree, each must be asked by itself, at level `local`.
These calls block; an event loop makes them through `asyncio.to_thread`.
"""

from __future__ import annotations

import http.client
import ssl
import time
from array import array
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from avow.errors import Offline
from avow.testing.prove.history import FinalLane, codes_of
from avow.wire.batch import Batch
from avow.wire.ranges import CONTENT_TYPE, Range, parse_ranges

PATIENCE_S: Final = 10.0  # a damaged lane may be under repair
_READ_BYTES_MAX: Final = 1 << 20


class PeerApi:
    """One keep-alive connection to one peer. Not for several threads at a time."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, token: str = "", ca: str = "") -> None:
        parts = urlsplit(url)
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        host, port = str(parts.hostname), int(parts.port or 80)
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            trust = ssl.create_default_context(cafile=ca or None)
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=trust)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def __enter__(self) -> PeerApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, *, accept: str = "application/json") -> tuple[bytes, http.client.HTTPMessage]:
        """The body and headers of a success. Raises Offline for everything else."""
        try:
            self._connection.request(method, path, headers={"Accept": accept, **self._headers})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Offline(f"{self.url} did not answer {method} {path}: {error!r}") from error
        if not 200 <= answer.status < 300:
            raise Offline(f"{self.url} answered {method} {path} with {answer.status}: {body[:300]!r}")
        return body, answer.headers

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.ask("GET", path)[0])

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/queues/{quote(name, safe='')}")
        return found

    def read_lane(self, peer: int, queue: str, lane: int, *, patience_s: float = PATIENCE_S) -> FinalLane:
        """All of it, from version 1, as this peer shows it. What it cannot show in time is `unreadable`."""
        final = FinalLane(peer, queue, lane, array("q"), {})
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._read_on(final)
            except Offline as error:
                if time.monotonic() > deadline:
                    final.unreadable = str(error)
                    return final
                time.sleep(0.5)
            else:
                return final

    def _read_on(self, final: FinalLane) -> None:
        while True:
            path = f"/v1/queues/{quote(final.queue, safe='')}/messages?lane={final.lane}&after={len(final.codes)}"
            body, headers = self.ask("GET", f"{path}&max=65536&max_bytes={_READ_BYTES_MAX}", accept=CONTENT_TYPE)
            before = len(final.codes)
            for found in parse_ranges(body):
                _take(final, found)
            if len(final.codes) >= int(headers["avow-end"]):
                return
            if len(final.codes) == before:
                raise Offline(f"{self.url} shows an end at {headers['avow-end']} and nothing after {before}")


def _take(final: FinalLane, found: Range) -> None:
    if found.first_version != len(final.codes) + 1:
        raise Offline(
            f"peer {final.peer} shows version {found.first_version} of lane {final.lane} of {final.queue} "
            f"after {len(final.codes)}"
        )
    values = [bytes(value) for value in Batch(found.record).values()[found.offset : found.offset + found.count]]
    codes = codes_of(values)
    final.codes.extend(codes)
    if min(codes) < 0:
        final.strange.update({code: repr(value[:60]) for code, value in zip(codes, values, strict=True) if code < 0})
