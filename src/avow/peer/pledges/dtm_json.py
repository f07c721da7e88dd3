"""Pledges as the objects of dtm's `query`, `all` and `scanKV`: its field names, its statuses, its times.

Empty fields are left out, as dtm does, except those it never leaves out. Numbers of rows do not exist here: `id` is 0.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec

from avow.peer.pledges.dtm import STATUSES
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Branch, BranchProgress, Options, Pledge
from avow.pledge.store import Topic


def transaction(pledge: Pledge, *, retry_interval_s: float) -> dict[str, Any]:
    content, progress = pledge.content, pledge.progress
    options = state.options_of(content, progress)
    said = _options(options)
    found: dict[str, Any] = {
        "id": 0,
        "create_time": moment(progress.created_ms),
        "update_time": moment(progress.updated_ms),
        "gid": content.gid,
        "trans_type": "msg",
        "status": STATUSES[progress.status],
        "query_prepared": content.checkback,
        "protocol": content.protocol or "http",
        "finish_time": moment(progress.finished_ms) if progress.status == "succeeded" else None,
        "rollback_time": moment(progress.rollback_ms),
        "rollback_reason": progress.reason,
        "options": msgspec.json.encode(said).decode(),
        "custom_data": content.custom_data,
        "next_cron_interval": round(progress.interval_s or options.retry_interval_s or retry_interval_s),
        "next_cron_time": moment(progress.next_at_ms) if progress.next_at_ms < NEVER_MS else None,
    }
    always = ("id", "create_time", "update_time")
    kept = {name: value for name, value in found.items() if value or name in always}
    return {**kept, **said}


def _options(options: Options) -> dict[str, Any]:
    given = {
        "wait_result": options.wait_result,
        "timeout_to_fail": round(options.timeout_to_fail_s or 0),
        "request_timeout": round(options.request_timeout_s or 0),
        "retry_interval": round(options.retry_interval_s or 0),
        "branch_headers": options.branch_headers,
        "retry_limit": options.retry_limit,
    }
    return {**{name: value for name, value in given.items() if value}, "concurrent": options.concurrent}


def branches(pledge: Pledge) -> list[dict[str, Any]]:
    pairs = zip(pledge.content.branches, pledge.progress.branches, strict=True)
    return [_branch(pledge, branch, done) for branch, done in pairs]


def _branch(pledge: Pledge, branch: Branch, done: BranchProgress) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gid": pledge.gid,
        "url": branch.url,
        "bin_data": b64encode(branch.payload).decode(),
        "branch_id": branch.branch_id,
        "op": "action",
        "status": "succeed" if done.status == "succeeded" else done.status,
        "finish_time": moment(done.finished_ms),
    }
    times = {"create_time": moment(pledge.progress.created_ms), "update_time": moment(pledge.progress.updated_ms)}
    return {"id": 0, **times, **{name: value for name, value in found.items() if value}}


def topic_row(topic: Topic) -> dict[str, Any]:
    subscribers = [{"url": url, "remark": remark} for url, remark in topic.subscribers]
    return {
        "id": 0,
        "create_time": moment(topic.created_ms),
        "update_time": moment(topic.updated_ms),
        "cat": "topics",
        "k": topic.name,
        "v": msgspec.json.encode(subscribers).decode(),
        "version": topic.version,
    }


def moment(at_ms: int) -> str | None:
    """As Go writes a time; None: never."""
    if not at_ms:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
