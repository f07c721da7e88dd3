"""Quorum arithmetic for both strategies.

A decision is final when more than half of a fixed membership agreed to it: two majorities of the same members share at
least one member, so every later quorum contains a member that took part in every earlier decision. Three rules make
this argument hold; each has been a bug in some system:

- `n` is the size of the membership, never the number of members that answered or can be reached. Silent peers can make
  a decision impossible, but they do not make a quorum smaller.
- Only members count. Answers from learners, observers and removed peers are ignored.
- A member counts once, however often it answered.

Positions are counted the same way: a quorum has reached a position when the quorum-th largest position of the members
is at least that. A member that has not reported holds 0, so it may be left out of the values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable


def quorum(n: int) -> int:
    """The smallest number such that any two sets of this many of `n` members share a member."""
    return n // 2 + 1


def quorum_th_largest(values: Iterable[int], n: int) -> int:
    """The highest position that a quorum of `n` members holds. One value per member; missing members hold 0."""
    ordered = sorted(values)
    index = len(ordered) - (n // 2 + 1)
    return ordered[index] if index >= 0 else 0


def has_quorum(answered: Container[int], voters: Iterable[int]) -> bool:
    """Whether `answered` contains a quorum of `voters`."""
    members = agreed = 0
    for voter in voters:
        members += 1
        if voter in answered:
            agreed += 1
    return agreed >= members // 2 + 1
