"""The checks of every pledge after all runs, and the names of violations.

lost            committed, and a branch has no effect
duplicated      a branch took effect more than once
phantom         a branch took effect, and the work is not committed (or was not when the branch was called)
misreported     the caller's answer was committed and it is not, or rolled back and it is not; or it was meant to roll
                back and is committed; or it was refused for a reason that no crash explains (an unknown queue)
late            decided, but not within a minute after everything was healed
undecided       the coordinator still has it prepared or submitted at the end, long after everything was healed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from avow_lab.campaigns.pledges.databases import EARLY
from avow_lab.campaigns.pledges.service import BRANCHES

Anomaly: TypeAlias = Literal["lost", "duplicated", "phantom", "misreported", "late", "undecided"]
ANOMALIES: Final[tuple[Anomaly, ...]] = Anomaly.__args__  # type: ignore[attr-defined]
MESSAGE: Final = "03"  # the branch that is a message of a queue

_ANSWER_COMMITTED: Final = frozenset({"Delivered", "CommittedPending", "Stopped"})
_ANSWER_ROLLED_BACK: Final = frozenset({"RolledBack"})
_ANSWER_UNKNOWN: Final = frozenset({"", "OutcomeUnknown", "raised UNKNOWN", "raised OFFLINE", "raised BUSY"})


class Made(Struct, frozen=True):
    """A pledge of a run: whether it was meant to commit, and its caller's answer; empty: the caller got none."""

    gid: str
    commit: bool
    answer: str
    run: str


class Found(Struct, frozen=True):
    anomaly: Anomaly
    gid: str
    what: str


class Evidence(Struct, frozen=True):
    """Of one testbed: commits by gid, effects by gid and branch, messages of the queue by gid; then the states of
    pledges that were open after their run and are decided by now, and of those that are still open."""

    works: Mapping[str, int]
    effects: Mapping[tuple[str, str], int]
    messages: Mapping[str, int]
    late: Mapping[str, str]
    undecided: Mapping[str, str]


def judge(made: Made, evidence: Evidence) -> list[Found]:
    gid, committed = made.gid, evidence.works.get(made.gid, 0)
    found: list[tuple[Anomaly, str]] = []
    if committed > 1:
        found.append(("duplicated", f"its own work was committed {committed} times"))
    if committed and (made.answer in _ANSWER_ROLLED_BACK or not made.commit):
        found.append(("misreported", f"committed, meant to be: {made.commit}, caller told: {made.answer or 'nothing'}"))
    if not committed and made.answer in _ANSWER_COMMITTED:
        found.append(("misreported", f"not committed, caller told: {made.answer}"))
    if made.answer not in _ANSWER_COMMITTED | _ANSWER_ROLLED_BACK | _ANSWER_UNKNOWN:
        found.append(("misreported", f"refused, and no crash explains it: {made.answer}"))
    if gid in evidence.late:
        found.append(("late", evidence.late[gid]))
    if gid in evidence.undecided:
        found.append(("undecided", evidence.undecided[gid]))
    for branch, times in _deliveries(gid, evidence).items():
        if branch.startswith(EARLY) and times:
            found.append(("phantom", f"branch {branch.removeprefix(EARLY)} before the commit"))
        elif times > 1:
            found.append(("duplicated", f"branch {branch} took effect {times} times"))
        elif times and not committed:
            found.append(("phantom", f"branch {branch} took effect, and nothing is committed"))
        elif committed and not times and not branch.startswith(EARLY):
            found.append(("lost", f"committed, and branch {branch} has no effect"))
    return [Found(anomaly, gid, f"{what}; {made.run}") for anomaly, what in found]


def _deliveries(gid: str, evidence: Evidence) -> Counter[str]:
    names = (*BRANCHES, *(EARLY + branch for branch in BRANCHES))
    times = Counter({name: evidence.effects.get((gid, name), 0) for name in names})
    times[MESSAGE] = evidence.messages.get(gid, 0)
    return times
