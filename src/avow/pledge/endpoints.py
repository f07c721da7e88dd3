"""How many calls may be under way: in all, and at each endpoint. Nobody waits for somebody else's dead endpoint.

An endpoint is a host and port, a gRPC target, or a queue. A call enters before it is made and leaves with its answer.

    open ──not reached N times in a row──► closed ──a probe was answered──► open
                                             └── a probe at a time, at growing intervals; nothing else enters

A pledge that cannot enter is put back into the store by its carrier, which occupies nothing; the endpoint remembers its
gid (`parked`), and the gids of the calls that closed it. A parked pledge is the next probe even if it is not due; and
when the endpoint returns, all that are parked are called again at once, without waiting for their back-off, which has
grown meanwhile.

Where an endpoint is merely crowded, calls wait for a place in the order they came, up to a number and a time.

No task and no timer here: `enter` answers at once, or with a future; `sweep` is called now and then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from avow.pledge.settings import PledgeSettings

PARKED_MAX: Final = 100_000  # of one endpoint; what is beyond comes back by its own back-off
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
        self.unreached: list[str] = []  # of the failures that may close it

    @property
    def idle(self) -> bool:
        return not (self.in_flight or self.waiting or self.parked or self.closed)

    @property
    def reason(self) -> str:
        if self.closed:
            return f"not called: {self.name} was not reached {self.failures} times in a row; {self.last_error}"
        return f"not called: too many calls wait for {self.name}"


class Endpoints:
    """`jitter` gives numbers in [0, 1); `on_return` is called when an endpoint answers again."""

    def __init__(self, settings: PledgeSettings, *, jitter: Callable[[], float], on_return: Callable[[], None]) -> None:
        self._settings = settings
        self._jitter = jitter
        self._on_return = on_return
        self._endpoints: dict[str, Endpoint] = {}
        self._names: dict[str, str] = {}  # of urls
        self._crowded: dict[str, Endpoint] = {}  # where calls wait
        self._ready: deque[Endpoint] = deque()  # of these, the ones with a place: they take turns
        self._closed: dict[str, Endpoint] = {}
        self._parking: dict[str, Endpoint] = {}  # where pledges are parked
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
        """True: make the call, then `leave`. False: it is not to be made. A future: one of both, later.

        Who gives up waiting cancels the future.
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
        """`returns` is the endpoint's `returns_count` when the call entered. One that it has outlasted tells nothing of
        the endpoint as it is now; if it was in vain it is called again as soon as those that were parked."""
        endpoint.in_flight -= 1
        self.in_flight -= 1
        if reached:
            if endpoint.failures:  # else it is open, and nothing is remembered against it
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
        """Leave without having learnt anything: the call was cancelled."""
        endpoint.in_flight -= 1
        self.in_flight -= 1
        endpoint.probing = False
        self._admit_waiting(endpoint)

    def _make_ready(self, endpoint: Endpoint) -> None:
        if not endpoint.ready and endpoint.waiting and endpoint.in_flight < self._settings.calls_per_endpoint_max:
            endpoint.ready = True
            self._ready.append(endpoint)

    def _admit_waiting(self, endpoint: Endpoint) -> None:
        """A call of `endpoint` has left. Whose turn it is gets the place, which may be another endpoint."""
        self._make_ready(endpoint)
        while self._ready and self.in_flight < self._settings.calls_max:
            first = self._ready.popleft()
            first.ready = False
            self._admit_first(first)
            self._make_ready(first)

    def _admit_first(self, endpoint: Endpoint) -> None:
        while endpoint.waiting:
            first = endpoint.waiting.popleft().admitted
            if not first.done():  # else its owner gave up
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
        self._turn_away(endpoint)

    def _schedule_probe(self, endpoint: Endpoint, interval_s: float, now_s: float) -> None:
        endpoint.probe_interval_s = min(interval_s, self._settings.probe_interval_max_s)
        endpoint.probe_at_s = now_s + endpoint.probe_interval_s * (0.5 + 0.5 * self._jitter())

    def _turn_away(self, endpoint: Endpoint) -> None:
        waiting, endpoint.waiting = endpoint.waiting, deque()
        self._crowded.pop(endpoint.name, None)
        for item in waiting:
            if not item.admitted.done():
                item.admitted.set_result(False)

    def sweep(self, now_s: float) -> None:
        """Turn away who waited too long."""
        for endpoint in tuple(self._crowded.values()):
            while endpoint.waiting and endpoint.waiting[0].until_s <= now_s:
                item = endpoint.waiting.popleft()
                if not item.admitted.done():
                    item.admitted.set_result(False)
            if not endpoint.waiting:
                del self._crowded[endpoint.name]

    # ------------------------------------------------------------------------------------------- parking

    def park(self, endpoint: Endpoint, gid: str) -> None:
        """It could not enter; it is to be called when it can."""
        if len(endpoint.parked) < PARKED_MAX:
            endpoint.parked[gid] = None
            self._parking[endpoint.name] = endpoint

    def _park_unreached(self, endpoint: Endpoint) -> None:
        for gid in endpoint.unreached:
            self.park(endpoint, gid)
        endpoint.unreached.clear()

    def unpark(self, endpoint: Endpoint, count: int) -> list[str]:
        """Those that are parked longest."""
        gids = list(islice(endpoint.parked, count))
        for gid in gids:
            del endpoint.parked[gid]
        if not endpoint.parked:
            self._parking.pop(endpoint.name, None)
        return gids

    def room(self, endpoint: Endpoint, *, now_s: float) -> int:
        """How many parked ones may be called now; of a closed endpoint one, when its probe is due."""
        if endpoint.closed:
            return 0 if endpoint.probing or now_s < endpoint.probe_at_s else 1
        places = self._settings.calls_per_endpoint_max
        return max(0, 2 * places - endpoint.in_flight - len(endpoint.waiting))

    def parking(self) -> tuple[Endpoint, ...]:
        return tuple(self._parking.values())

    def hasten(self, url: str) -> None:
        """Somebody wants it tried now: the next call is the probe."""
        self.of(url).probe_at_s = 0.0

    def turn_all_away(self) -> None:
        """Nothing is called any more."""
        for endpoint in tuple(self._crowded.values()):
            self._turn_away(endpoint)

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
    """What a call of this URL can be hindered by: scheme, host and port, or the queue."""
    if "://" not in url:
        return f"grpc://{url.partition('/')[0]}"
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # nothing to call there; its caller will say so
        return url
    if parts.scheme == "queue":
        return f"queue://{parts.netloc}"
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
