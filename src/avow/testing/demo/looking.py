"""Looking at the demo while it runs: a thread that takes a Look now and then, and what the last ones say together.

A look takes as long as a peer, a database and a table need for an answer, and somebody is killed meanwhile. So looks
are taken beside the story and beside the screen, and neither waits for them. One that fails is left out.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from avow.testing.demo.chain import Look

LOOK_S: Final = 0.4
KEPT: Final = 200


class Seen(Struct, frozen=True):
    at_s: float
    look: Look


class Looking:
    """Between `start` and `stop`. `latest` is an empty Look before the first."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look
        self._seen: deque[Seen] = deque(maxlen=KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="avow-demo-looking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def latest(self) -> Look:
        return self._seen[-1].look if self._seen else Look()

    def rates(self, of: Callable[[Look], int], *, last: int) -> list[float]:
        """Per second between each look and the next; as many as there are, the newest last."""
        seen = list(self._seen)[-last - 1 :]
        pairs = itertools.pairwise(seen)
        return [max(0, of(new.look) - of(old.look)) / max(new.at_s - old.at_s, 1e-3) for old, new in pairs]

    def values(self, of: Callable[[Look], int], *, last: int) -> list[float]:
        return [float(of(one.look)) for one in list(self._seen)[-last:]]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                look = self._look()
            except Exception:  # the boundary of this thread: somebody is being killed, or is not there yet
                continue
            self._seen.append(Seen(time.monotonic(), look))
