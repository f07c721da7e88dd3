"""The classes of the async client that have a blocking face, with the exceptions for each.

`tools.blocking_client` writes the faces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from avow.client import caller_thread, client, pledge, producer, queue, reader, subscriber, transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """How to generate one blocking class.

    `inner` names the attribute that holds the async object; `excluded` says why a method has no blocking version.
    """

    source: type
    name: str
    inner: str
    doc: str
    handwritten: type | None = None
    inner_type: type | None = None  # the type of the async object, where it is not `source`
    on_loop: frozenset[str] = frozenset()
    run: str = "self._thread.run"
    paged: Mapping[str, str] = field(default_factory=dict)  # iterator of batches -> the method that returns pages
    raw: frozenset[str] = frozenset()  # these return batches of the async client, unwrapped
    cached: frozenset[str] = frozenset()  # created once for each name, then reused
    excluded: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""


LOOP_ONLY: Final = "needs the event loop"
PLEDGE_STEP: Final = "a step that the methods of both faces use"

CLIENT: Final = Face(
    source=client.Client,
    name="BlockingClient",
    inner="client",
    doc="Usable from several threads. Closed by `close`, by its `with` block, or when the interpreter ends.",
    handwritten=caller_thread.CallerClient,
    on_loop=frozenset({"queue", "producer", "statistics"}),
    cached=frozenset({"queue"}),
    excluded={"channel": "a channel calls its owner back on the event loop"},
)
QUEUE: Final = Face(
    source=queue.Queue,
    name="BlockingQueue",
    inner="queue",
    doc="Made by `BlockingClient.queue`, which returns the same object for the same name.",
    handwritten=caller_thread.CallerQueue,
    on_loop=frozenset({"statistics"}),
    paged={"read": "pages", "follow": "follow_pages"},
    raw=frozenset({"pages"}),
    excluded={"write_buffer": LOOP_ONLY, "close": "the client closes its queues"},
)
TRANSACTION: Final = Face(
    source=transaction.Transaction,
    name="BlockingTransaction",
    inner="transaction",
    doc="Made by `BlockingQueue.transaction`. Published when its `with` block ends, discarded if the block raises.",
)
BATCH: Final = Face(
    source=reader.ReadBatch, name="BlockingBatch", inner="batch", doc="A `ReadBatch` whose `commit` waits."
)
PRODUCER: Final = Face(
    source=producer.Producer,
    name="BlockingProducer",
    inner="producer",
    doc="Made by `BlockingClient.producer`, for one thread at a time. Its `with` block commits at the end.",
    handwritten=caller_thread.CallerProducer,
    on_loop=frozenset({"abort", "non_acked_message_count", "statistics"}),
    run="self._run",
    excluded=dict.fromkeys(("check", "put", "suspended", "writable"), "a step of `send`, which waits"),
)
SUBSCRIPTION: Final = Face(
    source=subscriber.Subscription,
    name="BlockingSubscription",
    inner="subscription",
    doc="Made by `BlockingClient.subscribe`. Iterated by one thread; any thread may commit its batches.",
    handwritten=caller_thread.CallerSubscription,
    on_loop=frozenset({"statistics"}),
    excluded={"commit": "its batches have it"},
    extra="    def __iter__(self) -> Iterator[BlockingBatch]:\n        return self._iterate(BlockingBatch)\n",
)
PLEDGE: Final = Face(
    source=pledge.Pledge,
    inner_type=pledge.PledgeCalls,
    name="BlockingPledge",
    inner="calls",
    doc="Made by `BlockingClient.pledge`. Used by one thread.",
    handwritten=caller_thread.CallerPledge,
    excluded=dict.fromkeys(
        ("request", "send_submit", "committed", "decided", "interrupted", "abandon", "report_failure", "question"),
        PLEDGE_STEP,
    ),
)

_CLIENT_DOC: Final = """\
The client for code without an event loop: `avow.connect_blocking`.

A thread with an event loop (uvloop, if it is installed) runs the client of `avow.connect`. The methods here submit
their work to it and wait. Several threads may use one client: messages sent at the same time form one batch."""
_CHANNELS_DOC: Final = """\
Producers and subscriptions for code without an event loop; they run on the client's thread.

    with client.producer("orders") as producer:             with client.subscribe("orders", "billing") as batches:
        producer.send(b"value")                                  for batch in batches:
        producer.commit()                                            batch.commit()

A producer's `send` posts its message to the client's thread and does not wait."""
_PLEDGE_DOC: Final = """\
Pledges for code without an event loop: requests run on the client's thread, transactions on the caller's.

    pledge = client.pledge().call("http://bank-b/trans-in", {"amount": 30})
    with pledge.transaction(engine, checkback="http://bank-a/avow/checkback") as connection:
        connection.execute(...)
    pledge.outcome

A source is an Engine, a Connection or a Session of SQLAlchemy, or a DB-API connection: sqlite3, psycopg, PyMySQL, and
Django's. For `do_and_submit` also a client of redis-py or pymongo."""
MODULES: Final[Mapping[str, tuple[str, tuple[Face, ...]]]] = {
    "blocking": (_CLIENT_DOC, (CLIENT, TRANSACTION, QUEUE)),
    "blocking_channels": (_CHANNELS_DOC, (BATCH, PRODUCER, SUBSCRIPTION)),
    "blocking_pledge": (_PLEDGE_DOC, (PLEDGE,)),
}
