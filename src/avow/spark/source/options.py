"""Options of the source `format("avow")`: parsing and validation. Pure.

Names and meanings are those of Spark's Kafka source, so a job only changes its format and address. The differences:

 * An offset is a version, and versions begin at 1; a starting offset of 0 is read as 1. As with Kafka, a starting
   offset is inclusive and an ending offset exclusive; -2 is earliest (the first version that still exists), -1 is
   latest.
 * The JSON of starting offsets need not name every lane, since the lanes of a pub-sub queue come and go. A lane that is
   not named starts at the earliest version and ends at the latest.
 * Two options that set the same start (or end) are an error; Kafka's source silently prefers one of them.

    servers, token, ca            addresses of peers, access token, CA for https                       required: servers
    subscribe | subscribePattern | assign       "a,b" | a regular expression | {"a":[0,1]}             one of them
    startingOffsets | startingTimestamp | startingOffsetsByTimestamp   (+ startingOffsetsByTimestampStrategy)
    endingOffsets | endingTimestamp | endingOffsetsByTimestamp         batch only
    failOnDataLoss, includeHeaders, minPartitions, maxRecordsPerPartition
    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay        streams only; a batch ignores them with a warning
    subscriber                    streams only: the subscriber whose cursor follows the stream
    localReads                    false: read through the peers' sockets even if their files are on this machine
    archive                       a table that holds versions which the queue no longer has
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Struct

from avow.errors import InvalidRequest

EARLIEST: Final = -2
LATEST: Final = -1

Offsets: TypeAlias = dict[str, dict[int, int]]
T = TypeVar("T")

NAMES: Final = (
    "servers",
    "token",
    "ca",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "subscriber",
    "localReads",
    "archive",
)
PER_TRIGGER: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BY_LOWER: Final = {name.lower(): name for name in NAMES}
_CHOICES: Final = (
    ("subscribe", "subscribePattern", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
)
_TRIGGER_DELAY_S: Final = 900.0
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")


class Bound(Struct, frozen=True):
    """Where to start or to end. `everywhere` is EARLIEST, LATEST or a time; `named` overrides it for single lanes."""

    everywhere: int
    named: Offsets = {}
    by_time: bool = False


class SourceOptions(Struct, frozen=True, kw_only=True):
    servers: str
    token: str | None = None
    ca: str | None = None
    queues: tuple[str, ...] = ()
    pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    start: Bound
    end: Bound = Bound(LATEST)
    start_strategy: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    partition_rows_max: int | None = None
    trigger_rows_max: int | None = None
    trigger_rows_min: int | None = None
    trigger_delay_s: float = _TRIGGER_DELAY_S
    subscriber: str | None = None
    local_reads: bool = True
    archive: str | None = None
    ignored: tuple[str, ...] = ()


def include_headers(given: Mapping[str, str]) -> bool:
    """The only option that changes the schema, which Spark requests before anything else."""
    found = {name.lower(): value for name, value in given.items()}
    return _flag("includeHeaders", found.get("includeheaders"), default=False)


def batch_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidRequest, which names the option."""
    found = _known(given)
    if "subscriber" in found:
        raise _wrong("subscriber", "is for streams only: a batch read does not report when its rows were processed")
    start = _start(found, (LATEST,), default=EARLIEST)
    return _options(found, start=start, end=_end(found), ignored=tuple(name for name in PER_TRIGGER if name in found))


def stream_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidRequest, which names the option."""
    found = _known(given)
    for name in _CHOICES[2]:
        if name in found:
            raise _wrong(name, "is for batch reads only: a stream has no end")
    return _options(found, start=_start(found, (), default=LATEST), end=Bound(LATEST), ignored=())


def _options(found: Mapping[str, str], *, start: Bound, end: Bound, ignored: tuple[str, ...]) -> SourceOptions:
    delay_s = _read(found, "maxTriggerDelay", _seconds)
    return SourceOptions(
        servers=found["servers"],
        token=found.get("token"),
        ca=found.get("ca"),
        queues=tuple(dict.fromkeys(name.strip() for name in found.get("subscribe", "").split(",") if name.strip())),
        pattern=_read(found, "subscribePattern", _pattern),
        assign=_read(found, "assign", _assigned),
        start=start,
        end=end,
        start_strategy=_strategy(found.get("startingOffsetsByTimestampStrategy", "error")),
        fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss"), default=True),
        include_headers=_flag("includeHeaders", found.get("includeHeaders"), default=False),
        min_partitions=_read(found, "minPartitions", _positive),
        partition_rows_max=_read(found, "maxRecordsPerPartition", _positive),
        trigger_rows_max=_read(found, "maxOffsetsPerTrigger", _positive),
        trigger_rows_min=_read(found, "minOffsetsPerTrigger", _positive),
        trigger_delay_s=_TRIGGER_DELAY_S if delay_s is None else delay_s,
        subscriber=found.get("subscriber"),
        local_reads=_flag("localReads", found.get("localReads"), default=True),
        archive=found.get("archive"),
        ignored=ignored,
    )


# ------------------------------------------------------------------ which options


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options under their canonical names. Raises InvalidRequest for unknown and contradictory ones."""
    unknown = sorted(name for name in given if name.lower() not in _BY_LOWER)
    if unknown:
        hint = ". Give the peers' addresses in the option servers" if any("kafka." in name for name in unknown) else ""
        raise InvalidRequest(
            f"the source avow has no option {', '.join(unknown)}; nothing was read. Its options are "
            f"{', '.join(NAMES)}{hint}"
        )
    found = {_BY_LOWER[name.lower()]: value for name, value in given.items()}
    for choice in _CHOICES:
        both = [name for name in choice if name in found]
        if len(both) > 1:
            raise InvalidRequest(f"options {' and '.join(both)} exclude each other; nothing was read. Keep one of them")
    if not found.get("servers", "").strip():
        raise _wrong("servers", "is missing: give the addresses of peers, such as http://127.0.0.1:7401,...")
    if not any(found.get(name, "").strip() for name in _CHOICES[0]):
        raise InvalidRequest(f"no queue is given; nothing was read. Set one of the options {', '.join(_CHOICES[0])}")
    _check_limits(found)
    return found


def _check_limits(found: Mapping[str, str]) -> None:
    most, least = (_read(found, name, _positive) for name in PER_TRIGGER[:2])
    if most is not None and least is not None and least > most:
        raise _wrong("minOffsetsPerTrigger", f"is {least}, more than maxOffsetsPerTrigger allows ({most})")
    if "maxTriggerDelay" in found and least is None:
        raise _wrong("maxTriggerDelay", "means nothing without minOffsetsPerTrigger")


def _wrong(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"option {name} {why}; nothing was read")


# ------------------------------------------------------------------ where to start and to end


def _start(found: Mapping[str, str], refused: tuple[int, ...], *, default: int) -> Bound:
    bound = _bound(found, _CHOICES[1], words={"earliest": EARLIEST, "latest": LATEST}, default=default)
    _refuse("startingOffsets", bound, refused, "latest (-1) would read nothing")
    return bound


def _end(found: Mapping[str, str]) -> Bound:
    bound = _bound(found, _CHOICES[2], words={"latest": LATEST, "earliest": EARLIEST}, default=LATEST)
    _refuse("endingOffsets", bound, (EARLIEST,), "earliest (-2) would read nothing")
    return bound


def _refuse(name: str, bound: Bound, refused: tuple[int, ...], why: str) -> None:
    values = [bound.everywhere, *(value for lanes in bound.named.values() for value in lanes.values())]
    # If lanes are named, `everywhere` is the default for the other lanes, which the user did not write.
    written = values[1:] if bound.named else values
    if not bound.by_time and any(value in refused for value in written):
        raise _wrong(name, f"of a batch read: {why}")


def _bound(found: Mapping[str, str], names: tuple[str, ...], *, words: Mapping[str, int], default: int) -> Bound:
    offsets, time, by_time = names
    if time in found:
        return Bound(_read(found, time, _not_negative) or 0, by_time=True)
    if by_time in found:
        named = _read(found, by_time, _by_lane) or {}
        if any(value < 0 for lanes in named.values() for value in lanes.values()):
            raise _wrong(by_time, "has a negative time; times are milliseconds since 1970")
        return Bound(0 if by_time.startswith("starting") else LATEST, named, by_time=True)
    text = found.get(offsets)
    if text is None:
        return Bound(default)
    if text.strip().lower() in words:
        return Bound(words[text.strip().lower()])
    named = _read(found, offsets, _by_lane) or {}
    if any(value < EARLIEST for lanes in named.values() for value in lanes.values()):
        raise _wrong(offsets, "has an invalid negative offset; only -2 (earliest) and -1 (latest) are allowed")
    return Bound(EARLIEST if offsets.startswith("starting") else LATEST, named)


# ------------------------------------------------------------------ values


def _read(found: Mapping[str, str], name: str, read: Callable[[str], T]) -> T | None:
    if name not in found:
        return None
    try:
        return read(found[name])
    except (ValueError, TypeError, AttributeError, re.error) as cause:
        raise _wrong(name, f"has the invalid value {found[name][:200]!r} ({cause})") from cause


def _by_lane(text: str) -> Offsets:
    """{"orders": {"0": 23, "1": -1}}"""
    return {_name(queue): {int(lane): _whole(value) for lane, value in lanes.items()} for queue, lanes in _json(text)}


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    """{"orders": [0, 1]}"""
    found = {_name(queue): tuple(sorted({_whole(lane) for lane in lanes})) for queue, lanes in _json(text)}
    if not found or not all(found.values()):
        raise ValueError("every queue must have at least one lane")
    return found


def _json(text: str) -> list[tuple[str, Any]]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it must be JSON such as " + '{"orders": ...}')
    return list(found.items())


def _name(text: str) -> str:
    if not text:
        raise ValueError("the name of a queue is empty")
    return text


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _pattern(text: str) -> str:
    re.compile(text)
    return text


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError("it must be at least 1")
    return int(text)


def _not_negative(text: str) -> int:
    if int(text) < 0:
        raise ValueError("it must be in milliseconds since 1970")
    return int(text)


def _seconds(text: str) -> float:
    """A duration in Spark's notation: 500ms, 15m, 1h; a number without a unit is in seconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS_S:
        raise ValueError(f"a duration is a number followed by one of {', '.join(filter(None, _UNITS_S))}")
    return int(found[1]) * _UNITS_S[found[2]]


def _flag(name: str, text: str | None, *, default: bool) -> bool:
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise _wrong(name, f"must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _strategy(text: str) -> Literal["error", "latest"]:
    if text.strip().lower() == "latest":
        return "latest"
    if text.strip().lower() == "error":
        return "error"
    raise _wrong("startingOffsetsByTimestampStrategy", f"must be error or latest, not {text!r}")
