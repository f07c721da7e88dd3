"""What a write to Avow can be told, checked before a task is started.

    servers         addresses of peers, http://host:port,...            required
    token, ca       access token; PEM file of the authority for https (on every machine that runs tasks)
    topic           the queue for all rows; without it each row needs a column `topic`
    txnAppId        batch writes: the name of the job that writes,
    txnVersion      and the number of this run of it. The same two again write nothing again. Both or none
    stageDeadline   seconds after which peers drop rows that were staged and never published (default 3600)

Names are Kafka's and Delta's where they have one, and upper and lower case do not matter. An option that means nothing
here is an error that names it: a mistyped `txnAppId` would cost exactly what it was set for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from avow import limits
from avow.errors import InvalidRequest

STAGE_DEADLINE_S: Final = 3600.0
APP_ID_BYTES_MAX: Final = 150  # a transaction's name has a little more beside it
NAMES: Final = ("servers", "token", "ca", "topic", "txnAppId", "txnVersion", "stageDeadline")
_OF_BATCHES: Final = ("txnAppId", "txnVersion")
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})  # Spark hands a stream's own options on


class SinkOptions(Struct, frozen=True):
    """`job` is txnAppId and txnVersion as one name, empty when they were not given."""

    servers: str
    token: str | None = None
    ca: str | None = None
    topic: str | None = None
    job: str = ""
    stage_deadline_s: float = STAGE_DEADLINE_S


def read_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises InvalidRequest that names the option; nothing was written then."""
    named = {name.lower(): name for name in NAMES}
    if unknown := sorted(name for name in given if name.lower() not in named.keys() | _OF_SPARK):
        raise InvalidRequest(
            f"a write to avow has no option {', '.join(unknown)}; it has {', '.join(NAMES)}. Nothing was written"
        )
    found = {named[name.lower()]: value.strip() for name, value in given.items() if name.lower() in named}
    if streaming and (wrong := [name for name in _OF_BATCHES if name in found]):
        raise InvalidRequest(
            f"{' and '.join(wrong)} name a batch write; a stream's batches are named by its checkpoint. "
            "Nothing was written: leave them out"
        )
    if not found.get("servers"):
        raise InvalidRequest(
            'a write to avow needs the addresses of peers: option("servers", "http://host:port,..."). '
            "Nothing was written"
        )
    return SinkOptions(
        servers=found["servers"],
        token=found.get("token") or None,
        ca=found.get("ca") or None,
        topic=_topic(found),
        job=_job(found),
        stage_deadline_s=_deadline(found),
    )


def _topic(found: Mapping[str, str]) -> str | None:
    topic = found.get("topic")
    if topic == "":
        raise InvalidRequest("option topic is empty; name a queue, or leave it out. Nothing was written")
    return topic


def _job(found: Mapping[str, str]) -> str:
    app, version = found.get("txnAppId", ""), found.get("txnVersion", "")
    if not app and not version:
        return ""
    if not app or not version:
        raise InvalidRequest("txnAppId and txnVersion name a write together; give both or none. Nothing was written")
    if not version.isascii() or not version.isdigit():
        raise InvalidRequest(f"txnVersion is a number from 0, not {version!r}; nothing was written")
    if not app.isprintable() or len(app.encode()) > APP_ID_BYTES_MAX:
        raise InvalidRequest(
            f"txnAppId has at most {APP_ID_BYTES_MAX} bytes of visible characters, not {app[:200]!r}; "
            "nothing was written"
        )
    return f"{app}:{int(version)}"


def _deadline(found: Mapping[str, str]) -> float:
    text = found.get("stageDeadline", str(STAGE_DEADLINE_S))
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = 0.0
    if not 0 < deadline_s <= limits.STAGE_DEADLINE_S_MAX:
        raise InvalidRequest(
            f"stageDeadline is a number of seconds up to {limits.STAGE_DEADLINE_S_MAX:g}, not {text!r}; "
            "nothing was written"
        )
    return deadline_s
