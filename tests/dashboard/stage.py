"""A cluster with something to see in it: queues, subscribers, pledges of every kind, reports of pipelines.

All of it goes through the public API, as an application would do it.
"""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
from typing import Any

from avow.testing.cluster import LocalCluster, wait_until

DISCARD = "http://127.0.0.1:9"  # nobody listens there
PLEDGES = ("paid", "waiting", "given-up", "undecided")


def ask(
    cluster: LocalCluster, method: str, path: str, body: Any = None, *, token: str | None = None, peer: int = 0
) -> Any:
    """One call of the API, by default at the first running peer. Raises HTTPError."""
    request = urllib.request.Request(cluster.api(peer or cluster.running[0]) + path, method=method)
    request.add_header("content-type", "application/json")
    secret = cluster.token if token is None else token
    if secret:
        request.add_header("authorization", f"Bearer {secret}")
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, data, timeout=60) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None
    return json.loads(text) if text else None


def create(cluster: LocalCluster, name: str, **more: Any) -> None:
    ask(cluster, "POST", "/v1/queues", {"name": name, **more})


def write(cluster: LocalCluster, queue: str, *values: str, **message: Any) -> list[dict[str, int]]:
    """Repeated with the same write id while a coordinator that has just died leaves open what happened."""
    body = {"messages": [{"value": value, **message} for value in values]}
    path = f"/v1/queues/{queue}/messages?write_id={secrets.token_hex(16)}"

    def written() -> list[dict[str, int]]:
        try:
            done: list[dict[str, int]] = ask(cluster, "POST", path, body)["written"]
        except AssertionError as error:
            if '"retriable":true' not in str(error):
                raise
            return []
        return done

    return wait_until(written, what=f"a write to {queue}")


def fill(cluster: LocalCluster) -> None:
    create(cluster, "orders", lanes=2, retention={"age_s": 604_800})
    create(cluster, "payments")
    create(cluster, "news", strategy="pub-sub")
    for number in range(40):
        order = {"order": 1000 + number, "item": ("tea", "book", "lamp")[number % 3], "amount": 5 + number % 7}
        write(cluster, "orders", json.dumps(order), key=f"customer {number % 9}", headers={"trace": f"{number:08x}"})
        write(cluster, "payments", json.dumps({"order": 1000 + number, "paid": True}), key=f"customer {number % 9}")
    write(cluster, "news", "the shop is open", "there is tea again")
    ask(cluster, "PUT", "/v1/queues/orders/subscribers/billing", {"versions": {"0": 12, "1": 9}})
    ask(cluster, "PUT", "/v1/queues/orders/subscribers/shipping", {"versions": {"0": 3, "1": 2}, "hold": True})
    end = ask(cluster, "GET", "/v1/queues/payments")["lanes"][0]["end"]
    ask(cluster, "PUT", "/v1/queues/payments/subscribers/ledger", {"versions": {"0": end}})


def pledge(cluster: LocalCluster) -> None:
    """One of each kind: delivered, waiting for its next attempt, dead, and one whose transaction nobody knows of."""

    def submit(gid: str, url: str, **options: Any) -> None:
        body = {"branches": [{"url": url, "json": {"amount": 30}}], **options}
        ask(cluster, "POST", f"/v1/pledges/{gid}/submit", body)

    submit("paid", "queue://payments?key=customer", wait_result=True)
    submit("waiting", f"{DISCARD}/ship", retry_interval_s=5)
    submit("given-up", f"{DISCARD}/mail", retry_interval_s=0.1, retry_limit=3)
    undecided = {"branches": [{"url": "queue://payments", "json": {}}], "checkback": f"{DISCARD}/checkback"}
    ask(cluster, "POST", "/v1/pledges/undecided/prepare", undecided)
    wait_until(lambda: status(cluster, "given-up") == "dead", what="the pledge to be given up")


def status(cluster: LocalCluster, gid: str) -> str:
    found: str = ask(cluster, "GET", f"/v1/pledges/{gid}")["status"]
    return found


def report(cluster: LocalCluster, name: str, *, seconds: int = 1, **given: Any) -> None:
    """Reports of a pipeline in the queue `avow.pipelines`, one for each second up to now."""
    now = time.time()
    for ago in range(seconds - 1, -1, -1):
        rows = 1000 * (seconds - ago)
        pipeline_report = {
            "name": name,
            "kind": "transform",
            "state": "running",
            "pid": 4711,
            "host": "here",
            "error": "",
        }
        pipeline_report |= {"started_s": now - seconds, "at_s": now - ago, "rows": rows, "batches": rows // 500}
        pipeline_report |= {
            "batch_rows": 500,
            "batch_s": 0.4,
            "rows_per_s": 1000.0 + 50 * (ago % 5),
            "lag": 20 * (ago % 7),
        }
        write(cluster, "avow.pipelines", json.dumps(pipeline_report | given), key=name)
