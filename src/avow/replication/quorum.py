"""How many is enough: the arithmetic both strategies count with.

A decision holds when more than half of a fixed membership agreed to it, because two sets that are each larger than half
of the same members share at least one: whoever asks a quorum later meets somebody who took part in every earlier
decision. Three rules keep that argument true, and each has been a bug somewhere:

- `n` is the size of the membership, never the number of members that answered or are reachable. A peer that is silent
  makes a decision impossible, not smaller.
- Only members count. An answer from a learner, an observer or a removed peer adds nothing.
- A member counts once, however often it answered.

Positions are counted the same way: a position is reached by a quorum when the quorum-th largest of what the members
hold is at least that position. A member that has said nothing holds 0, so leaving it out of the values is the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterable


def quorum(n: int) -> int:
    """The smallest number of `n` members of which any two choices share a member."""
    return n // 2 + 1


def quorum_th_largest(values: Iterable[int], n: int) -> int:
    """The highest position that a quorum of `n` members holds; one value per member, members left out hold 0."""
    ordered = sorted(values)
    index = len(ordered) - (n // 2 + 1)
    return ordered[index] if index >= 0 else 0


def has_quorum(answered: Container[int], voters: Iterable[int]) -> bool:
    """Whether a quorum of `voters` is among those who answered."""
    members = agreed = 0
    for voter in voters:
        members += 1
        if voter in answered:
            agreed += 1
    return agreed >= members // 2 + 1
