"""Samples of the demo's counts while it runs, taken in a thread, and the rates between them.

A sample takes as long as a peer, a database and a table need to answer, and one of them may just have been killed. So
neither the story nor the screen waits for samples. A sample that fails is left out.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from avow_lab.demo.chain import Sample

SAMPLE_S: Final = 0.4
KEPT: Final = 200


class Timed(Struct, frozen=True):
    at_s: float
    sample: Sample


class Sampler:
    """Takes samples between `start` and `stop`. `latest` is an empty Sample before the first."""

    def __init__(self, take: Callable[[], Sample]) -> None:
        self._take = take
        self._samples: deque[Timed] = deque(maxlen=KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="avow-demo-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def latest(self) -> Sample:
        return self._samples[-1].sample if self._samples else Sample()

    def rates(self, of: Callable[[Sample], int], *, last: int) -> list[float]:
        """Per second, between each sample and the next; at most `last` of them, the newest last."""
        pairs = itertools.pairwise(list(self._samples)[-last - 1 :])
        return [max(0, of(new.sample) - of(old.sample)) / max(new.at_s - old.at_s, 1e-3) for old, new in pairs]

    def values(self, of: Callable[[Sample], int], *, last: int) -> list[float]:
        return [float(of(one.sample)) for one in list(self._samples)[-last:]]

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            try:
                sample = self._take()
            except Exception:  # the boundary of this thread: a process was killed, or has not started yet
                continue
            self._samples.append(Timed(time.monotonic(), sample))
