"""Data folders that peers of an earlier version wrote are opened and served by peers of this one.

`write_compatibility_data.py` wrote the folders, and what the earlier peers showed of them. There are two clusters: one
peer that was killed, so that its log is replayed, and three peers that were stopped in order.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.compatibility_view import call, value_of, view

import avow
from avow.client.blocking import BlockingClient
from avow.errors import Offline, UnknownQueue
from avow.testing.cluster import LocalCluster, wait_until

KEPT = Path(__file__).parent / "compatibility"
SETTINGS = {"pledge_keep_s": str(3650 * 24 * 3600)}  # the delivered pledge was finished long ago
Shown = dict[str, Any]


@pytest.mark.parametrize(("folder", "peers"), [("one", 1), ("three", 3)])
@pytest.mark.parametrize("commit", ["dcd3e62"])
def test_a_folder_of_an_earlier_version_opens_and_serves(folder: str, peers: int, commit: str, tmp_path: Path) -> None:
    expected: Shown = json.loads((KEPT / f"{commit}.json").read_text())[folder]
    with tarfile.open(KEPT / f"{commit}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with LocalCluster(peers, folder=tmp_path / folder, settings=SETTINGS) as cluster:
        check_shown_by_all(cluster, expected)
        with avow.connect_blocking(cluster.addresses, timeout_s=60.0) as client:
            check_repeated_writes(cluster, expected)
            check_repeated_decisions(cluster, expected)
            check_shown_by_all(cluster, expected)
            check_pledges_go_on(cluster)
            check_reading_goes_on(client, expected)
            check_writing_goes_on(client, expected)
        grown = wait_until(partial(agreed, cluster, expected["writes"]), timeout_s=60.0, what="all peers show the same")
        assert grown is not None
        check_grown(grown, expected)
        for number in cluster.running:
            cluster.kill(number)
        for number in cluster.founders:
            cluster.restart(number, ready=False)
        cluster.wait_ready()
        check_shown_by_all(cluster, grown)


# ---------------------------------------------------------------------- what it shows


def check_shown_by_all(cluster: LocalCluster, expected: Shown) -> None:
    """By each peer, once it has caught up with the others."""
    for number in cluster.founders:
        look = partial(view, cluster.api(number), writes=expected["writes"])
        with suppress(Offline):  # differences are reported below
            wait_until(partial(shows, look, expected), timeout_s=60.0)
        assert look() == expected


def shows(look: Callable[[], Shown], expected: Shown) -> bool:
    return look() == expected


def agreed(cluster: LocalCluster, writes: list[dict[str, Any]]) -> Shown | None:
    """The view of all peers. Coordinators and owners are among them, so nothing acknowledged is missing."""
    first, *others = [view(cluster.api(number), writes=writes) for number in cluster.founders]
    return first if all(other == first for other in others) else None


def check_grown(grown: Shown, expected: Shown) -> None:
    """Every old message has its version, content and time, and a new one follows it."""
    assert grown["writes"] == expected["writes"]
    for name, queue in expected["queues"].items():
        lanes = grown["queues"][name]["lanes"]
        for number, lane in queue["lanes"].items():
            assert lanes[number]["messages"][: len(lane["messages"])] == lane["messages"], name
        assert [value_of(message) for lane in lanes.values() for message in lane["messages"]].count(b"new") == 1, name


# ---------------------------------------------------------------------- repeated requests


def check_repeated_writes(cluster: LocalCluster, expected: Shown) -> None:
    """Each write id is answered with its first outcome, through any peer, in lanes of both strategies."""
    assert {queue["strategy"] for queue in expected["queues"].values()} == {"two-phase", "pub-sub"}
    for index, write in enumerate(expected["writes"]):
        api = cluster.api(index % len(cluster.founders) + 1)
        path = f"/v1/queues/{write['queue']}/messages?lane={write['lane']}&write_id={write['write_id']}"
        answer = call(api, "POST", path, {"messages": [{"value": "again"}]})
        first, last = write["versions"]
        written = [{"lane": write["lane"], "first_version": first, "last_version": last}]
        assert answer == (200, {"write_id": write["write_id"], "written": written})


def check_repeated_decisions(cluster: LocalCluster, expected: Shown) -> None:
    """The transaction that was left open is discarded here, or was by its deadline, a day after it was written."""
    spans = [{"lane": 0, "first_version": 2, "last_version": 3}, {"lane": 1, "first_version": 1, "last_version": 2}]
    for queue in {"staged", "trimmed-long"} & expected["queues"].keys():
        path = f"{cluster.api(1)}/v1/queues/{queue}/transactions"
        assert call(path, "POST", "/published/publish") == (200, {"published": spans})
        for name in ("discarded", "open"):
            assert call(path, "POST", f"/{name}/discard?lane=0") == (200, {"discarded": [{"lane": 0}]})
        for request in ("published/discard", "discarded/publish?lane=0", "open/publish?lane=0"):
            status, refusal = call(path, "POST", f"/{request}")
            assert (status, refusal["error"]["code"]) == (409, "ALREADY_DECIDED")


# ---------------------------------------------------------------------- unfinished transactions and pledges


def check_pledges_go_on(cluster: LocalCluster) -> None:
    """A delivered one is not delivered again, a prepared one is submitted and delivered, a delayed one waits."""
    path = f"{cluster.api(1)}/v1/pledges"
    again = {"branches": [{"url": "queue://pledged?key=k", "payload": "delivered"}]}
    status, reply = call(path, "POST", "/delivered/submit", again)
    assert (status, reply["status"], reply["repeated"]) == (200, "succeeded", True)
    status, reply = call(path, "POST", "/prepared/submit", {})
    assert (status, reply["status"], reply["repeated"]) == (200, "submitted", False)
    wait_until(lambda: call(path, "GET", "/prepared")[1]["status"] == "succeeded", timeout_s=60.0)
    assert call(path, "GET", "/submitted")[1]["delivery"] == "delayed"


def check_reading_goes_on(client: BlockingClient, expected: Shown) -> None:
    """Behind the cursors: one that a channel committed, and one that is moved."""
    streamed = expected["queues"]["streamed"]
    cursor = streamed["subscribers"]["channel reader"]["versions"]
    wanted = {lane: reply["messages"][cursor.get(lane, 0) :] for lane, reply in streamed["lanes"].items()}
    left = sorted(value_of(message) for messages in wanted.values() for message in messages)
    assert 0 < len(left) < 20, "the channel committed some, not all"
    found: list[bytes] = []
    with client.subscribe("streamed", "channel reader") as batches:
        for batch in batches:
            found += batch.values()
            batch.commit()
            if len(found) >= len(left):
                break
    assert sorted(found) == left
    assert client.queue("orders").move_cursor("billing", {0: 1}).versions == {0: 2}, "a cursor moves forward only"
    assert client.queue("orders").move_cursor("billing", {0: 4}).versions == {0: 4}


def check_writing_goes_on(client: BlockingClient, expected: Shown) -> None:
    """Appends to each queue; a deleted queue is gone, and its name is free."""
    with pytest.raises(UnknownQueue):
        client.queue("deleted").enqueue(b"new")
    client.create_queue("deleted")
    for name in [*expected["queues"], "deleted"]:
        lanes = expected["queues"].get(name, {"lanes": {}})["lanes"]
        done = client.queue(name).enqueue(b"new")
        known = lanes.get(str(done.lane), {"end": 0})["end"] + (name == "pledged")  # and the pledge just delivered
        assert done.first_version == known + 1
    with client.queue("staged").transaction() as transaction:
        transaction.enqueue_many([b"staged anew"] * 3, lane=1)
    assert client.queue("orders").enqueue_many([b"a", b"b"], keys=[b"k", None])[0].lane == 0
