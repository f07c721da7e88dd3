"""Alerts about pledges that fail: posts dtm's JSON document to one webhook, without delaying any delivery.

An alert is sent after `alert_after` failed rounds in a row, again each time their number has doubled, and for each
pledge that is given up. A failed checkback counts like a failed branch. An alert that cannot be posted is retried a few
times and then dropped and counted; the pledge's status shows the same facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from avow.pledge.record import Content, Progress
from avow.pledge.settings import PledgeSettings
from avow.pledge.state import CHECKBACK_ID

ALERTS_MAX: Final = 1_024  # waiting alerts; if there are more the oldest is dropped
TRIES: Final = 3
PAUSE_S: Final = 1.0

log: Final = logging.getLogger("avow.pledge")


class PostAlert(Protocol):
    """Posts an alert. Returns an error text, empty on success."""

    def __call__(self, url: str, body: bytes, *, timeout_s: float) -> Awaitable[str]: ...


class Alerts:
    """`pause` waits between two attempts; a test can replace it."""

    def __init__(
        self, settings: PledgeSettings, post: PostAlert, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._settings = settings
        self._post = post
        self._pause = pause
        self._waiting: deque[bytes] = deque()
        self._task: asyncio.Task[None] | None = None
        self.posted_count = self.dropped_count = 0

    def consider(self, content: Content, before: Progress, after: Progress) -> None:
        """Called for each round, with the progress before and after it."""
        if after.status == "dead" and before.status != "dead":
            log.error(
                "pledge %s is dead: %s; last error: %s. Redrive it when the cause is fixed",
                content.gid,
                after.reason,
                after.last_error,
            )
        elif after.failures == before.failures or not _is_doubling(after.failures, self._settings.alert_after):
            return
        if self._settings.alert_webhook:
            self._enqueue(content, after)

    def _enqueue(self, content: Content, progress: Progress) -> None:
        alert = {
            "gid": content.gid,
            "status": progress.status,
            "branch": progress.attempts[-1].branch_id if progress.attempts else CHECKBACK_ID,
            "error": progress.last_error,
            "retry_count": progress.failures,
        }
        if len(self._waiting) >= ALERTS_MAX:
            self._waiting.popleft()
            self.dropped_count += 1
        self._waiting.append(msgspec.json.encode(alert))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._post_all())

    async def _post_all(self) -> None:
        try:
            while self._waiting:
                await self._post_one(self._waiting.popleft())
        finally:
            self._task = None

    async def _post_one(self, alert: bytes) -> None:
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                await self._pause(PAUSE_S * attempt)
            problem = await self._post(self._settings.alert_webhook, alert, timeout_s=self._settings.request_timeout_s)
            if not problem:
                self.posted_count += 1
                return
        self.dropped_count += 1
        log.warning("an alert was dropped: the webhook failed %d times, last with: %s", TRIES, problem)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def statistics(self) -> dict[str, int]:
        return {"alerts_told": self.posted_count, "alerts_dropped": self.dropped_count}


def _is_doubling(failures: int, first: int) -> bool:
    """first, 2 first, 4 first, ..."""
    times, rest = divmod(failures, first)
    return rest == 0 and times > 0 and times & (times - 1) == 0
