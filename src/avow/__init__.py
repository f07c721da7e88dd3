"""Avow carries messages. The names of the client, of its results and of pledges can be imported from here.

    from avow import Client, Done, Refused, Unknown, connect

Three outcomes: `Done` is a value and is returned, `Refused` and `Unknown` are errors and are raised. `AvowError` is the
root of all errors; the other classes are in `avow.errors`. The observer's `Enqueued`, `Stored` and `Committed` are
events of a pub-sub queue. The outcomes of a pledge have names of their own, from `Delivered` to `OutcomeUnknown`;
`PledgeOutcome` is their union.

Importing the package imports nothing else: each name is loaded when it is first used. A name is added in three places:
`__all__`, `_PLACES`, and the imports that a type checker reads; a test compares them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from avow import errors
    from avow.channel.stores import FileStore, MemoryStore, PendingStore
    from avow.client.blocking import BlockingClient, BlockingQueue, BlockingTransaction, connect_blocking
    from avow.client.blocking_channels import BlockingBatch, BlockingProducer, BlockingSubscription
    from avow.client.blocking_pledge import BlockingPledge
    from avow.client.client import Client, connect
    from avow.client.cluster import PeerInfo
    from avow.client.descriptions import LaneInfo, Level, QueueInfo, Retention, Strategy, SubscriberInfo
    from avow.client.message_columns import Headers
    from avow.client.observer import Committed, Enqueued, Event, Stored
    from avow.client.outcomes import Done
    from avow.client.pledge import Pledge
    from avow.client.pledge_draft import PledgeOptions
    from avow.client.pledge_outcomes import (
        CommittedPending,
        Delivered,
        OutcomeUnknown,
        PledgeAnswer,
        PledgePage,
        RolledBack,
        Stopped,
    )
    from avow.client.pledge_outcomes import Outcome as PledgeOutcome
    from avow.client.producer import Producer, Written
    from avow.client.queue import Queue
    from avow.client.reader import Message, ReadBatch, StoredMessage
    from avow.client.subscriber import SubscribedBatch, Subscription
    from avow.client.transaction import Transaction
    from avow.errors import AvowError, Refused, Unknown

    __version__: str

__all__ = [
    "AvowError",
    "BlockingBatch",
    "BlockingClient",
    "BlockingPledge",
    "BlockingProducer",
    "BlockingQueue",
    "BlockingSubscription",
    "BlockingTransaction",
    "Client",
    "Committed",
    "CommittedPending",
    "Delivered",
    "Done",
    "Enqueued",
    "Event",
    "FileStore",
    "Headers",
    "LaneInfo",
    "Level",
    "MemoryStore",
    "Message",
    "OutcomeUnknown",
    "PeerInfo",
    "PendingStore",
    "Pledge",
    "PledgeAnswer",
    "PledgeOptions",
    "PledgeOutcome",
    "PledgePage",
    "Producer",
    "Queue",
    "QueueInfo",
    "ReadBatch",
    "Refused",
    "Retention",
    "RolledBack",
    "Stopped",
    "Stored",
    "StoredMessage",
    "Strategy",
    "SubscribedBatch",
    "SubscriberInfo",
    "Subscription",
    "Transaction",
    "Unknown",
    "Written",
    "__version__",
    "connect",
    "connect_blocking",
    "errors",
]

_PLACES: Final = {
    "AvowError": "avow.errors",
    "BlockingBatch": "avow.client.blocking_channels",
    "BlockingClient": "avow.client.blocking",
    "BlockingPledge": "avow.client.blocking_pledge",
    "BlockingProducer": "avow.client.blocking_channels",
    "BlockingQueue": "avow.client.blocking",
    "BlockingSubscription": "avow.client.blocking_channels",
    "BlockingTransaction": "avow.client.blocking",
    "Client": "avow.client.client",
    "Committed": "avow.client.observer",
    "CommittedPending": "avow.client.pledge_outcomes",
    "Delivered": "avow.client.pledge_outcomes",
    "Done": "avow.client.outcomes",
    "Enqueued": "avow.client.observer",
    "Event": "avow.client.observer",
    "FileStore": "avow.channel.stores",
    "Headers": "avow.client.message_columns",
    "LaneInfo": "avow.client.descriptions",
    "Level": "avow.client.descriptions",
    "MemoryStore": "avow.channel.stores",
    "Message": "avow.client.reader",
    "OutcomeUnknown": "avow.client.pledge_outcomes",
    "PeerInfo": "avow.client.cluster",
    "PendingStore": "avow.channel.stores",
    "Pledge": "avow.client.pledge",
    "PledgeAnswer": "avow.client.pledge_outcomes",
    "PledgeOptions": "avow.client.pledge_draft",
    "PledgeOutcome": "avow.client.pledge_outcomes",
    "PledgePage": "avow.client.pledge_outcomes",
    "Producer": "avow.client.producer",
    "Queue": "avow.client.queue",
    "QueueInfo": "avow.client.descriptions",
    "ReadBatch": "avow.client.reader",
    "Refused": "avow.errors",
    "Retention": "avow.client.descriptions",
    "RolledBack": "avow.client.pledge_outcomes",
    "Stopped": "avow.client.pledge_outcomes",
    "Stored": "avow.client.observer",
    "StoredMessage": "avow.client.reader",
    "Strategy": "avow.client.descriptions",
    "SubscribedBatch": "avow.client.subscriber",
    "SubscriberInfo": "avow.client.descriptions",
    "Subscription": "avow.client.subscriber",
    "Transaction": "avow.client.transaction",
    "Unknown": "avow.errors",
    "Written": "avow.client.producer",
    "connect": "avow.client.client",
    "connect_blocking": "avow.client.blocking",
}
_OTHER_NAMES: Final = {"PledgeOutcome": "Outcome"}  # what a public name is called in its module, where that differs

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("avow.errors")
        if name == "__version__":
            return _version()
        if name not in _PLACES:
            raise AttributeError(f"module 'avow' has no attribute {name!r}")
        return getattr(import_module(_PLACES[name]), _OTHER_NAMES.get(name, name))


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("avow")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


def __dir__() -> list[str]:
    return sorted(__all__)


class _MovedModules:
    """The last finder on `sys.meta_path`: reached by imports that fail. It says where a module has moved to."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG004
        if name.startswith("avow."):
            from avow.moved import raise_if_moved

            raise_if_moved(name)
        return None


sys.meta_path.append(_MovedModules)
