"""Everything that one peer shows of its queues, cursors, writes and pledges over HTTP, as values to compare."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from base64 import b64decode
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote_to_bytes

PATIENCE_S = 60.0
JSON = "application/json"
PLEDGES = ("delivered", "prepared", "submitted")
_PLEDGE_KEYS = (
    "gid",
    "status",
    "created_ms",
    "not_before_ms",
    "finished_ms",
    "checkback",
    "options",
    "custom_data",
    "branches",
    "attempts",
)


def view(api: str, *, writes: list[dict[str, Any]]) -> dict[str, Any]:
    """Without the parts that every start changes: coordinators, epochs, and lanes without messages."""
    queues = _get(api, "/v1/queues")["queues"]
    return {
        "queues": {queue["name"]: _queue(api, queue) for queue in queues},
        "writes": [_write(api, **write) for write in writes],
        "pledges": [{key: _get(api, f"/v1/pledges/{gid}")[key] for key in _PLEDGE_KEYS} for gid in PLEDGES],
    }


def values_of(shown: dict[str, Any]) -> dict[str, dict[str, list[bytes]]]:
    """Queue -> lane -> values."""
    return {
        name: {
            lane: [value_of(message) for message in lane_view["messages"]] for lane, lane_view in queue["lanes"].items()
        }
        for name, queue in shown["queues"].items()
    }


def value_of(message: dict[str, Any]) -> bytes:
    return message["value"].encode() if "value" in message else b64decode(message["value_base64"])


def written_values(values: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[bytes]]]:
    """The same, from the writes that the program reported."""
    return {
        queue: {lane: [unquote_to_bytes(value) for value in found] for lane, found in lanes.items()}
        for queue, lanes in values.items()
    }


def _queue(api: str, queue: dict[str, Any]) -> dict[str, Any]:
    path = f"/v1/queues/{quote(queue['name'])}"
    lanes = {str(lane["lane"]): _lane(api, path, lane) for lane in queue["lanes"] if lane["end"]}
    subscribers = _get(api, f"{path}/subscribers")["subscribers"]
    cursors = {one["name"]: {"versions": one["versions"], "hold": one["hold"]} for one in subscribers}
    kept = {key: queue[key] for key in ("strategy", "peers", "retention")}
    return {**kept, "lanes": lanes, "subscribers": cursors}


def _lane(api: str, path: str, lane: dict[str, Any]) -> dict[str, Any]:
    path = f"{path}/messages?lane={lane['lane']}&after={lane['trimmed_to']}&max=10000"
    status, body = ask(api, "GET", path)
    kept = {key: lane[key] for key in ("number", "end", "trimmed_to", "voters")}
    if status == HTTPStatus.GONE:  # trimmed since the lane was described: the peer is still catching up
        return {**kept, "messages": None}
    assert status == HTTPStatus.OK, f"GET {path}: {body!r}"
    return {**kept, "messages": [json.loads(line) for line in body.splitlines()]}


def _write(api: str, *, queue: str, lane: int, write_id: str, **_: Any) -> dict[str, Any]:
    """The peer's answer to a lookup of a write."""
    (found,) = _get(api, f"/v1/queues/{quote(queue)}/writes/{write_id}?lane={lane}")["written"]
    versions = [found["first_version"], found["last_version"]]
    return {"queue": queue, "lane": found["lane"], "write_id": write_id, "versions": versions}


def call(api: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the body, of a refusal as well."""
    sent = None if body is None else json.dumps(body).encode()
    status, answer = ask(api, method, path, sent)
    return status, json.loads(answer)


def _get(api: str, path: str) -> Any:
    status, answer = call(api, "GET", path)
    assert status == 200, f"GET {path}: {answer}"
    return answer


def ask(api: str, method: str, path: str, body: bytes | None = None, *, kind: str = JSON) -> tuple[int, bytes]:
    """Repeated while the answer is 503: nobody coordinates the lane yet. Every request here may be repeated."""
    headers = {} if body is None else {"content-type": kind}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        request = urllib.request.Request(api + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code != 503 or time.monotonic() > deadline:
                    return refusal.code, refusal.read()
        time.sleep(0.05)
