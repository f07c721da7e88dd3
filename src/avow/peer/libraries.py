"""What a peer needs beyond what a client does: the libraries of the extra `server`.

A client is installed without them, so whoever starts a peer looks first. The alternative is an ImportError from deep
within, in the log of a process that is gone. uvloop is not among them: without it a peer is slower and no different.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from avow.errors import NotInstalled

NEEDED: Final = ("httptools", "prometheus_client")


def installed() -> bool:
    return all(find_spec(name) is not None for name in NEEDED)


def check_installed(what: str) -> None:
    """Raises NotInstalled, which says how to get them. `what` is it that wants to start a peer."""
    if not installed():
        raise NotInstalled(what, extra="server")
