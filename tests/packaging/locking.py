"""deploy/lock.py as a module: it is a program outside the package."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

_spec = spec_from_file_location("lock", DEPLOY / "lock.py")
assert _spec is not None
assert _spec.loader is not None
lock = module_from_spec(_spec)
_spec.loader.exec_module(lock)
