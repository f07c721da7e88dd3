"""A role object with a mistake: every method that it does not define is the shipped object's.

Mutations replace role objects; they never subclass a shipped class, so that the shipped classes can be compiled.

    class HalfQuorum(Delegate):
        def quorum(self, n: int) -> int:
            return max(1, n // 2)

    roles = TwoPhaseRoles(rules=lambda *given: HalfQuorum(Rules(*given)))

When a shipped object calls its own methods, it does not call the replacement. So every rule that a mutation breaks is a
method of another object.
"""

from __future__ import annotations

from typing import Any


class Delegate:
    def __init__(self, shipped: Any) -> None:
        self.shipped = shipped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shipped, name)
