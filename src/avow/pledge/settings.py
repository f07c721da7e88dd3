"""What a pledge coordinator can be told. A pledge's own options come first where they exist.

The defaults of the first three are dtm's, so that its clients meet what they know. The others bound what dtm leaves
unbounded: how long a back-off grows, how long a delivery that always fails is repeated, how many calls are under way,
and how many of them one endpoint may occupy.

A value of 0 switches a limit off where the description says so.
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
    """`DESCRIPTIONS` says what each is for."""

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
    "timeout_to_fail_s": "a pledge prepared for so long is asked about at its checkback",
    "request_timeout_s": "a call without an answer for so long has failed",
    "retry_interval_s": "before the first repetition; doubled with each further one",
    "backoff_max_s": "the interval is doubled no further than this",
    "retry_limit": "failed rounds in a row after which a submitted pledge is dead; 0: any number",
    "dead_after_s": "a submitted pledge that only failed for so long is dead; 0: never",
    "kept_s": "a finished pledge is remembered for so long, and its gid with it",
    "wait_result_s": "who waits for the result, or for an abort, is answered no later than this",
    "alert_webhook": "URL that is told of pledges that fail and of dead ones; empty: nobody is",
    "alert_after": "failed rounds in a row of which the webhook is told; again at each doubling",
    "calls_max": "calls under way at a time",
    "calls_per_endpoint_max": "of them to one endpoint",
    "waiting_per_endpoint_max": "pledges that wait for a free place at one endpoint; more are put back",
    "waiting_s": "one that waited there for so long is put back too",
    "endpoint_failures": "not reached so many times in a row, an endpoint is closed: it is only probed",
    "probe_interval_s": "before the first probe of a closed endpoint; doubled with each further one",
    "probe_interval_max_s": "the interval of probes is doubled no further than this",
    "claim_max": "due pledges taken from the store at once",
    "lease_s": "for how long they are taken: after a crash others wait so long",
    "sweep_s": "the store is looked at no less often: for what other coordinators left behind",
}
