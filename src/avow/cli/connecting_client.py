"""A client for the commands that read and write messages. It fails at once if no peer is reachable.

The client retries until its timeout. That is right for a service, but not for a person who forgot to start a cluster,
so one request is made before the client connects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from avow.cli.cluster_api import Api
from avow.cli.options import DEFAULT_API

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient


def reachable(addresses: str, *, token: str, ca: str, timeout_s: float) -> str:
    """The addresses to pass to a client. Raises Offline at once if no peer listens at any of them."""
    cluster = Api(addresses, token=token, ca=ca, timeout_s=timeout_s)
    cluster.get("/healthz")
    return cluster.address if addresses == DEFAULT_API else ",".join(cluster.addresses)


@contextmanager
def connected(addresses: str, *, token: str, ca: str, timeout_s: float) -> Iterator[BlockingClient]:
    import avow  # only these commands need the client

    known = reachable(addresses, token=token, ca=ca, timeout_s=timeout_s)
    with avow.connect_blocking(known, token=token or None, ca=ca or None, timeout_s=timeout_s) as client:
        yield client
