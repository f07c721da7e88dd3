"""Avow carries messages. `avow.connect` and `avow.connect_blocking` are the client, `avow.errors` what it raises.

Importing the package imports nothing else: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from avow import errors as errors
    from avow.client.blocking import connect_blocking as connect_blocking
    from avow.client.client import connect as connect

__all__ = ["connect", "connect_blocking", "errors"]

_PLACES: Final = {"connect": "avow.client.client", "connect_blocking": "avow.client.blocking"}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("avow.errors")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'avow' has no attribute {name!r}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
