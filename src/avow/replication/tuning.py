"""Times and limits of a replication core that can be changed; the defaults are those of `limits`."""

from __future__ import annotations

from msgspec import Struct

from avow import limits


class Tuning(Struct, frozen=True, gc=False):
    heartbeat_interval_s: float = limits.HEARTBEAT_INTERVAL_S
    heartbeat_fresh_s: float = limits.HEARTBEAT_FRESH_S
    claim_delay_s: float = limits.CLAIM_DELAY_S
    claim_jitter_s: float = limits.CLAIM_JITTER_S
    owner_dead_after_s: float = limits.OWNER_DEAD_AFTER_S
    piece_entries: int = limits.ENQUEUE_ENTRIES_MAX
    in_flight_entries: int = limits.IN_FLIGHT_ENTRIES_MAX  # appended and not committed
    pipeline_entries: int = limits.PIPELINE_ENTRIES_MAX  # sent to one peer and not answered
