"""A peer: one process of a cluster. It needs libraries that a client does not: those of the extra `server`.

A client is installed without them, so code that starts a peer checks first. Otherwise the user would see an ImportError
from deep inside, in the log of a process that has ended. uvloop is not required: a peer without it is only slower.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from avow.errors import NotInstalled

NEEDED: Final = ("httptools", "prometheus_client")


def installed() -> bool:
    return all(find_spec(name) is not None for name in NEEDED)


def check_installed(what: str) -> None:
    """Raises NotInstalled, which says how to install them. `what` names the feature that needs a peer."""
    if not installed():
        raise NotInstalled(what, extra="server")
