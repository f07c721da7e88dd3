"""A client of a cluster: `avow.connect`.

    async with await avow.connect("http://127.0.0.1:7401,http://127.0.0.1:7402") as client:
        queue = client.queue("orders")
        done = await queue.enqueue(b"value")

Any subset of the peers' addresses is enough: the client learns the others. A client belongs to the event loop it was
opened on.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack
from urllib.parse import urlencode

import msgspec

from avow import limits
from avow.client.channels import open_at, open_somewhere
from avow.client.cluster import Cluster, PeerInfo
from avow.client.descriptions import QueueInfo, Retention, Strategy, path_of, queue_path, read_queue, read_queues
from avow.client.observer import Event, observed
from avow.client.peer_connection import parse_address
from avow.client.pending_store import Store
from avow.client.pledge import Options, Pledge
from avow.client.pledge_draft import PledgeOptions
from avow.client.pledge_outcomes import PledgePage, read_page
from avow.client.producer import Producer
from avow.client.queue import Queue
from avow.client.subscriber import From, Subscription
from avow.errors import InvalidRequest, Unknown, UnknownQueue

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.channel.protocol.events import Bounds

TIMEOUT_S: Final = 30.0


def tls_context(ca: str | None) -> ssl.SSLContext:
    """A TLS context that verifies the peer's certificate against the authorities in the file `ca`, or the system's."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as cause:
        raise InvalidRequest(f"cannot read certificates from {ca!r} ({cause}); name a PEM file") from cause


async def connect(
    addresses: str | Sequence[str], *, token: str | None = None, ca: str | None = None, timeout_s: float = TIMEOUT_S
) -> Client:
    """Connect to a cluster. Returns when one peer has answered; raises Offline if none does within `timeout_s`.

    `token` is sent as a bearer token; `ca` is the path of a PEM file for https addresses. `timeout_s` is how long any
    call is retried before its outcome is reported.
    """
    texts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = [parse_address(text) for text in texts if text.strip()]
    tls = tls_context(ca) if any(address.tls for address in found) else None
    cluster = Cluster(found, token=token, tls=tls, timeout_s=timeout_s)
    try:
        await cluster.learn()
    except BaseException:
        await cluster.close()
        raise
    return Client(cluster)


class Client:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """The queue of this name. No request is sent until it is used."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(self._cluster, name)
        return queue

    # -------------------------------------------------------------------- queues

    async def create_queue(
        self,
        name: str,
        *,
        strategy: Strategy = "two-phase",
        lanes: int = 1,
        peers: Sequence[int] = (),
        retention: Retention | Mapping[str, object] | None = None,
    ) -> QueueInfo:
        """Create a queue, or do nothing if it exists with these settings. Raises AlreadyExists if its settings
        differ."""
        body: dict[str, object] = {"name": name, "strategy": strategy, "lanes": lanes, "peers": list(peers)}
        if retention is not None:
            body["retention"] = retention
        return read_queue((await self._cluster.send_json(b"POST", path_of("queues"), body)).body)

    async def change_queue(self, name: str, *, retention: Retention | Mapping[str, object]) -> QueueInfo:
        return read_queue((await self._cluster.send_json(b"PATCH", queue_path(name), {"retention": retention})).body)

    async def queues(self) -> tuple[QueueInfo, ...]:
        return read_queues((await self._cluster.call(b"GET", path_of("queues"))).body).queues

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages. Raises UnknownQueue."""
        try:
            await self._cluster.call(b"DELETE", queue_path(name))
        except Unknown as error:
            if not isinstance(error.__cause__, UnknownQueue):  # an earlier attempt, whose answer was lost, deleted it
                raise
        self.forget(name)

    def forget(self, name: str) -> None:
        """Drop what this client has cached about a queue, because a queue of the same name may be a new one."""
        queue = self._queues.pop(name, None)
        if queue is not None:
            queue.close()

    # ------------------------------------------------------------------ channels

    def producer(
        self,
        queue: str,
        *,
        store: Store | None = None,
        pending_count: int = limits.CHANNEL_PENDING_COUNT,
        pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> Producer:
        """Stream messages into a queue: `async with client.producer("orders") as producer`, then `send` and `commit`.

        `store`: a path or a PendingStore that keeps unacknowledged messages for the next run of the program; only one
        producer at a time may use it. `send` waits while `pending_count` batches or `pending_bytes` are unacknowledged.
        """
        buffer = self.queue(queue).write_buffer
        return Producer(self._cluster, buffer, store=store, pending_count=pending_count, pending_bytes=pending_bytes)

    def subscribe(
        self, queue: str, subscriber: str, *, member: str | None = None, from_: From = "start"
    ) -> Subscription:
        """Batches for a subscriber, each with `commit`: `async for batch in client.subscribe("orders", "billing")`.

        One client at a time reads for a subscriber: a second one takes over. With `member`, any number of members with
        different names share the lanes. `from_`: where a new subscriber starts.
        """
        return Subscription(self._cluster, queue=queue, subscriber=subscriber, member=member, from_=from_)

    def observe(self, queue: str) -> AsyncGenerator[Event, None]:
        """Replication events of a pub-sub queue; see `avow.client.observer`."""
        return observed(self._cluster, queue)

    async def channel(self, role: str, *, bounds: Bounds | None = None, **parameters: str | int) -> Channel:
        """A raw channel to any peer that accepts it; docs/reference/channel-wire.md lists roles and parameters.

        If its socket is lost it resumes at that peer for a short time; after that it ends, and the caller opens
        another."""
        given = {"role": role, **{name.rstrip("_"): str(value) for name, value in parameters.items()}}
        deadline = self._cluster.now() + self._cluster.timeout_s
        return await open_somewhere(
            self._cluster, lambda peer: open_at(self._cluster, peer, given, bounds=bounds), deadline=deadline
        )

    # ------------------------------------------------------------------- pledges

    def pledge(self, gid: str | None = None, **options: Unpack[PledgeOptions]) -> Pledge:
        """A message that is delivered if and only if a transaction commits; see `avow.client.pledge`.

        `gid`: your own id, for a request that may be repeated. A gid may never be reused for other content.
        """
        return Pledge(self._cluster, gid, Options(**options))

    async def pledges(self, *, position: str = "", limit: int = limits.PLEDGE_PAGE_COUNT_MAX) -> PledgePage:
        """The coordinator's pledges, one page at a time; finished pledges are removed after their retention."""
        asked = urlencode({"limit": limit, "position": position} if position else {"limit": limit})
        return read_page((await self._cluster.call(b"GET", path_of("pledges") + b"?" + asked.encode())).body)

    # --------------------------------------------------------------------- peers

    async def status(self) -> dict[str, Any]:
        """One peer's view of the cluster, as decoded JSON."""
        found: dict[str, Any] = msgspec.json.decode((await self._cluster.call(b"GET", path_of("cluster"))).body)
        return found

    async def peers(self) -> tuple[PeerInfo, ...]:
        return await self._cluster.learn()

    async def remove_peer(self, number: int) -> None:
        """Start removing a peer; `peers` shows it as `gone` when nothing depends on it any more."""
        await self._cluster.call(b"DELETE", path_of("peers", number))

    # --------------------------------------------------------------------- close

    async def close(self) -> None:
        """Close the client. Writes in flight end as refused or unknown."""
        for queue in self._queues.values():
            queue.close()
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def statistics(self) -> dict[str, object]:
        queues = {name: queue.statistics() for name, queue in self._queues.items()}
        return {**self._cluster.statistics(), "queues": queues}
