"""What one seed decides before the first event: the cluster, its weather, its clients.

Every number a simulation uses comes from here or from the one random stream that the plan's seed starts, so a seed is a
complete description of a run. The weather is drawn once per seed rather than averaged over all of them: some seeds have
a reliable network and many crashes, some no crash and a network that repeats and reorders everything.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec import Struct, structs

from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.replication.tuning import Tuning

MS: Final = 0.001


class Plan(Struct, frozen=True):
    seed: int
    peers: int
    spare_peers: int  # may join later
    clients: int
    ops_per_client: int
    piece_entries: int
    pipeline_entries: int
    snapshot_every: int
    loss: float
    duplicate: float
    delay_s: float  # a message takes between a tenth of this and all of it, sometimes ten times as much
    straggler: float  # how often "sometimes" is
    sync_s: float
    think_s: float
    fault_every_s: float
    faults: tuple[str, ...]
    skew_s: float
    drift: float
    duration_s: float
    heal_s: float

    beat_s: float
    claim_s: float
    claim_jitter_s: float  # the less, the more claims cross each other
    memory_entries: int  # of a lane's log; older ones are read from storage. 0: storage is not read at all
    write_ids: int  # how many a lane remembers
    snapshot_delays: int  # a snapshot is so many times as long on its way: whoever asked for it may have given up

    @property
    def tuning(self) -> Tuning:
        return Tuning(
            heartbeat_interval_s=self.beat_s,
            heartbeat_fresh_s=5 * self.beat_s,
            claim_delay_s=self.claim_s,
            claim_jitter_s=self.claim_jitter_s,
            owner_dead_after_s=3 * self.claim_s,
            piece_entries=self.piece_entries,
            pipeline_entries=self.pipeline_entries,
        )


FAULTS: Final = (
    "crash",
    "crash mid effects",
    "blink",
    "isolate",
    "split",
    "one-way",
    "slow disk",
    "clock jump",
    "damage",
    "disk full",
    "crash all",
    "members",
    "pause",
)
_ALWAYS: Final = ("crash", "isolate")
_STORM_EXTRAS: Final = ((), ("members",) * 5, ("damage",) * 4, ("blink",) * 4)
_STORM: Final = ("crash", "blink", "blink", "isolate", "isolate", "split", "split", "one-way", "pause")


def draw_plan(seed: int, *, peers: int = 0) -> Plan:
    """The plan of a seed. `peers` 0: three or five, as the seed says."""
    rng = Random(seed * 2 + 1)
    size = peers or (3 if rng.random() < 0.6 else 5)
    quiet = rng.random() < 0.1  # no fault at all: what goes wrong then is plain wrong
    stormy = rng.random() < 0.5  # one coordinator after the other: take-over logs in small pieces, cut short
    kinds = _STORM if stormy else tuple(kind for kind in FAULTS if kind in _ALWAYS or rng.random() < 0.45)
    if stormy:
        kinds = (*kinds, *rng.choice(_STORM_EXTRAS))
    return Plan(
        seed=seed,
        peers=size,
        spare_peers=2 if size == 3 and "members" in kinds else 0,
        clients=8 if stormy else rng.choice((2, 3, 4, 6)),
        ops_per_client=rng.choice((12, 20, 30)),
        piece_entries=1 if stormy else rng.choice((1, 2, 2, 64)),
        pipeline_entries=rng.choice((1, 4, 64)) if stormy else 64,
        snapshot_every=rng.choice((0, 2, 5) if stormy else (0, 6, 15)),
        loss=0.0 if quiet else rng.choice((0.0, 0.1, 0.3) if stormy else (0.0, 0.01, 0.05, 0.15)),
        duplicate=0.0 if quiet else rng.choice((0.0, 0.01, 0.1)),
        delay_s=rng.choice((2, 5) if stormy else (2, 8, 20)) * MS,
        straggler=rng.choice((0.0, 0.02, 0.1)),
        sync_s=rng.choice((0.3, 2, 10)) * MS,
        think_s=2 * MS if stormy else rng.choice((2, 10, 40)) * MS,
        fault_every_s=1e9 if quiet else rng.choice((0.03, 0.06, 0.1)) if stormy else rng.choice((0.15, 0.3, 0.6)),
        faults=kinds,
        skew_s=0.0 if quiet else rng.choice((0.0, 0.05, 5.0)),
        drift=0.0 if quiet else rng.choice((0.0, 0.05, 0.3)),
        duration_s=1.0 if stormy else rng.choice((2.0, 3.0)),
        heal_s=30.0,
        beat_s=0.01 if stormy else rng.choice((0.02, 0.05)),
        claim_s=rng.choice((0.03, 0.06)) if stormy else rng.choice((0.1, 0.3)),
        claim_jitter_s=rng.choice((0.005, 0.03)) if stormy else rng.choice((0.1, 0.3)),
        memory_entries=rng.choice((0, 0, 1, 4) if stormy else (0, 1, 4, 12)),
        write_ids=WRITE_ID_WINDOW_COUNT,
        snapshot_delays=1,
    )


def draw_two_phase_plan(seed: int, *, peers: int = 0) -> Plan:
    """The same with what is particular here: snapshots that come late, and lanes that forget write ids."""
    rng = Random(seed * 5 + 3)
    plan = draw_plan(seed, peers=peers)
    if plan.duration_s < 2.0:  # a storm
        plan = structs.replace(plan, snapshot_delays=20)
    return forgetful(plan, rng) if rng.random() < 0.2 else plan


def forgetful(plan: Plan, rng: Random) -> Plan:
    """The same with a lane that soon forgets write ids.

    What a peer knows of its memory it knows by its clock, and a message that was on its way for longer than a memory
    lasts cannot be told from a new one. So there is nothing here that holds messages up or lets clocks run apart.
    """
    faults = tuple(kind for kind in plan.faults if kind not in ("pause", "clock jump"))
    return structs.replace(
        plan, write_ids=rng.choice((16, 40)), faults=faults, straggler=0.0, drift=0.0, delay_s=min(plan.delay_s, 8 * MS)
    )
