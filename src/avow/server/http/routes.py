"""The table of all calls of the API.

It is used to dispatch requests, to parse parameters, to check rights and to generate the OpenAPI document. A test
compares the handlers with it.

The rights on one queue, `avow.pledges`, count for all pledges: reading them needs the right to read it; making,
retrying or stopping one needs the right to write to it. dtm's own paths are not in the table, because they answer as
dtm does, including its errors (see server/dtm/http.py).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from avow.errors import (
    AlreadyDecided,
    AlreadyExists,
    ContentDiffers,
    FolderUnusable,
    Forbidden,
    Incomplete,
    LaneEnded,
    MembershipBusy,
    NotAuthenticated,
    NotCoordinator,
    NotEqual,
    NotInstalled,
    PledgeDecided,
    Trimmed,
    UnknownMessage,
    UnknownPeer,
    UnknownPledge,
    UnknownQueue,
    UnknownSubscriber,
    UnknownTopic,
    UnknownTransaction,
    UpgradeUnfinished,
)
from avow.server.http import schemas
from avow.server.http.route import BATCH, JSON, METRICS, NDJSON, SCRIPT, TEXT, Errors, Route
from avow.server.pledges import schemas as pledges
from avow.wire.places import CONTENT_TYPE as PLACES
from avow.wire.ranges import CONTENT_TYPE as BATCHES

_LANES: Final[Errors] = (UnknownQueue, NotCoordinator)
_WRITES: Final[Errors] = (*_LANES, NotEqual, LaneEnded, ContentDiffers)
_DECIDES: Final[Errors] = (*_LANES, UnknownTransaction, AlreadyDecided, Incomplete)
_COORDINATOR: Final = (("avow-coordinator", "the peer that coordinates the lane; send the next write there"),)
_CURSORS: Final = (
    ("avow-next", "the version to continue after"),
    ("avow-end", "the lane's end on this peer"),
    ("avow-trimmed", "the last trimmed version"),
)

CLUSTER: Final = (
    Route("health", "GET", "/healthz", "whether the process is alive", right=None, answer=schemas.Health),
    Route("ready", "GET", "/readyz", "whether this peer takes part in the cluster", right=None, answer=schemas.Health),
    Route("metrics", "GET", "/metrics", "metrics for Prometheus", answer=str, answer_types=(METRICS,)),
    Route("openapi", "GET", "/v1/openapi.json", "this document", answer=Any),
    Route("cluster", "GET", "/v1/cluster", "this peer's view of the cluster", answer=schemas.Status),
    Route("show_me", "GET", "/v1/me", "the client's token and its rights", answer=schemas.Me),
    Route("list_peers", "GET", "/v1/peers", "the peers of the cluster", answer=schemas.Peers),
    Route(
        "join_peer",
        "POST",
        "/v1/peers",
        "let a new peer join the cluster; the same identity gets the same number",
        right="admin",
        body=schemas.Join,
        answer=schemas.Joined,
        errors=(FolderUnusable, MembershipBusy),
    ),
    Route(
        "remove_peer",
        "DELETE",
        "/v1/peers/{number}",
        "remove a peer from the cluster",
        schemas.PeerParameters,
        right="admin",
        answer=schemas.Leaving,
        statuses=(202,),
        errors=(UnknownPeer, MembershipBusy),
    ),
    Route(
        "raise_level",
        "POST",
        "/v1/level",
        "let the cluster use what a new release added, once every peer runs it; there is no way back",
        right="admin",
        body=schemas.RaiseLevel,
        answer=schemas.ClusterLevel,
        errors=(UpgradeUnfinished,),
    ),
)

QUEUES: Final = (
    Route(
        "list_queues",
        "GET",
        "/v1/queues",
        "the queues that the token may read",
        schemas.ListParameters,
        answer=schemas.Queues,
    ),
    Route(
        "create_queue",
        "POST",
        "/v1/queues",
        "create a queue; an existing one with the same settings is returned",
        right="manage",
        body=schemas.NewQueue,
        answer=schemas.Queue,
        statuses=(201, 200),
        errors=(AlreadyExists,),
    ),
    Route(
        "show_queue",
        "GET",
        "/v1/queues/{queue}",
        "a queue and its lanes",
        schemas.QueueParameters,
        right="use",
        answer=schemas.Queue,
        errors=(UnknownQueue,),
    ),
    Route(
        "change_queue",
        "PATCH",
        "/v1/queues/{queue}",
        "change the retention rules of a queue",
        schemas.QueueParameters,
        right="manage",
        body=schemas.ChangedQueue,
        answer=schemas.Queue,
        errors=(UnknownQueue,),
    ),
    Route(
        "delete_queue",
        "DELETE",
        "/v1/queues/{queue}",
        "delete a queue and all its messages",
        schemas.QueueParameters,
        right="manage",
        answer=schemas.Deleted,
        errors=(UnknownQueue,),
    ),
    Route(
        "trim_queue",
        "POST",
        "/v1/queues/{queue}/trim",
        "remove versions up to the given one, as far as holds allow",
        schemas.QueueParameters,
        right="manage",
        body=schemas.Trim,
        answer=schemas.TrimmedTo,
        errors=_LANES,
    ),
)

WRITING: Final = (
    Route(
        "enqueue",
        "POST",
        "/v1/queues/{queue}/messages",
        "write messages",
        schemas.EnqueueParameters,
        right="write",
        body=schemas.NewMessages,
        body_types=(JSON, BATCH),
        answer=schemas.Enqueued,
        errors=_WRITES,
        headers=_COORDINATOR,
    ),
    Route(
        "look_up_write",
        "GET",
        "/v1/queues/{queue}/writes/{write_id}",
        "the outcome of a write",
        schemas.LookupParameters,
        right="write",
        answer=schemas.Enqueued,
        errors=(*_WRITES, UnknownMessage),
    ),
    Route(
        "stage",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/messages",
        "write messages that become visible when their transaction is published",
        schemas.StageParameters,
        right="write",
        body=schemas.NewMessages,
        body_types=(JSON, BATCH),
        answer=schemas.Staged,
        errors=(*_LANES, AlreadyDecided, ContentDiffers),
    ),
    Route(
        "publish",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/publish",
        "make a transaction's messages visible",
        schemas.TransactionParameters,
        right="write",
        body=schemas.Parts,
        body_needed=False,
        answer=schemas.Published,
        errors=_DECIDES,
    ),
    Route(
        "discard",
        "POST",
        "/v1/queues/{queue}/transactions/{txn}/discard",
        "drop a transaction's messages",
        schemas.TransactionParameters,
        right="write",
        body=schemas.Parts,
        body_needed=False,
        answer=schemas.Discarded,
        errors=_DECIDES,
    ),
)

READING: Final = (
    Route(
        "read",
        "GET",
        "/v1/queues/{queue}/messages",
        "messages after a version",
        schemas.ReadParameters,
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
        schemas.MessageParameters,
        right="read",
        answer=schemas.NamedMessage,
        errors=(*_LANES, UnknownMessage, Trimmed),
    ),
    Route(
        "show_life",
        "GET",
        "/v1/queues/{queue}/messages/{lane}/{version}/life",
        "the history of a message as this peer knows it: who stored it, whether it is committed, who read it",
        schemas.LifeParameters,
        right="read",
        answer=schemas.Life,
        errors=(*_LANES, UnknownMessage, Trimmed),
    ),
    Route(
        "list_subscribers",
        "GET",
        "/v1/queues/{queue}/subscribers",
        "subscribers and their cursors",
        schemas.QueueParameters,
        right="read",
        answer=schemas.Subscribers,
        errors=_LANES,
    ),
    Route(
        "show_subscriber",
        "GET",
        "/v1/queues/{queue}/subscribers/{name}",
        "a subscriber's cursor",
        schemas.SubscriberParameters,
        right="read",
        answer=schemas.Subscriber,
        errors=(*_LANES, UnknownSubscriber),
    ),
    Route(
        "move_cursor",
        "PUT",
        "/v1/queues/{queue}/subscribers/{name}",
        "move a subscriber's cursor to these versions",
        schemas.SubscriberParameters,
        right="write",
        body=schemas.Cursor,
        answer=schemas.Subscriber,
        errors=_LANES,
    ),
    Route(
        "remove_subscriber",
        "DELETE",
        "/v1/queues/{queue}/subscribers/{name}",
        "remove a subscriber and its hold",
        schemas.SubscriberParameters,
        right="write",
        answer=schemas.Removed,
        errors=(*_LANES, UnknownSubscriber),
    ),
)

CHANNELS: Final = (
    Route(
        "open_channel",
        "GET",
        "/v1/channel",
        "open a channel: messages in both directions, with commits; see channel-wire",
        schemas.ChannelParameters,
        right="use",
        statuses=(101,),
        errors=(*_LANES, Trimmed),
        upgrades=True,
    ),
    Route(
        "webchannel",
        "GET",
        "/v1/webchannel",
        "a channel over WebChannel, version 8: the back channel",
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
        "a channel over WebChannel, version 8: handshake, and packets from the client",
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
        "the channel client for browsers, an ES module",
        right=None,
        answer=str,
        answer_types=(SCRIPT,),
        statuses=(200, 304),
    ),
    Route(
        "channel_types",
        "GET",
        "/v1/channel.d.ts",
        "its TypeScript types",
        right=None,
        answer=str,
        answer_types=(TEXT,),
        statuses=(200, 304),
    ),
    Route(
        "webchannel_module",
        "GET",
        "/v1/webchannel-socket.js",
        "WebChannel sockets for the channel client, an ES module",
        right=None,
        answer=str,
        answer_types=(SCRIPT,),
        statuses=(200, 304),
    ),
)

# ---------------------------------------------------------------------- pledges and topics

_PLEDGE_QUEUE: Final = "avow.pledges"
_PLEDGES: Final[Errors] = (UnknownPledge, PledgeDecided)
_PLEDGING: Final[Errors] = (*_PLEDGES, ContentDiffers, UnknownTopic, UnknownQueue, NotCoordinator, NotInstalled)


def _pledge(operation: str, method: str, path: str, summary: str, parameters: type[Struct], **more: Any) -> Route:
    right = "read" if method == "GET" else "write"
    return Route(operation, method, path, summary, parameters, right, _PLEDGE_QUEUE, **more)


PLEDGES: Final = (
    _pledge(
        "prepare_pledge",
        "POST",
        "/v1/pledges/{gid}/prepare",
        "prepare a pledge, which is delivered if and only if its transaction commits, as its checkback says",
        pledges.WaitingParameters,
        body=pledges.NewPledge,
        body_later=True,
        answer=pledges.Prepared,
        errors=_PLEDGING,
    ),
    _pledge(
        "submit_pledge",
        "POST",
        "/v1/pledges/{gid}/submit",
        "deliver a pledge: its transaction has committed, or there is none",
        pledges.WaitingParameters,
        body=pledges.NewPledge,
        body_later=True,
        answer=pledges.Submitted,
        errors=_PLEDGING,
    ),
    _pledge(
        "abort_pledge",
        "POST",
        "/v1/pledges/{gid}/abort",
        "abort a pledge: its transaction was rolled back; the checkback is called at once and decides",
        pledges.WaitingParameters,
        answer=pledges.Prepared,
        errors=_PLEDGES,
    ),
    _pledge(
        "list_pledges",
        "GET",
        "/v1/pledges",
        "pledges, newest first",
        pledges.ListParameters,
        answer=pledges.Pledges,
    ),
    _pledge(
        "show_pledge",
        "GET",
        "/v1/pledges/{gid}",
        "a pledge, its branches, and the last attempts",
        pledges.PledgeParameters,
        answer=pledges.Pledge,
        errors=(UnknownPledge,),
    ),
    _pledge(
        "retry_pledge",
        "POST",
        "/v1/pledges/{gid}/retry",
        "retry a pledge now and reset its back-off",
        pledges.WaitingParameters,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "redrive_pledge",
        "POST",
        "/v1/pledges/{gid}/redrive",
        "deliver a dead pledge again",
        pledges.WaitingParameters,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "stop_pledge",
        "POST",
        "/v1/pledges/{gid}/stop",
        "stop a pledge: deliver nothing more of it, whatever the transaction's outcome",
        pledges.WaitingParameters,
        body=pledges.Stopping,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "retry_pledges",
        "POST",
        "/v1/pledges/retry",
        "retry now all pledges that would wait longer than the given time",
        pledges.RetryParameters,
        answer=pledges.Changed,
    ),
    _pledge(
        "redrive_pledges",
        "POST",
        "/v1/pledges/redrive",
        "deliver all dead pledges again",
        pledges.RedriveParameters,
        answer=pledges.Changed,
    ),
    _pledge("list_topics", "GET", "/v1/topics", "topics by name", pledges.TopicsParameters, answer=pledges.Topics),
    _pledge(
        "show_topic",
        "GET",
        "/v1/topics/{topic}",
        "a topic and its subscribers",
        pledges.TopicParameters,
        answer=pledges.Topic,
        errors=(UnknownTopic,),
    ),
    _pledge(
        "subscribe_topic",
        "POST",
        "/v1/topics/{topic}/subscribers",
        "subscribe a URL to the pledges made to the topic from now on",
        pledges.TopicParameters,
        body=pledges.NewSubscriber,
        answer=pledges.Topic,
        errors=(AlreadyExists, UnknownQueue, NotCoordinator, NotInstalled),
    ),
    _pledge(
        "unsubscribe_topic",
        "DELETE",
        "/v1/topics/{topic}/subscribers",
        "unsubscribe a URL; it gets no pledges made from now on",
        pledges.SubscriberParameters,
        answer=pledges.Topic,
        errors=(UnknownTopic, UnknownSubscriber),
    ),
    _pledge(
        "remove_topic",
        "DELETE",
        "/v1/topics/{topic}",
        "remove a topic and its subscribers",
        pledges.TopicParameters,
        answer=pledges.TopicRemoved,
        errors=(UnknownTopic,),
    ),
)

ROUTES: Final[tuple[Route, ...]] = (*CLUSTER, *QUEUES, *WRITING, *READING, *CHANNELS, *PLEDGES)
