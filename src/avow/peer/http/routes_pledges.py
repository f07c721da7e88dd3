"""The calls about pledges and topics, as rows of the API's table.

A pledge is a message of one queue, so the rights on that queue count: to read pledges is to read it, to make, retry or
stop one is to write to it. dtm's own paths are not rows: they answer as dtm does, errors included (see dtm_http.py).
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
from avow.peer.http.route import Errors, Route
from avow.peer.pledges import shapes as pledges

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
        "a pledge that is delivered if and only if a transaction commits; its checkback is asked about that",
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
        "the transaction has committed, or there is none: deliver it",
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
        "the transaction was rolled back; the checkback is asked at once and decides",
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
        "try it now, and begin its back-off anew",
        pledges.WaitingParameters,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "redrive_pledge",
        "POST",
        "/v1/pledges/{gid}/redrive",
        "deliver a dead pledge after all",
        pledges.WaitingParameters,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "stop_pledge",
        "POST",
        "/v1/pledges/{gid}/stop",
        "deliver nothing more of it, whatever the transaction did",
        pledges.WaitingParameters,
        body=pledges.Stopping,
        answer=pledges.Pledge,
        errors=_PLEDGES,
    ),
    _pledge(
        "retry_pledges",
        "POST",
        "/v1/pledges/retry",
        "try all now that would wait longer",
        pledges.RetryParameters,
        answer=pledges.Changed,
    ),
    _pledge(
        "redrive_pledges",
        "POST",
        "/v1/pledges/redrive",
        "deliver all dead pledges after all",
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
        "a URL gets what is pledged to the topic from now on",
        pledges.TopicParameters,
        body=pledges.NewSubscriber,
        answer=pledges.Topic,
        errors=(AlreadyExists, UnknownQueue, NotCoordinator, NotInstalled),
    ),
    _pledge(
        "unsubscribe_topic",
        "DELETE",
        "/v1/topics/{topic}/subscribers",
        "a URL gets nothing that is pledged from now on",
        pledges.SubscriberParameters,
        answer=pledges.Topic,
        errors=(UnknownTopic, UnknownSubscriber),
    ),
    _pledge(
        "remove_topic",
        "DELETE",
        "/v1/topics/{topic}",
        "a topic and its subscribers",
        pledges.TopicParameters,
        answer=pledges.TopicRemoved,
        errors=(UnknownTopic,),
    ),
)
