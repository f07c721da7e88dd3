"""Short campaigns of peers with a fixed script instead of random faults.

    coordinator killed   under load; writes resume within two seconds
    pub-sub killed       peers are killed one after the other; writes through the others are never refused
    rolling restart      nothing is lost, and no write is refused that a client's retry does not cover
    emptied folder       a peer that lost its folder cannot vote under its old number
    joined and left      a fourth and a fifth peer join, two leave, under load
    lost file            a peer loses a file while another is away: nothing acknowledged is lost

Each returns the campaign's verdict. `complaints` checks what the script must satisfy besides.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from avow_lab.campaigns.harness.campaign import prove
from avow_lab.campaigns.peers.campaign import Options, PeerCampaign, Script
from avow_lab.campaigns.peers.faults import Faults
from avow_lab.campaigns.peers.file_loss import EVERY
from avow_lab.campaigns.peers.verdict import Verdict

RESUME_S_MAX: Final = 2.0
ANSWER_S_MAX: Final = 60.0  # of a write, on a machine that is busy with other things
EXPECTED_REFUSALS: Final = frozenset({"NOT_EQUAL"})  # the answer to an expected cursor that was passed


async def _coordinator_killed(faults: Faults) -> None:
    await _perform(faults, "kill coordinator", "kill coordinator", "kill coordinator")


async def _pubsub_killed(faults: Faults) -> None:
    await _perform(faults, "kill any", "kill any", "kill any")


async def _rolling_restart(faults: Faults) -> None:
    await _perform(faults, "restart")


async def _emptied_folder(faults: Faults) -> None:
    await _perform(faults, "emptied")


async def _joined_and_left(faults: Faults) -> None:
    await _perform(faults, "add", "add", "remove", "remove")


async def _lost_file(faults: Faults) -> None:
    await _perform(faults, "damage file")


async def every_file(faults: Faults, *, count: int = len(EVERY)) -> None:
    """Every kind of file with every kind of loss, once; or the first `count` of them."""
    await _perform(faults, *["damage file"] * count)


async def _perform(faults: Faults, *kinds: str) -> None:
    for kind in kinds:
        if not faults.stuck:
            await faults.perform(kind)


_SCRIPTS: Final[dict[str, tuple[Script, str]]] = {
    "coordinator killed": (_coordinator_killed, "two-phase"),
    "pub-sub killed": (_pubsub_killed, "pub-sub"),
    "rolling restart": (_rolling_restart, ""),
    "emptied folder": (_emptied_folder, ""),
    "joined and left": (_joined_and_left, ""),
    "lost file": (_lost_file, ""),
}
SCRIPTS: Final = tuple(_SCRIPTS)


def play(name: str, *, seed: int = 1, seconds: float = 5.0) -> Verdict:
    script, strategy = _SCRIPTS[name]
    options = Options(seconds=seconds, seed=seed, strategy=strategy, network="proxy", client_timeout_s=ANSWER_S_MAX)
    return prove(partial(PeerCampaign, script=script), options)


def complaints(name: str, verdict: Verdict) -> list[str]:
    """What is wrong with the outcome of a script, violations included."""
    found = [f"{finding.anomaly}: {finding.queue}: {finding.what}" for finding in verdict.findings]
    found += verdict.troubles
    if verdict.stuck:
        found.append(verdict.stuck)
    if name == "coordinator killed":
        found += late(verdict)
    if name in ("pub-sub killed", "rolling restart"):
        found += _refused(verdict)
    return found


def late(verdict: Verdict) -> list[str]:
    """Take-overs after which writes resumed too late."""
    return [f"{one.what}: {one.after_s:.2f} s" for one in verdict.resumed if one.after_s > RESUME_S_MAX]


def _refused(verdict: Verdict) -> list[str]:
    found = [
        f"{queue}: {count} writes refused with {code}"
        for queue, codes in verdict.refusals.items()
        for code, count in codes.items()
        if code not in EXPECTED_REFUSALS
    ]
    unknown = verdict.operations.get("write", {}).get("unknown", 0)
    return found + ([f"{unknown} writes without an answer"] if unknown else [])
