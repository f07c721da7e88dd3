"""Requests to one given peer: its view of the cluster, and every lane as it stores it.

The client asks any peer. To find out whether peers agree, each must be asked by itself, at level `local`. These calls
block; an event loop makes them through `asyncio.to_thread`.
"""

from __future__ import annotations

import ssl
import time
from array import array
from typing import Any, Final
from urllib.parse import quote

import msgspec

from avow.errors import Offline
from avow.transport.blocking import connection_to
from avow.wire.batch import Batch
from avow.wire.http import Answer, Lost
from avow.wire.ranges import CONTENT_TYPE, Range, parse_ranges
from avow_lab.campaigns.peers.history import FinalLane, codes_of

READ_TIMEOUT_S: Final = 10.0  # a damaged lane may be under repair
_READ_BYTES_MAX: Final = 1 << 20


class PeerApi:
    """A keep-alive connection to one peer. One thread at a time may use it."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, token: str = "", ca: str = "") -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        trust = ssl.create_default_context(cafile=ca or None) if url.startswith("https:") else None
        self._connection = connection_to(url, tls=trust, connect_timeout_s=timeout_s)

    def __enter__(self) -> PeerApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, *, accept: str = "application/json") -> Answer:
        """Returns a successful answer. Raises Offline for any other."""
        headers = {"Accept": accept, **self._headers}
        answer = self._connection.request(method, path, headers=headers, timeout_s=self._timeout_s)
        if isinstance(answer, Lost):
            raise Offline(f"{self.url} did not answer {method} {path}: {answer.reason}")
        if not answer.ok:
            raise Offline(f"{self.url} answered {method} {path} with {answer.status}: {bytes(answer.body[:300])!r}")
        return answer

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.ask("GET", path).body)

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/queues/{quote(name, safe='')}")
        return found

    def read_lane(self, peer: int, queue: str, lane: int, *, timeout_s: float = READ_TIMEOUT_S) -> FinalLane:
        """The whole lane as this peer shows it. If it cannot show all in time, `unreadable` says why."""
        final = FinalLane(peer, queue, lane, array("q"), {})
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._continue(final)
            except Offline as error:
                if time.monotonic() > deadline:
                    final.unreadable = str(error)
                    return final
                time.sleep(0.5)
            else:
                return final

    def _continue(self, final: FinalLane) -> None:
        while True:
            path = f"/v1/queues/{quote(final.queue, safe='')}/messages?lane={final.lane}&after={len(final.codes)}"
            answer = self.ask("GET", f"{path}&max=65536&max_bytes={_READ_BYTES_MAX}", accept=CONTENT_TYPE)
            before, end = len(final.codes), answer.number(b"avow-end")
            if end is None:
                raise Offline(f"{self.url} answered without the end of lane {final.lane} of {final.queue}")
            for found in parse_ranges(memoryview(answer.body)):
                _take(final, found)
            if len(final.codes) >= end:
                return
            if len(final.codes) == before:
                raise Offline(f"{self.url} says that the lane ends at {end}, and shows nothing after {before}")


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
