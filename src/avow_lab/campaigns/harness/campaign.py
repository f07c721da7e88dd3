"""The course of every campaign of `avow prove`. A scenario adds its testbed, its faults and its checks.

    folder -> start -> inject_faults -> judge -> close -> verdict.json, or the folder is removed

A temporary folder is kept when the verdict is not clean, or with `keep`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct


class Options(Struct, frozen=True, kw_only=True):
    """`folder` empty: a temporary one."""

    seed: int = 1
    folder: str = ""
    keep: bool = False


class Progress(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def elapsed_s(self) -> float: ...

    def line(self) -> str: ...


class Verdict(Protocol):
    folder: str

    @property
    def clean(self) -> bool: ...


O = TypeVar("O", bound=Options)  # noqa: E741
V = TypeVar("V", bound=Verdict)
V_co = TypeVar("V_co", bound=Verdict, covariant=True)


class Campaign(Protocol[V_co]):
    """One campaign. The calls come in this order; `close` comes in any case."""

    def progress(self) -> Progress:
        """Called from another thread at any time. Must return at once."""

    def start(self) -> None:
        """Start the testbed."""

    def inject_faults(self) -> None:
        """All faults, one after the other; then wait until the system has healed and nothing is in flight."""

    def judge(self) -> V_co: ...

    def close(self) -> None:
        """End every process."""


Watch: TypeAlias = Callable[[Callable[[], Progress]], AbstractContextManager[None]]


def draw_seed(seed: int | None) -> int:
    return random.SystemRandom().randrange(1 << 31) if seed is None else seed


def prove(campaign: Callable[[O, Path], Campaign[V]], options: O, *, watch: Watch = lambda _: nullcontext()) -> V:
    """Run a campaign; `watch` shows its progress meanwhile. Raises AvowError when it cannot run."""
    folder = Path(options.folder or tempfile.mkdtemp(prefix="avow-prove-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept = bool(options.folder) or options.keep
    try:
        with closing(campaign(options, folder)) as running, watch(running.progress):
            running.start()
            running.inject_faults()
            verdict = running.judge()
        kept = kept or not verdict.clean
        verdict.folder = str(folder) if kept else ""
        if kept:
            text = msgspec.json.format(msgspec.json.encode(verdict), indent=1)
            (folder / "verdict.json").write_bytes(text)
        return verdict
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
