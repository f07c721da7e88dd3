"""kill -9 of peers of a cluster of three while they deliver: everything arrives, into queues exactly once."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_peer import wait_until
from tests.integration.pledge_services import Service

from avow.errors import Offline
from avow.queue.key_to_lane import lane_for
from avow.testing.cluster import LocalCluster

PLEDGES = 240


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, settings={"pledge_retry_s": "0.2"}) as cluster:
        ask(cluster, 1, "POST", "/v1/queues", {"name": "transfers", "lanes": 3})
        yield cluster


def ask(cluster: LocalCluster, number: int, method: str, path: str, body: Any = None) -> Any:
    """The decoded answer. Raises OSError when the peer is not there."""
    connection = http.client.HTTPConnection(cluster.api(number).partition("://")[2], timeout=60)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return json.loads(connection.getresponse().read())
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def coordinator(cluster: LocalCluster, gid: str, *, at: int) -> int:
    lanes = ask(cluster, at, "GET", "/v1/queues/avow.pledges")["lanes"]
    return int(lanes[lane_for(gid.encode(), len(lanes))]["coordinator"] or 0)


def delivered(cluster: LocalCluster, number: int) -> Counter[str]:
    """How often each gid is in the queue."""
    found: Counter[str] = Counter()
    for lane in range(3):
        after = 0
        while True:
            path = f"/v1/queues/transfers/messages?lane={lane}&after={after}&max=1000&level=linearizable"
            lines = _lines(cluster, number, path)
            if not lines:
                break
            found.update(line["headers"]["avow-gid"] for line in lines)
            after = lines[-1]["version"]
    return found


def _lines(cluster: LocalCluster, number: int, path: str) -> list[dict[str, Any]]:
    """A peer that has just come back may first answer that it has no quorum yet."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found: list[bytes] = []

    def read() -> bool:
        try:
            with opener.open(cluster.api(number) + path, timeout=60) as answer:
                found.append(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
        return bool(found)

    wait_until(read)
    return [json.loads(line) for line in found[0].splitlines()]


@pytest.mark.parametrize("victim", ["the one that was asked", "the lane's coordinator"])
def test_a_peer_killed_between_submit_and_branch_is_succeeded_by_another(cluster: LocalCluster, victim: str) -> None:
    with Service() as service:
        service.always("/first", 503)
        ask(cluster, 1, "POST", "/v1/pledges/warm/submit", {"branches": [{"url": ""}]})
        gid = next(
            gid
            for gid in (f"gid-{number}" for number in range(1_000))
            if (coordinator(cluster, gid, at=1) == 1) == (victim == "the one that was asked")
        )
        body = {"branches": [{"url": service.url("/first")}, {"url": "queue://transfers", "payload": "once"}]}
        assert ask(cluster, 1, "POST", f"/v1/pledges/{gid}/submit", body)["status"] == "submitted"
        service.wait_for("/first", 1)
        killed = 1 if victim == "the one that was asked" else coordinator(cluster, gid, at=1)
        cluster.kill(killed)
        service.always("/first", 200)
        left = next(number for number in (2, 3, 1) if number != killed)
        wait_until(lambda: _status(cluster, left, gid) == "succeeded")
        assert delivered(cluster, left)[gid] == 1
        cluster.restart(killed)
        assert _status(cluster, killed, gid) == "succeeded"
        assert delivered(cluster, killed)[gid] == 1


def _status(cluster: LocalCluster, number: int, gid: str) -> str:
    found: str = ask(cluster, number, "GET", f"/v1/pledges/{gid}").get("status", "")
    return found


def test_many_pledges_arrive_exactly_once_while_peers_are_killed(cluster: LocalCluster) -> None:
    gids = [f"many-{number}" for number in range(PLEDGES)]

    def submit(number: int) -> None:
        """Like any client: the same gid again, at another peer, until somebody says yes."""
        body = {"branches": [{"url": "queue://transfers", "payload": gids[number]}]}
        for attempt in range(200):
            try:
                reply = ask(
                    cluster, 1 + (number + attempt) % 3, "POST", f"/v1/pledges/{gids[number]}/submit?timeout_s=5", body
                )
            except (OSError, http.client.HTTPException):
                continue
            if reply.get("gid") == gids[number]:
                return
        raise AssertionError(f"{gids[number]} was never taken: {reply}")

    with ThreadPoolExecutor(8) as pool:
        submitted = [pool.submit(submit, number) for number in range(PLEDGES)]
        for victim in (1, 2):
            wait_until(lambda victim=victim: sum(one.done() for one in submitted) >= victim * PLEDGES // 3)  # type: ignore[misc]
            cluster.kill(victim)
            cluster.restart(victim)
        for one in submitted:
            one.result(60)
    wait_until(lambda: _all_arrived(cluster, gids))
    assert delivered(cluster, 3) == Counter(gids)


def _all_arrived(cluster: LocalCluster, gids: list[str]) -> bool:
    try:
        return set(delivered(cluster, 3)) >= set(gids)
    except (OSError, http.client.HTTPException, Offline):
        return False


def test_a_peer_that_has_not_learned_the_queues_calls_none_unknown(cluster: LocalCluster) -> None:
    """The service would trust a wrong answer and roll back."""
    for number in (1, 2, 3):
        cluster.kill(number)
    cluster.restart(1, ready=False)
    body = {"branches": [{"url": "queue://nowhere"}], "checkback": "http://127.0.0.1:9/checkback"}
    assert ask(cluster, 1, "POST", "/v1/pledges/early/prepare", body)["error"]["code"] == "OFFLINE"
    for number in (2, 3):
        cluster.restart(number, ready=False)
    cluster.wait_ready()
    assert ask(cluster, 1, "POST", "/v1/pledges/early/prepare", body)["error"]["code"] == "UNKNOWN_QUEUE"


def test_a_peer_that_joins_gets_its_share_of_the_lanes(cluster: LocalCluster, tmp_path: Path) -> None:
    with Service() as service:
        ask(cluster, 1, "POST", "/v1/pledges/before/submit", {"branches": [{"url": service.url("/a")}]})
        number = cluster.add(folder=tmp_path / "joining")
        wait_until(lambda: _status(cluster, number, "before") == "succeeded")
        reply = ask(cluster, number, "POST", "/v1/pledges/there/submit", {"branches": [{"url": service.url("/b")}]})
        assert reply["status"] == "submitted"
        service.wait_for("/b", 1)
        wait_until(lambda: _status(cluster, 1, "there") == "succeeded")
