"""The service under test: it makes pledges, takes deliveries, answers checkbacks, and is killed at a given point.

    POST /pledge       an Order as JSON; answers with the name of the outcome when the pledge is made
    POST /in           a branch
    GET  /checkback

It is a separate process: `python -m avow_lab.campaigns.pledges.service --database .. --peers ..`. The crash points are
here and in databases.py, around public calls of the client and the barrier; the product does not know them.
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
from avow_lab.campaigns.harness import http_responder
from avow_lab.campaigns.pledges.databases import Database, open_database
from avow_lab.campaigns.pledges.runs import ASKED, Crashes, Order, Point

QUEUE: Final = "pledged"
BRANCHES: Final = ("01", "02")  # by HTTP; the third is a message of the queue
SLOW_S: Final = 0.9
CLIENT_TIMEOUT_S: Final = 5.0
_ORDER: Final = msgspec.json.Decoder(Order)  # made once: threads that build it at the same time can crash
PLEDGED: Final = {"timeout_to_fail_s": 0.3, "retry_interval_s": 0.2, "request_timeout_s": 1.5}


class CrashingCalls(PledgeCalls):
    """The calls of a pledge, with crash points around them."""

    def __init__(self, calls: Pledge, crashes: Crashes) -> None:
        super().__init__(calls._cluster, calls.gid, calls._options)
        self._crashes = crashes

    async def prepare(self, checkback: str) -> None:
        self._crashes.at("before-prepare", self.gid)
        await super().prepare(checkback)
        self._crashes.at("after-prepare", self.gid)

    async def committed(self, *, result: Any = None) -> Committed:
        self._crashes.at("after-commit", self.gid)
        if self._awaits_checkback():
            return CommittedPending(self.gid, "prepared", "not submitted, so that a checkback decides it")
        outcome = await super().committed(result=result)
        self._crashes.at("after-submit", self.gid)
        return outcome

    def abandon(self) -> None:
        if not self._awaits_checkback():
            super().abandon()

    def _awaits_checkback(self) -> bool:
        return self._crashes.expects(self.gid) in ASKED


class Service:
    def __init__(self, database: Database, client: BlockingClient) -> None:
        self._database, self._client = database, client
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
        calls = CrashingCalls(self._client._client.pledge(order.gid, **cast(Any, PLEDGED)), self._crashes)
        pledge = BlockingPledge(self._client._thread, calls)
        for branch in BRANCHES:
            pledge.call(f"{self.url}/in?number={branch}", {"gid": order.gid})
        pledge.publish(QUEUE, order.gid)
        try:
            outcome = self._database.pledge(
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
        self._database.branch(query, lambda point: self._crashes.at(cast(Point, point), gid))
        self._crashes.at("branch-committed", gid)
        return 200, b""

    def _checkback(self, query: Mapping[str, str]) -> tuple[int, bytes]:
        self._crashes.at("checkback-called", query["gid"])
        result = answer(query, self._database.check_back)
        self._crashes.at("checkback-answered", query["gid"])
        return result.status, result.body


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--port", type=int, default=0)
    return parser


def serve(database: Database, *, peers: str, port: int) -> None:
    """Runs until it is killed. On SIGUSR1 it writes the stack of each thread to its log."""
    faulthandler.register(signal.SIGUSR1)
    http_responder.serve(Service(database, connect_blocking(peers, timeout_s=CLIENT_TIMEOUT_S)), port=port)


def main() -> None:
    given = flags().parse_args()
    serve(open_database(given.database), peers=given.peers, port=given.port)


if __name__ == "__main__":
    main()
