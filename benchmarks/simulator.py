"""How many events a simulated second of proof costs: events per second of one core, for each strategy.

The figure counts everything a campaign does for a seed, also drawing the plan and building the cluster. It is CPU time,
so other load on the machine disturbs it little. Run it with `python -m benchmarks.simulator`.
"""

from __future__ import annotations

import time
from typing import Final

from avow.testing.campaign import STRATEGIES

SEEDS: Final = 200
EVENTS_PER_S_MIN: Final = 150_000


def measure(strategy: str) -> dict[str, float]:
    simulate = STRATEGIES[strategy]
    began = time.process_time()
    verdicts = [simulate(seed) for seed in range(SEEDS)]
    spent = time.process_time() - began
    events = sum(verdict.events for verdict in verdicts)
    return {"events": events, "cpu_s": spent, "events_per_s": events / spent}


def main() -> dict[str, object]:
    figures = {strategy: measure(strategy) for strategy in STRATEGIES}
    for strategy, figure in figures.items():
        print(f"{strategy:<12}{figure['events_per_s']:>10,.0f} events per second of one core ({SEEDS} seeds)")
    slowest = min(figure["events_per_s"] for figure in figures.values())
    return {"strategies": figures, "held": slowest >= EVENTS_PER_S_MIN}


if __name__ == "__main__":
    main()
