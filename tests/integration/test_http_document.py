"""The OpenAPI document is true: requests made from it, by schemathesis, get answers that it describes.

Each operation is asked with generated requests, most of them about queues that exist, so that they reach beyond "there
is no such queue". The run is bounded and always the same. Server errors count as failures; the two that a healthy peer
may give by design (OFFLINE to a reader who waits for what never comes, or for a lane nobody knows) are named below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.integration.http_peer import PeerProcess, serving, wait_until

from avow.server.http.openapi import document
from avow.server.http.route import Route
from avow.server.http.routes import ROUTES

EXAMPLES = 60
DOCUMENT = document(version="0")
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: Operations that may be OFFLINE on a healthy peer: a version that never comes, a pub-sub lane that was never opened.
MAY_BE_OFFLINE = {"read", "look_up_write", "enqueue"}
QUEUES = ["orders", "wide", "news"]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer")) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer
        assert peer.alive
        assert peer.ask("GET", "/readyz").status == 200


@pytest.fixture(autouse=True)
def _queues(peer: PeerProcess) -> None:
    """They are there at the start of each operation, even after one that deletes."""
    for wanted in (
        {"name": "orders"},
        {"name": "wide", "lanes": 3},
        {"name": "news", "strategy": "pub-sub"},
    ):
        if peer.ask("POST", "/v1/queues", wanted).status == 409:  # an operation has given it other rules
            assert peer.ask("PATCH", f"/v1/queues/{wanted['name']}", {"retention": {}}).status == 200
        if wanted["name"] != "news":
            body = {"messages": [{"value": "a"}, {"value_base64": "/w==", "key": "k"}]}
            assert peer.ask("POST", f"/v1/queues/{wanted['name']}/messages", body).status == 200


def test_a_peer_serves_this_document(peer: PeerProcess) -> None:
    served = peer.ask("GET", "/v1/openapi.json").json
    assert served["paths"] == DOCUMENT["paths"]
    assert served["components"] == DOCUMENT["components"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_answers_match_the_document(peer: PeerProcess, route: Route) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    operation = schema[route.path][route.method]

    @seed(20)
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(),
        queue=st.sampled_from([*QUEUES, None]),
        tame=st.sampled_from([True, True, True, False]),
    )
    def ask(case: Any, queue: str | None, tame: bool) -> None:
        _steer(case, queue, tame=tame)
        answer = case.call(base_url=peer.url, timeout=30)
        offline = answer.status_code == 503 and route.operation in MAY_BE_OFFLINE
        assert not offline or answer.json()["error"]["code"] == "OFFLINE"
        checks = [check for check in CHECKS if not (offline and check is not_a_server_error)]
        case.validate_response(answer, checks=checks)

    ask()


def _steer(case: Any, queue: str | None, *, tame: bool) -> None:
    """Away from long waits; and `tame`, towards existing things: names, lanes, versions, one value in each message."""
    path, query, body = case.path_parameters or {}, dict(case.query or {}), case.body
    if case.operation.definition.raw["operationId"] == "read" or "timeout_s" in query:
        query["timeout_s"] = 0.05 if case.method == "GET" else 5
    if "wait_s" in query:
        query["wait_s"] = 0.05
    if tame:
        path.update({name: value for name, value in _TAME.items() if name in path})
        query = {name: value for name, value in query.items() if name not in ("lane", "expected", "after")}
        if isinstance(body, dict):
            body.update({name: value for name, value in _TAME.items() if name in body})
            if "messages" in body:
                body["messages"] = [{"value": repr(message)} for message in body["messages"]]
    if queue is not None and "queue" in path:
        path["queue"] = queue
    case.query = query or case.query


_TAME = {
    "lane": 0,
    "version": 2,
    "txn": "t",
    "name": "a name",
    "link": "127.0.0.1:1",
    "api": "http://127.0.0.1:2",
    "upto_version": 0,
    "versions": {"0": 1},
    "peers": [1],
}
