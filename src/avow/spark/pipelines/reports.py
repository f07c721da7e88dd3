"""What pipelines have reported in a cluster: the last word of each, as `avow pipeline list --api` shows it.

A report says what was true when it was made. A run that is killed makes none, so one that was alive and has not been
heard for `SILENT_S` has died, as far as anybody can tell from here. Reports are forgotten by the queue after a day, and
a pipeline with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from avow.errors import UnknownQueue
from avow.limits import PIPELINES_QUEUE
from avow.spark.pipelines.reporting import ALIVE, Report

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient

SILENT_S: Final = 10.0


def read_reports(client: BlockingClient, queue: str = PIPELINES_QUEUE) -> list[Report]:
    """The last of each pipeline, by name; none where nothing was ever reported. Raises what a read raises."""
    found: dict[bytes, bytes] = {}
    try:
        for batch in client.queue(queue).read():
            found |= {message.key or b"": message.value for message in batch.messages()}
    except UnknownQueue:
        return []
    return judged(_decoded(found.values()), now_s=time.time())


def judged(reports: Iterable[Report], *, now_s: float) -> list[Report]:
    """As they are to be shown at this time. Pure."""
    silent = [
        replace(one, state="died") if one.state in ALIVE and now_s - one.at_s > SILENT_S else one for one in reports
    ]
    return sorted(silent, key=lambda one: one.name)


def _decoded(values: Iterable[bytes]) -> list[Report]:
    """Anybody with the right may write to the queue: what is no report is passed over."""
    found = []
    for value in values:
        try:
            found.append(msgspec.json.decode(value, type=Report))
        except msgspec.DecodeError:
            continue
    return found
