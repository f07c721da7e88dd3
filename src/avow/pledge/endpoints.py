"""Limits the calls in flight, in total and per endpoint, so that an unreachable endpoint does not delay the others.

An endpoint is a host and port, a gRPC target, or a queue. A call enters its endpoint before it is made and leaves it
with its answer.

    open ──unreachable N times in a row──► closed ──a probe was answered──► open
                                             └── one probe at a time, at growing intervals; no other call enters

A pledge whose call cannot enter is put back into the store, so it occupies nothing. The endpoint remembers its gid
(`parked`), and the gids of the calls that closed it. A parked pledge is used for the next probe even if it is not due.
When the endpoint answers again, all parked pledges are called at once, without waiting for their back-off, which has
grown meanwhile.

At an open endpoint that has reached its limit, calls wait in order, up to a maximum number and time.

There is no task and no timer here: `enter` answers at once or returns a future; `sweep` is called periodically.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from avow.pledge.settings import PledgeSettings

PARKED_MAX: Final = 100_000  # of one endpoint; further pledges wait for their own back-off
ENDPOINTS_MAX: Final = 10_000
_PORTS: Final = {"http": 80, "https": 443}


class _Waiting(NamedTuple):
    admitted: asyncio.Future[bool]
    until_s: float


class Endpoint:
    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.failures = 0  # in a row
        self.returns_count = 0
        self.last_error = ""
        self.closed = False
        self.probing = False
        self.ready = False
        self.probe_at_s = 0.0
        self.probe_interval_s = 0.0
        self.waiting: deque[_Waiting] = deque()
        self.parked: dict[str, None] = {}
        self.unreached: list[str] = []  # gids of the failed calls that may close it

    @property
    def idle(self) -> bool:
        return not (self.in_flight or self.waiting or self.parked or self.closed)

    @property
    def reason(self) -> str:
        if self.closed:
            return f"not called: {self.name} was unreachable {self.failures} times in a row; {self.last_error}"
        return f"not called: too many calls are waiting for {self.name}"


class Endpoints:
    """`jitter` returns numbers in [0, 1); `on_return` is called when an endpoint answers again."""

    def __init__(self, settings: PledgeSettings, *, jitter: Callable[[], float], on_return: Callable[[], None]) -> None:
        self._settings = settings
        self._jitter = jitter
        self._on_return = on_return
        self._endpoints: dict[str, Endpoint] = {}
        self._names: dict[str, str] = {}  # by URL
        self._crowded: dict[str, Endpoint] = {}  # those where calls wait
        self._ready: deque[Endpoint] = deque()  # of these, those below their own limit: they take turns
        self._closed: dict[str, Endpoint] = {}
        self._parking: dict[str, Endpoint] = {}  # those with parked pledges
        self.in_flight = 0
        self.closings_count = 0

    def of(self, url: str) -> Endpoint:
        name = self._names.get(url)
        if name is None:
            if len(self._names) >= ENDPOINTS_MAX:
                self._names.clear()
            name = self._names[url] = endpoint_name(url)
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            if len(self._endpoints) >= ENDPOINTS_MAX:
                self._endpoints = {known: found for known, found in self._endpoints.items() if not found.idle}
            endpoint = self._endpoints[name] = Endpoint(name)
        return endpoint

    # ------------------------------------------------------------------------------ entering and leaving

    def enter(self, endpoint: Endpoint, *, now_s: float) -> bool | asyncio.Future[bool]:
        """True: make the call, then `leave`. False: do not make it. A future: either of them, later.

        A caller that stops waiting cancels the future.
        """
        if endpoint.closed:
            return self._enter_closed(endpoint, now_s)
        if endpoint.in_flight < self._settings.calls_per_endpoint_max and self.in_flight < self._settings.calls_max:
            self._admit(endpoint)
            return True
        if len(endpoint.waiting) >= self._settings.waiting_per_endpoint_max:
            return False
        admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        endpoint.waiting.append(_Waiting(admitted, now_s + self._settings.waiting_s))
        self._crowded[endpoint.name] = endpoint
        self._make_ready(endpoint)
        return admitted

    def _enter_closed(self, endpoint: Endpoint, now_s: float) -> bool:
        if endpoint.probing or now_s < endpoint.probe_at_s:
            return False
        endpoint.probing = True
        self._admit(endpoint)
        return True

    def _admit(self, endpoint: Endpoint) -> None:
        endpoint.in_flight += 1
        self.in_flight += 1

    def leave(
        self,
        endpoint: Endpoint,
        *,
        reached: bool,
        gid: str = "",
        error: str = "",
        now_s: float,
        returns: int | None = None,
    ) -> None:
        """`returns`: the endpoint's `returns_count` when the call entered. If the endpoint has returned since, a
        failure says nothing about its present state; the pledge is then called again as soon as the parked ones."""
        endpoint.in_flight -= 1
        self.in_flight -= 1
        if reached:
            if endpoint.failures:  # else it is open and has no state to reset
                self._reached(endpoint)
        elif returns is not None and returns != endpoint.returns_count:
            self.park(endpoint, gid)
        else:
            endpoint.unreached.append(gid)
            self._not_reached(endpoint, error, now_s)
            if endpoint.closed:
                self._park_unreached(endpoint)
        if endpoint.waiting or self._ready:
            self._admit_waiting(endpoint)

    def withdraw(self, endpoint: Endpoint) -> None:
        """Leave without a result: the call was cancelled."""
        endpoint.in_flight -= 1
        self.in_flight -= 1
        endpoint.probing = False
        self._admit_waiting(endpoint)

    def _make_ready(self, endpoint: Endpoint) -> None:
        if not endpoint.ready and endpoint.waiting and endpoint.in_flight < self._settings.calls_per_endpoint_max:
            endpoint.ready = True
            self._ready.append(endpoint)

    def _admit_waiting(self, endpoint: Endpoint) -> None:
        """A call has left `endpoint`. The next waiting call is admitted, which may be one of another endpoint."""
        self._make_ready(endpoint)
        while self._ready and self.in_flight < self._settings.calls_max:
            first = self._ready.popleft()
            first.ready = False
            self._admit_first(first)
            self._make_ready(first)

    def _admit_first(self, endpoint: Endpoint) -> None:
        while endpoint.waiting:
            first = endpoint.waiting.popleft().admitted
            if not first.done():  # it is if the caller stopped waiting
                self._admit(endpoint)
                first.set_result(True)
                break
        if not endpoint.waiting:
            self._crowded.pop(endpoint.name, None)

    # --------------------------------------------------------------------------------- closing and return

    def _reached(self, endpoint: Endpoint) -> None:
        endpoint.failures = 0
        endpoint.unreached.clear()
        if not endpoint.closed:
            return
        endpoint.closed = endpoint.probing = False
        endpoint.returns_count += 1
        del self._closed[endpoint.name]
        self._on_return()

    def _not_reached(self, endpoint: Endpoint, error: str, now_s: float) -> None:
        endpoint.failures += 1
        endpoint.last_error = error
        if endpoint.closed:
            if endpoint.probing:
                endpoint.probing = False
                self._schedule_probe(endpoint, 2 * endpoint.probe_interval_s, now_s)
            return
        if endpoint.failures < self._settings.endpoint_failures:
            return
        endpoint.closed = True
        self._closed[endpoint.name] = endpoint
        self.closings_count += 1
        self._schedule_probe(endpoint, self._settings.probe_interval_s, now_s)
        self._refuse_waiting(endpoint)

    def _schedule_probe(self, endpoint: Endpoint, interval_s: float, now_s: float) -> None:
        endpoint.probe_interval_s = min(interval_s, self._settings.probe_interval_max_s)
        endpoint.probe_at_s = now_s + endpoint.probe_interval_s * (0.5 + 0.5 * self._jitter())

    def _refuse_waiting(self, endpoint: Endpoint) -> None:
        waiting, endpoint.waiting = endpoint.waiting, deque()
        self._crowded.pop(endpoint.name, None)
        for item in waiting:
            if not item.admitted.done():
                item.admitted.set_result(False)

    def sweep(self, now_s: float) -> None:
        """Refuse the calls that have waited too long."""
        for endpoint in tuple(self._crowded.values()):
            while endpoint.waiting and endpoint.waiting[0].until_s <= now_s:
                item = endpoint.waiting.popleft()
                if not item.admitted.done():
                    item.admitted.set_result(False)
            if not endpoint.waiting:
                del self._crowded[endpoint.name]

    # ------------------------------------------------------------------------------------------- parking

    def park(self, endpoint: Endpoint, gid: str) -> None:
        """The pledge could not enter; it is called again when there is room."""
        if len(endpoint.parked) < PARKED_MAX:
            endpoint.parked[gid] = None
            self._parking[endpoint.name] = endpoint

    def _park_unreached(self, endpoint: Endpoint) -> None:
        for gid in endpoint.unreached:
            self.park(endpoint, gid)
        endpoint.unreached.clear()

    def unpark(self, endpoint: Endpoint, count: int) -> list[str]:
        """Removes and returns the gids that were parked first."""
        gids = list(islice(endpoint.parked, count))
        for gid in gids:
            del endpoint.parked[gid]
        if not endpoint.parked:
            self._parking.pop(endpoint.name, None)
        return gids

    def room(self, endpoint: Endpoint, *, now_s: float) -> int:
        """How many parked pledges may be called now; at a closed endpoint one, when its probe is due."""
        if endpoint.closed:
            return 0 if endpoint.probing or now_s < endpoint.probe_at_s else 1
        places = self._settings.calls_per_endpoint_max
        return max(0, 2 * places - endpoint.in_flight - len(endpoint.waiting))

    def parking(self) -> tuple[Endpoint, ...]:
        return tuple(self._parking.values())

    def hasten(self, url: str) -> None:
        """An operator wants a retry now: the next call is the probe."""
        self.of(url).probe_at_s = 0.0

    def refuse_all_waiting(self) -> None:
        """The coordinator is closing."""
        for endpoint in tuple(self._crowded.values()):
            self._refuse_waiting(endpoint)

    def statistics(self) -> dict[str, int]:
        return {
            "endpoints": len(self._endpoints),
            "endpoints_closed": len(self._closed),
            "endpoint_closings": self.closings_count,
            "calls_in_flight": self.in_flight,
            "calls_waiting": sum(len(endpoint.waiting) for endpoint in self._crowded.values()),
            "pledges_parked": sum(len(endpoint.parked) for endpoint in self._parking.values()),
        }


def endpoint_name(url: str) -> str:
    """The endpoint of a URL: scheme, host and port, or the queue."""
    if "://" not in url:
        return f"grpc://{url.partition('/')[0]}"
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # invalid; the call will report it
        return url
    if parts.scheme == "queue":
        return f"queue://{parts.netloc}"
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
