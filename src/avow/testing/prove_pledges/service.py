"""The service that is killed: it makes pledges, takes deliveries, answers checkbacks, and dies where it is told to.

    POST /pledge       an Order as JSON; answers with the name of the outcome when the pledge is made
    POST /in           a branch
    GET  /checkback

It is a process of its own, run by `Program`: `python -m avow.testing.prove_pledges.service --database .. --peers ..`.
The points stand here and in places.py, around public calls of the client and the barrier; nothing in those knows them.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import time
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

from avow.barrier.web import answer
from avow.client.blocking import BlockingClient, connect_blocking
from avow.client.blocking_pledge import BlockingPledge
from avow.client.pledge import Pledge, PledgeCalls
from avow.client.pledge_outcomes import Committed, CommittedPending
from avow.errors import AvowError
from avow.testing import responding
from avow.testing.prove_pledges.crashes import ASKED, Crashes, Order, Point
from avow.testing.prove_pledges.places import Place, place_of

QUEUE: Final = "pledged"
BRANCHES: Final = ("01", "02")  # by HTTP; the third is a message of the queue
SLOW_S: Final = 0.9
PATIENCE_S: Final = 5.0  # of the client: how long it repeats a request before it gives up
_ORDER: Final = msgspec.json.Decoder(Order)  # made by one thread: two that meet a type for the first time can crash
PLEDGED: Final = {"timeout_to_fail_s": 0.3, "retry_interval_s": 0.2, "request_timeout_s": 1.5}


class DyingCalls(PledgeCalls):
    """The calls of a pledge, with points around them."""

    def __init__(self, calls: Pledge, crashes: Crashes) -> None:
        super().__init__(calls._cluster, calls.gid, calls._options)
        self._crashes = crashes

    async def prepare(self, checkback: str) -> None:
        self._crashes.at("before-prepare", self.gid)
        await super().prepare(checkback)
        self._crashes.at("after-prepare", self.gid)

    async def committed(self, *, result: Any = None) -> Committed:
        self._crashes.at("after-commit", self.gid)
        if self._is_silent():
            return CommittedPending(self.gid, "prepared", "told nobody, on purpose")
        outcome = await super().committed(result=result)
        self._crashes.at("after-submit", self.gid)
        return outcome

    def abandon(self) -> None:
        if not self._is_silent():
            super().abandon()

    def _is_silent(self) -> bool:
        return self._crashes.expects(self.gid) in ASKED


class Service:
    def __init__(self, place: Place, client: BlockingClient) -> None:
        self._place, self._client = place, client
        self._crashes = Crashes()
        self.url = ""

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/pledge":
            return 200, self._pledge(_ORDER.decode(body)).encode()
        if parts.path == "/in":
            return self._branch(query)
        if parts.path == "/checkback" and method == "GET":
            return self._checkback(query)
        return 404, b""

    def _pledge(self, order: Order) -> str:
        if order.plan is not None:
            self._crashes.arm(order.gid, order.plan)
        calls = DyingCalls(self._client._client.pledge(order.gid, **cast(Any, PLEDGED)), self._crashes)
        pledge = BlockingPledge(self._client._thread, calls)
        for branch in BRANCHES:
            pledge.call(f"{self.url}/in?number={branch}", {"gid": order.gid})
        pledge.publish(QUEUE, order.gid)
        try:
            outcome = self._place.pledge(
                pledge,
                checkback=f"{self.url}/checkback",
                commit=order.commit,
                passing=lambda point: self._passing(cast(Point, point), order.gid),
            )
        except AvowError as error:
            return f"raised {error.code}"
        return type(outcome).__name__

    def _passing(self, point: Point, gid: str) -> None:
        if point == "slow-work" and self._crashes.expects(gid) == point:
            time.sleep(SLOW_S)
        self._crashes.at(point, gid)

    def _branch(self, query: Mapping[str, str]) -> tuple[int, bytes]:
        gid = query["gid"]
        self._crashes.at("branch-called", gid)
        self._place.branch(query, lambda point: self._crashes.at(cast(Point, point), gid))
        self._crashes.at("branch-committed", gid)
        return 200, b""

    def _checkback(self, query: Mapping[str, str]) -> tuple[int, bytes]:
        self._crashes.at("checkback-called", query["gid"])
        said = answer(query, self._place.check_back)
        self._crashes.at("checkback-answered", query["gid"])
        return said.status, said.body


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--port", type=int, default=0)
    return parser


def serve(place: Place, *, peers: str, port: int) -> None:
    """Until it is killed. SIGUSR1 makes it write where each of its threads is."""
    faulthandler.register(signal.SIGUSR1)
    responding.serve(Service(place, connect_blocking(peers, timeout_s=PATIENCE_S)), port=port)


def main() -> None:
    given = flags().parse_args()
    serve(place_of(given.database), peers=given.peers, port=given.port)


if __name__ == "__main__":
    main()
