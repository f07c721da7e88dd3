"""Every call of the API as a row of one table.

Dispatch matches requests against it, parameters are parsed by its types, rights are checked from it, and the OpenAPI
document is printed from it. A call that is not in the table does not exist; a test holds the handlers against it.
"""

from __future__ import annotations

from typing import Any, Final

from avow.errors import (
    AlreadyDecided,
    AlreadyExists,
    FolderUnusable,
    Forbidden,
    Incomplete,
    LaneEnded,
    MembershipBusy,
    NotAuthenticated,
    NotCoordinator,
    NotEqual,
    Trimmed,
    UnknownMessage,
    UnknownPeer,
    UnknownQueue,
    UnknownSubscriber,
    UnknownTransaction,
)
from avow.peer.http import shapes
from avow.peer.http.route import BATCH, JSON, METRICS, NDJSON, SCRIPT, TEXT, Errors, Route
from avow.peer.http.routes_pledges import PLEDGES
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.ranges import CONTENT_TYPE as BATCHES

_LANES: Final[Errors] = (UnknownQueue, NotCoordinator)
_WRITES: Final[Errors] = (*_LANES, NotEqual, LaneEnded)
_DECIDES: Final[Errors] = (*_LANES, UnknownTransaction, AlreadyDecided, Incomplete)
_COORDINATOR: Final = (("avow-coordinator", "the peer to send the lane's next write to"),)
_CURSORS: Final = (
    ("avow-next", "the version to continue after"),
    ("avow-end", "the lane's end on this peer"),
    ("avow-trimmed", "versions up to this one were removed"),
)

CLUSTER: Final = (
    Route("health", "GET", "/healthz", "the process serves", right=None, answer=shapes.Health),
    Route("ready", "GET", "/readyz", "this peer takes part in the cluster", right=None, answer=shapes.Health),
    Route("metrics", "GET", "/metrics", "figures for Prometheus", answer=str, answer_types=(METRICS,)),
    Route("openapi", "GET", "/v1/openapi.json", "this document", answer=Any),
    Route("cluster", "GET", "/v1/cluster", "this peer's view of the cluster", answer=shapes.Status),
    Route("show_me", "GET", "/v1/me", "who asks, and what that token may do", answer=shapes.Me),
    Route("list_peers", "GET", "/v1/peers", "the peers of the cluster", answer=shapes.Peers),
    Route(
        "join_peer",
        "POST",
        "/v1/peers",
        "a place in the cluster for a new peer; the same identity gets the same number",
        right="admin",
        body=shapes.Join,
        answer=shapes.Joined,
        errors=(FolderUnusable, MembershipBusy),
    ),
    Route(
        "remove_peer",
        "DELETE",
        "/v1/peers/{number}",
        "a peer leaves the cluster",
        shapes.PeerParameters,
        right="admin",
        answer=shapes.Leaving,
        statuses=(202,),
        errors=(UnknownPeer, MembershipBusy),
    ),
)

QUEUES: Final = (
    Route(
        "list_queues", "GET", "/v1/queues", "queues this token may read", shapes.ListParameters, answer=shapes.Queues
    ),
    Route(
        "create_queue",
        "POST",
        "/v1/queues",
        "a new queue, or the one that is there exactly so",
        right="manage",
        body=shapes.NewQueue,
        answer=shapes.Queue,
        statuses=(201, 200),
        errors=(AlreadyExists,),
    ),
    Route(
        "show_queue",
        "GET",
        "/v1/queues/{queue}",
        "a queue and its lanes",
        shapes.QueueParameters,
        right="use",
        answer=shapes.Queue,
        errors=(UnknownQueue,),
    ),
    Route(
        "change_queue",
        "PATCH",
        "/v1/queues/{queue}",
        "other rules of retention",
        shapes.QueueParameters,
        right="manage",
        body=shapes.ChangedQueue,
        answer=shapes.Queue,
        errors=(UnknownQueue,),
    ),
    Route(
        "delete_queue",
        "DELETE",
        "/v1/queues/{queue}",
        "the queue and all its messages, for good",
        shapes.QueueParameters,
        right="manage",
        answer=shapes.Deleted,
        errors=(UnknownQueue,),
    ),
    Route(
        "trim_queue",
        "POST",
        "/v1/queues/{queue}/trim",
        "remove versions up to one, as far as holds allow",
        shapes.QueueParameters,
        right="manage",
        body=shapes.Trim,
        answer=shapes.TrimmedTo,
        errors=_LANES,
    ),
)

WRITING: Final = (
    Route(
        "enqueue",
        "POST",
        "/v1/queues/{queue}/messages",
        "write messages",
        shapes.EnqueueParameters,
        right="write",
        body=shapes.NewMessages,
        body_types=(JSON, BATCH),
        answer=shapes.Enqueued,
        errors=_WRITES,
        headers=_COORDINATOR,
    ),
    Route(
        "look_up_write",
        "GET",
        "/v1/queues/{queue}/writes/{write_id}",
        "what became of a write",
        shapes.LookupParameters,
        right="write",
        answer=shapes.Enqueued,
        errors=(*_WRITES, UnknownMessage),
    ),
    Route(
        "stage",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/messages",
        "write messages that nobody sees before their transaction is published",
        shapes.StageParameters,
        right="write",
        body=shapes.NewMessages,
        body_types=(JSON, BATCH),
        answer=shapes.Staged,
        errors=(*_LANES, AlreadyDecided),
    ),
    Route(
        "publish",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/publish",
        "make a transaction's messages visible",
        shapes.TransactionParameters,
        right="write",
        body=shapes.Parts,
        body_needed=False,
        answer=shapes.Published,
        errors=_DECIDES,
    ),
    Route(
        "discard",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/discard",
        "drop a transaction's messages",
        shapes.TransactionParameters,
        right="write",
        body=shapes.Parts,
        body_needed=False,
        answer=shapes.Discarded,
        errors=_DECIDES,
    ),
)

READING: Final = (
    Route(
        "read",
        "GET",
        "/v1/queues/{queue}/messages",
        "messages after a version",
        shapes.ReadParameters,
        right="read",
        answer=str,
        answer_types=(NDJSON, BATCHES, PLACES),
        errors=(*_LANES, Trimmed),
        headers=_CURSORS,
    ),
    Route(
        "read_one",
        "GET",
        "/v1/queues/{queue}/messages/{lane}/{version}",
        "one message by its version id, committed or not",
        shapes.MessageParameters,
        right="read",
        answer=shapes.NamedMessage,
        errors=(*_LANES, UnknownMessage, Trimmed),
    ),
    Route(
        "show_life",
        "GET",
        "/v1/queues/{queue}/messages/{lane}/{version}/life",
        "what became of a message, as far as this peer knows: who stored it, whether it is committed, who read it",
        shapes.LifeParameters,
        right="read",
        answer=shapes.Life,
        errors=(*_LANES, UnknownMessage, Trimmed),
    ),
    Route(
        "list_subscribers",
        "GET",
        "/v1/queues/{queue}/subscribers",
        "subscribers and their cursors",
        shapes.QueueParameters,
        right="read",
        answer=shapes.Subscribers,
        errors=_LANES,
    ),
    Route(
        "show_subscriber",
        "GET",
        "/v1/queues/{queue}/subscribers/{name}",
        "a subscriber's cursor",
        shapes.SubscriberParameters,
        right="read",
        answer=shapes.Subscriber,
        errors=(*_LANES, UnknownSubscriber),
    ),
    Route(
        "move_cursor",
        "PUT",
        "/v1/queues/{queue}/subscribers/{name}",
        "everything up to these versions is dealt with",
        shapes.SubscriberParameters,
        right="write",
        body=shapes.Cursor,
        answer=shapes.Subscriber,
        errors=_LANES,
    ),
    Route(
        "remove_subscriber",
        "DELETE",
        "/v1/queues/{queue}/subscribers/{name}",
        "forget a subscriber and its hold",
        shapes.SubscriberParameters,
        right="write",
        answer=shapes.Removed,
        errors=(*_LANES, UnknownSubscriber),
    ),
)

CHANNELS: Final = (
    Route(
        "open_channel",
        "GET",
        "/v1/channel",
        "a channel: messages both ways, with commits; see channel-wire",
        shapes.ChannelParameters,
        right="use",
        statuses=(101,),
        errors=(*_LANES, Trimmed),
        upgrades=True,
    ),
    Route(
        "webchannel",
        "GET",
        "/v1/webchannel",
        "the same over WebChannel, version 8: the back channel",
        right=None,
        answer=str,
        answer_types=(TEXT,),
        errors=(UnknownQueue, NotAuthenticated, Forbidden),
        raw=True,
    ),
    Route(
        "webchannel_forward",
        "POST",
        "/v1/webchannel",
        "the same over WebChannel, version 8: a session begins, packets go up",
        right=None,
        answer=str,
        answer_types=(TEXT,),
        errors=(UnknownQueue, NotAuthenticated, Forbidden),
        raw=True,
    ),
    Route(
        "channel_module",
        "GET",
        "/v1/channel.js",
        "channels for browsers, an ES module",
        right=None,
        answer=str,
        answer_types=(SCRIPT,),
        statuses=(200, 304),
    ),
    Route(
        "channel_types",
        "GET",
        "/v1/channel.d.ts",
        "its types",
        right=None,
        answer=str,
        answer_types=(TEXT,),
        statuses=(200, 304),
    ),
    Route(
        "webchannel_module",
        "GET",
        "/v1/webchannel-socket.js",
        "its sockets over WebChannel, an ES module",
        right=None,
        answer=str,
        answer_types=(SCRIPT,),
        statuses=(200, 304),
    ),
)

ROUTES: Final[tuple[Route, ...]] = (*CLUSTER, *QUEUES, *WRITING, *READING, *CHANNELS, *PLEDGES)
