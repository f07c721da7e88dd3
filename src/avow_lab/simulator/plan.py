"""The plan of a run, which a seed decides before the first event: the cluster, its faults, its clients.

Every number a simulation uses comes from here or from the one random stream that the plan's seed starts, so a seed is a
complete description of a run. The kinds and rates of faults are drawn once per seed rather than averaged over all of
them: some seeds have a reliable network and many crashes, some no crash and a network that repeats and reorders
everything.

A cluster has a few queues, of one strategy or of both. Each is a slot with a name; the queue under that name is deleted
and created again as part of the fault schedule.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec import Struct, structs

from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.node.records import Pace, PubSubBounds
from avow.queue.commands import QueueCommand, RetentionRules, Strategy
from avow.replication.tuning import Tuning
from avow.wire.versions import FIRST, NEWEST

MS: Final = 0.001


TWO_PHASE: Final = "two-phase"
PUB_SUB: Final = "pub-sub"
MIXED: Final = "mixed"
STRATEGIES: Final = (TWO_PHASE, PUB_SUB, MIXED)


class Slot(Struct, frozen=True):
    """A queue name, and the settings of the queues that are created under it."""

    name: str
    strategy: Strategy
    lanes: int = 1
    retention: RetentionRules = RetentionRules()
    placed: bool = False  # held by three peers only, even when there are more

    def create(self, voters: tuple[int, ...]) -> QueueCommand:
        peers = voters[:3] if self.placed and len(voters) > 3 else ()
        return QueueCommand("create", self.name, self.strategy, self.lanes, self.retention, peers)


class Plan(Struct, frozen=True):
    seed: int
    strategy: str  # of its queues: one of STRATEGIES
    slots: tuple[Slot, ...]
    peers: int
    spare_peers: int  # may join later
    clients: int
    ops_per_client: int
    piece_entries: int
    pipeline_entries: int
    snapshot_every: int
    loss: float
    duplicate: float
    delay_s: float  # a message takes 0.1 to 1 times this, a straggler up to 10 times
    straggler: float  # the share of stragglers
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
    claim_jitter_s: float  # the smaller, the more claims compete
    memory_entries: int  # of a lane's log; older entries are read from storage
    write_ids: int  # remembered by a two-phase lane
    reuses: bool  # whether clients use a write id twice, for a staged batch and for a write
    wide: bool  # whether clients' transactions go over all lanes of a queue
    bounds: PubSubBounds  # of a peer's memory of a pub-sub lane
    trims: bool  # whether clients of pub-sub queues trim
    round_s: float  # of housekeeping
    old_peers: int  # these peers, from number 1 on, read only the first version of the protocol
    snapshot_delays: int  # factor for the delay of a snapshot: the peer that asked for it may have given up

    @property
    def level(self) -> int:
        return FIRST if self.old_peers else NEWEST

    def version(self, peer: int) -> int:
        """The newest version of the protocol that the peer reads."""
        return FIRST if peer <= self.old_peers else NEWEST

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

    @property
    def pace(self) -> Pace:
        return Pace(
            every_s=self.round_s,
            retention_every_s=3 * self.round_s,
            repeat_s=5 * self.round_s,
            silent_s=10 * self.round_s,
            behind_entries_max=BEHIND_ENTRIES_MAX,
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
    "queues",
    "pause",
)
BEHIND_ENTRIES_MAX: Final = 4
_ALWAYS: Final = ("crash", "isolate")
_STORM_EXTRAS: Final = ((), ("members",) * 5, ("damage",) * 4, ("blink",) * 4, ("queues",) * 4)
_STORM: Final = ("crash", "blink", "blink", "isolate", "isolate", "split", "split", "one-way", "pause")
_AT_FENCES: Final = (
    *("damage",) * 3,
    *("slow disk", "crash mid effects") * 2,
    *("one-way",) * 5,  # an owner that some peers believe dead and others still reach
    *("blink",) * 3,
)


def draw_plan(seed: int, *, strategy: str = MIXED, peers: int = 0) -> Plan:
    """`peers` 0: three or five, as the seed decides."""
    plan = _draw_faults(seed, strategy=strategy, peers=peers)
    if strategy != PUB_SUB:
        plan = _adapt_to_lanes(plan)
    if strategy != TWO_PHASE:
        plan = _adapt_to_fences(plan)
    return structs.replace(plan, slots=_draw_slots(Random(seed * 7 + 5), plan))


def _draw_faults(seed: int, *, strategy: str, peers: int) -> Plan:
    rng = Random(seed * 2 + 1)
    size = peers or (3 if rng.random() < 0.6 else 5)
    quiet = rng.random() < 0.1  # no fault at all: a violation is then a plain bug
    stormy = rng.random() < 0.5  # many take-overs: take-over logs in small pieces, interrupted
    kinds = _STORM if stormy else tuple(kind for kind in FAULTS if kind in _ALWAYS or rng.random() < 0.45)
    if stormy:
        kinds = (*kinds, *rng.choice(_STORM_EXTRAS))
    bounds, trims = _draw_bounds(seed)
    return Plan(
        seed=seed,
        strategy=strategy,
        slots=(),
        peers=size,
        spare_peers=2 if "members" in kinds else 0,
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
        memory_entries=rng.choice((1, 4, 1000, 1000) if stormy else (1, 4, 12, 1000)),
        write_ids=WRITE_ID_WINDOW_COUNT,
        reuses=Random(seed * 11 + 6).random() < 0.15,
        wide=Random(seed * 13 + 7).random() < 0.3,
        bounds=bounds,
        trims=trims,
        round_s=0.02 if stormy else 0.1,
        old_peers=_draw_old_peers(Random(seed * 11 + 7), size),
        snapshot_delays=1,
    )


def _draw_old_peers(rng: Random, peers: int) -> int:
    """Mostly none. An upgrade ends with none, too, so those of the same release must not be rare."""
    return 1 + int(rng.random() * peers) if rng.random() < 0.15 else 0


def _draw_slots(rng: Random, plan: Plan) -> tuple[Slot, ...]:
    """Mostly one queue per strategy, so that all clients use the same one; sometimes two."""
    counts = {TWO_PHASE: 0, PUB_SUB: 0}
    for strategy in (TWO_PHASE, PUB_SUB) if plan.strategy == MIXED else (plan.strategy,):
        counts[strategy] = 2 if rng.random() < (0.3 if plan.strategy == MIXED else 0.15) else 1
    slots: list[Slot] = []
    for number in range(counts[TWO_PHASE]):
        placed = plan.peers > 3 and "members" not in plan.faults and rng.random() < 0.3
        lanes = 2 if rng.random() < 0.25 else 1
        slots.append(Slot(f"orders{number}", "two-phase", lanes, _draw_retention(rng), placed))
    slots += [Slot(f"clicks{number}", "pub-sub", 1, _draw_retention(rng)) for number in range(counts[PUB_SUB])]
    return tuple(slots)


def _draw_retention(rng: Random) -> RetentionRules:
    chance = rng.random()
    if chance < 0.7:
        return RetentionRules()
    if chance < 0.8:
        return RetentionRules(age_s=1)
    return RetentionRules(size_bytes=500) if chance < 0.9 else RetentionRules(passed=True)


def _draw_bounds(seed: int) -> tuple[PubSubBounds, bool]:
    """The bounds of a peer's memory of a pub-sub lane, mostly tiny, and whether clients trim."""
    rng = Random(seed * 3 + 2)
    if rng.random() < 0.25:
        return PubSubBounds(), rng.random() < 0.3
    bounds = PubSubBounds(
        memory_entries=rng.choice((1, 4, 12)),
        memory_bytes=rng.choice((64, 4096)),
        write_ids=rng.choice((2, 5, 1000)),
        snapshot_entries=rng.choice((2, 5, 20)),
        snapshot_bytes=rng.choice((64, 4096)),
        snapshot_bytes_per_entry=1000,
    )
    return bounds, rng.random() < 0.6


def _adapt_to_lanes(plan: Plan) -> Plan:
    """For two-phase lanes: snapshots that arrive late, and lanes that forget write ids."""
    rng = Random(plan.seed * 5 + 3)
    if plan.duration_s < 2.0:  # a storm
        plan = structs.replace(plan, snapshot_delays=20)
    return forgetful(plan, rng) if rng.random() < 0.2 else plan


def _adapt_to_fences(plan: Plan) -> Plan:
    """For pub-sub queues.

    A fence depends on disks and on the peers that remember it, so half of the storms have damage, delays and one-way
    cuts. Voters change only after every older lane has ended, which takes several attempts: some other seeds make many.
    """
    adapted = Random(plan.seed).random() < 0.5
    if adapted and plan.fault_every_s < 0.15:
        return structs.replace(plan, faults=(*plan.faults, *_AT_FENCES))
    if adapted and plan.fault_every_s < 1.0:
        return structs.replace(plan, faults=(*plan.faults, *("members",) * 6), spare_peers=2)
    return plan


def forgetful(plan: Plan, rng: Random) -> Plan:
    """The same plan with lanes that soon forget write ids.

    A peer judges the age of its memory by its clock, and it takes a message that was in flight for longer than it
    remembers for a new one. So this plan has nothing that delays messages for long or lets clocks drift apart.
    """
    faults = tuple(kind for kind in plan.faults if kind not in ("pause", "clock jump"))
    return structs.replace(
        plan,
        write_ids=rng.choice((16, 40)),
        reuses=False,
        faults=faults,
        straggler=0.0,
        drift=0.0,
        delay_s=min(plan.delay_s, 8 * MS),
    )
