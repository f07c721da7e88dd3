"""Each mutation of real processes, and the short campaign that must find it.

    python -m avow_lab.campaigns.peers.mutants [NAME ...]

Status 0: each was found. A campaign is found to be broken by what its clients were told and what peers show at the end,
or by a cluster that takes part where it must not (`stuck`).
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from avow_lab.campaigns.harness.campaign import prove
from avow_lab.campaigns.peers.campaign import Options, PeerCampaign
from avow_lab.campaigns.peers.scripts import every_file
from avow_lab.campaigns.peers.verdict import Verdict


class Hunt(Struct, frozen=True):
    """`shows`: the violation that the mutation leads to; "stuck": the campaign's own check of that fault. `losses`: the
    first ones of `--damage`, in place of random faults."""

    mutation: str
    fault: str
    shows: str
    seconds: float = 6.0
    strategy: str = ""
    seed: int = 1
    losses: int = 0

    @property
    def command(self) -> str:
        faults = "--damage" if self.losses else f"--faults {self.fault} --minutes {self.seconds / 60:g}"
        strategy = f" --strategy {self.strategy}" if self.strategy else ""
        return f"avow prove --mutation {self.mutation} --seed {self.seed} {faults} --network proxy{strategy}"

    def run(self, folder: Path) -> Verdict:
        options = Options(
            seconds=self.seconds,
            seed=self.seed,
            faults=(self.fault,),
            strategy=self.strategy,
            network="proxy",
            mutation=self.mutation,
            folder=str(folder),
        )
        script = partial(every_file, count=self.losses) if self.losses else None
        return prove(partial(PeerCampaign, script=script), options)

    def found(self, verdict: Verdict) -> bool:
        return bool(verdict.stuck) if self.shows == "stuck" else self.shows in verdict.violations


HUNTS: Final = (
    Hunt("no-mark", "damage", "lost", seed=1131, losses=3),
    Hunt("strangers-end", "restart", "duplicated", seconds=30, strategy="pub-sub"),
    Hunt("no-age", "late", "duplicated", strategy="two-phase"),
    Hunt("expires-alone", "expire", "torn", strategy="two-phase"),
    Hunt("founds-alone", "wiped", "stuck"),
)


def main() -> None:
    wanted = [hunt for hunt in HUNTS if not sys.argv[1:] or hunt.mutation in sys.argv[1:]]
    missed = 0
    for hunt in wanted:
        began = time.monotonic()
        with TemporaryDirectory(prefix="avow-mutant-") as folder:
            verdict = hunt.run(Path(folder))
        found = hunt.found(verdict)
        missed += not found
        how = f"found ({hunt.shows})" if found else f"NOT FOUND: {verdict.violations or verdict.stuck or 'clean'}"
        sys.stdout.write(f"{hunt.mutation}: {how} after {time.monotonic() - began:.0f} s: {hunt.command}\n")
        sys.stdout.flush()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
