"""Options of the sink `format("avow")`, checked before a task is started.

    servers         addresses of peers, http://host:port,...            required
    token, ca       access token; PEM file of the CA for https (on every machine that runs tasks)
    topic           the queue for all rows; without it each row needs a column `topic`
    txnAppId        batch writes: the name of the job, and
    txnVersion      the number of its run. A write with the same two is not repeated. Both or none
    stageDeadline   seconds after which peers drop rows that were staged and never published (default 3600)

Names are those of Kafka and Delta where they exist; case does not matter. An unknown option is an error: a mistyped
`txnAppId` would otherwise lose the protection that it was set for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from avow import limits
from avow.errors import InvalidRequest

STAGE_DEADLINE_S: Final = 3600.0
APP_ID_BYTES_MAX: Final = 150  # the transaction's name adds a few bytes
NAMES: Final = ("servers", "token", "ca", "topic", "txnAppId", "txnVersion", "stageDeadline")
_OF_BATCHES: Final = ("txnAppId", "txnVersion")
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})  # options of a stream that Spark passes on


class SinkOptions(Struct, frozen=True):
    """`job` is txnAppId and txnVersion as one name, empty if they were not given."""

    servers: str
    token: str | None = None
    ca: str | None = None
    topic: str | None = None
    job: str = ""
    stage_deadline_s: float = STAGE_DEADLINE_S


def read_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises InvalidRequest, which names the option, before anything is written."""
    named = {name.lower(): name for name in NAMES}
    if unknown := sorted(name for name in given if name.lower() not in named.keys() | _OF_SPARK):
        raise InvalidRequest(
            f"the sink avow has no option {', '.join(unknown)}; nothing was written. Its options are {', '.join(NAMES)}"
        )
    found = {named[name.lower()]: value.strip() for name, value in given.items() if name.lower() in named}
    if streaming and (wrong := [name for name in _OF_BATCHES if name in found]):
        raise InvalidRequest(
            f"{' and '.join(wrong)} are for batch writes; nothing was written. Remove them: a stream's checkpoint "
            "names its batches"
        )
    if not found.get("servers"):
        raise InvalidRequest(
            'the option servers is missing; nothing was written. Set the addresses of peers: option("servers", '
            '"http://host:port,...")'
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
        raise InvalidRequest("the option topic is empty; nothing was written. Name a queue or remove the option")
    return topic


def _job(found: Mapping[str, str]) -> str:
    app, version = found.get("txnAppId", ""), found.get("txnVersion", "")
    if not app and not version:
        return ""
    if not app or not version:
        raise InvalidRequest("txnAppId and txnVersion only work together; nothing was written. Give both or none")
    if not version.isascii() or not version.isdigit():
        raise InvalidRequest(f"txnVersion must be a number from 0, not {version!r}; nothing was written")
    if not app.isprintable() or len(app.encode()) > APP_ID_BYTES_MAX:
        raise InvalidRequest(
            f"txnAppId must have at most {APP_ID_BYTES_MAX} bytes of printable characters, not {app[:200]!r}; "
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
            f"stageDeadline must be a number of seconds up to {limits.STAGE_DEADLINE_S_MAX:g}, not {text!r}; "
            "nothing was written"
        )
    return deadline_s
