"""The calls of the API for pledges and topics.

The rights on one queue, `avow.pledges`, count for all pledges: reading them needs the right to read it; making,
retrying or stopping one needs the right to write to it. dtm's own paths are not in the table, because they answer as
dtm does, including its errors (see server/dtm/http.py).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from avow.errors import (
    AlreadyExists,
    ContentDiffers,
    NotCoordinator,
    NotInstalled,
    PledgeDecided,
    UnknownPledge,
    UnknownQueue,
    UnknownSubscriber,
    UnknownTopic,
)
from avow.server.http.route import Errors, Route
from avow.server.pledges import schemas as pledges

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
