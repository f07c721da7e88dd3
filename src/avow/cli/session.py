"""A client for the commands that carry messages: found quickly or refused quickly, and closed in any case.

The client itself goes on trying for as long as its time lasts, which is right for a service and wrong for somebody who
forgot to start a cluster. So one question is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from avow.cli.api import Api
from avow.cli.options import DEFAULT_API

if TYPE_CHECKING:
    from avow.client.blocking import BlockingClient


def reachable(addresses: str, *, token: str, ca: str, timeout_s: float) -> str:
    """The addresses to give to a client. Raises Offline at once when nobody listens at any of them."""
    cluster = Api(addresses, token=token, ca=ca, timeout_s=timeout_s)
    cluster.get("/healthz")
    return cluster.address if addresses == DEFAULT_API else ",".join(cluster.addresses)


@contextmanager
def connected(addresses: str, *, token: str, ca: str, timeout_s: float) -> Iterator[BlockingClient]:
    import avow  # the client is for these commands alone

    known = reachable(addresses, token=token, ca=ca, timeout_s=timeout_s)
    with avow.connect_blocking(known, token=token or None, ca=ca or None, timeout_s=timeout_s) as client:
        yield client
