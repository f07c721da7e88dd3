"""The settings of a pledge coordinator. A pledge's own options override them.

The defaults of the first three are dtm's, as its clients expect. The others bound what dtm leaves unbounded: the growth
of a back-off, the time for which a failing delivery is retried, the calls in flight, in total and per endpoint.

Where the description says so, 0 disables a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

_DAY_S: Final = 24 * 3600.0

Seconds = Annotated[float, Meta(gt=0)]
SecondsOrNone = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
CountOrNone = Annotated[int, Meta(ge=0)]


class PledgeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`DESCRIPTIONS` explains each one."""

    timeout_to_fail_s: Seconds = 35.0
    request_timeout_s: Seconds = 3.0
    retry_interval_s: Seconds = 10.0
    backoff_max_s: Seconds = 300.0
    retry_limit: CountOrNone = 0
    dead_after_s: SecondsOrNone = 7 * _DAY_S
    kept_s: Seconds = 1 * _DAY_S
    wait_result_s: Seconds = 30.0
    alert_webhook: str = ""
    alert_after: Count = 3
    calls_max: Count = 1024
    calls_per_endpoint_max: Count = 64
    waiting_per_endpoint_max: Count = 4096
    waiting_s: Seconds = 3.0
    endpoint_failures: Count = 8
    probe_interval_s: Seconds = 1.0
    probe_interval_max_s: Seconds = 5.0
    claim_max: Count = 128
    lease_s: Seconds = 15.0
    sweep_s: Seconds = 1.0


DESCRIPTIONS: Final[Mapping[str, str]] = {
    "timeout_to_fail_s": "time after which the checkback of a prepared pledge is called",
    "request_timeout_s": "time after which a call without an answer has failed",
    "retry_interval_s": "pause before the first retry; doubled for each further one",
    "backoff_max_s": "maximum pause between retries",
    "retry_limit": "failed rounds in a row after which a submitted pledge is dead; 0: no limit",
    "dead_after_s": "time of continuous failure after which a submitted pledge is dead; 0: no limit",
    "kept_s": "how long a finished pledge and its gid are kept",
    "wait_result_s": "maximum time that a request waits for the result or for an abort",
    "alert_webhook": "URL to which alerts about failing and dead pledges are posted; empty: none",
    "alert_after": "failed rounds in a row after which an alert is sent; again at each doubling",
    "calls_max": "maximum number of calls in flight",
    "calls_per_endpoint_max": "maximum number of calls in flight to one endpoint",
    "waiting_per_endpoint_max": "maximum number of calls waiting for one endpoint; pledges beyond it are put back",
    "waiting_s": "time after which a waiting call gives up and its pledge is put back",
    "endpoint_failures": "unreachable calls in a row after which an endpoint is closed and only probed",
    "probe_interval_s": "pause before the first probe of a closed endpoint; doubled for each further one",
    "probe_interval_max_s": "maximum pause between probes",
    "claim_max": "maximum number of due pledges claimed from the store at once",
    "lease_s": "duration of a claim; after a crash other coordinators wait so long",
    "sweep_s": "maximum time between two checks of the store for pledges of other coordinators",
}
