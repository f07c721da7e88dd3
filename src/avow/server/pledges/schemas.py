"""The JSON of /v1/pledges and /v1/topics as types. See `avow.server.http.schemas` for their uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, field

from avow import limits
from avow.pledge.record import Status

Gid = Annotated[str, Meta(min_length=1, max_length=limits.PLEDGE_ID_BYTES_MAX)]
TopicName = Annotated[str, Meta(min_length=1, max_length=limits.TOPIC_NAME_BYTES_MAX)]
Url = Annotated[str, Meta(max_length=limits.PLEDGE_URL_CHARS_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=315_360_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Waiting = Annotated[float, Meta(gt=0, le=60)]
Limit = Annotated[int, Meta(ge=1, le=limits.PLEDGE_PAGE_COUNT_MAX)]
Protocol: TypeAlias = Literal["", "http", "grpc", "json-rpc"]
DeliveryState: TypeAlias = Literal[
    "succeeded", "started", "delayed", "ongoing", "failing", "failed", "dead", "prepared"
]

# ---------------------------------------------------------------------- parameters


class PledgeParameters(Struct, frozen=True, kw_only=True, gc=False):
    gid: Gid


class WaitingParameters(PledgeParameters, frozen=True, kw_only=True, gc=False):
    """The request may wait for branches or a checkback. After `timeout_s` it is answered and continues."""

    timeout_s: Waiting = 40.0


class ListParameters(Struct, frozen=True, kw_only=True):
    gid: Gid | None = None
    status: Annotated[str, Meta(pattern=r"^[a-z]+(,[a-z]+)*$", max_length=64)] | None = None
    created_from_ms: Milliseconds | None = None
    created_to_ms: Milliseconds | None = None
    position: Annotated[str, Meta(max_length=200)] = ""
    limit: Limit = 100


class RedriveParameters(Struct, frozen=True, kw_only=True):
    created_from_ms: Milliseconds | None = None
    created_to_ms: Milliseconds | None = None
    limit: Limit = 100
    timeout_s: Waiting = 40.0


class RetryParameters(Struct, frozen=True, kw_only=True):
    longer_than_s: Seconds = 0.0
    limit: Limit = 100
    timeout_s: Waiting = 40.0


class TopicParameters(Struct, frozen=True, kw_only=True):
    topic: TopicName


class SubscriberParameters(TopicParameters, frozen=True, kw_only=True):
    url: Annotated[str, Meta(min_length=1, max_length=limits.PLEDGE_URL_CHARS_MAX)]


class TopicsParameters(Struct, frozen=True, kw_only=True):
    position: Annotated[str, Meta(max_length=limits.TOPIC_NAME_BYTES_MAX)] = ""
    limit: Limit = 100


# ---------------------------------------------------------------------- requests


class NewBranch(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`url`: http(s)://, grpc://, queue://name, queue://name?key=..., topic://name. At most one payload field."""

    url: Url
    payload: str | None = None
    payload_base64: bytes | None = None
    json: Raw = field(default_factory=Raw)


class NewPledge(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A submit without `branches` uses those that were prepared."""

    branches: Annotated[list[NewBranch], Meta(max_length=limits.PLEDGE_STEPS_MAX)] = []
    checkback: Url = ""
    protocol: Protocol = ""
    wait_result: bool = False
    concurrent: bool = False
    timeout_to_fail_s: Seconds | None = None
    request_timeout_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    retry_interval_s: Seconds | None = None
    retry_limit: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    branch_headers: dict[str, str] = {}
    delay_s: Seconds = 0.0
    not_before_ms: Milliseconds = 0
    custom_data: Annotated[str, Meta(max_length=65_536)] = ""


class Stopping(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=limits.PLEDGE_ERROR_CHARS_MAX)] = ""


class NewSubscriber(Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=limits.PLEDGE_URL_CHARS_MAX)]
    remark: Annotated[str, Meta(max_length=1_024)] = ""


# ---------------------------------------------------------------------- answers


class Prepared(Struct, frozen=True, gc=False):
    gid: str
    status: Status


class Submitted(Struct, frozen=True, gc=False):
    """`repeated`: it was submitted before, and nothing was changed. `delivery` is the state of delivery; `branch_id`,
    `error` and `next_at_ms` give details of one that is not finished."""

    gid: str
    status: Status
    delivery: DeliveryState
    repeated: bool
    branch_id: str = ""
    error: str = ""
    next_at_ms: int = 0


class Branch(Struct, frozen=True, omit_defaults=True):
    """`payload` is text; a payload that is not UTF-8 is in `payload_base64`. Lists of pledges leave both out."""

    branch_id: str
    url: str
    status: Literal["prepared", "succeeded"]
    attempts: int
    last_error: str
    finished_ms: int | None
    payload: str | None = None
    payload_base64: bytes | None = None


class Attempt(Struct, frozen=True):
    """`branch_id` "00" is a call of the checkback. `verdict`: SUCCESS, FAILURE, ONGOING or ERROR."""

    at_ms: int
    branch_id: str
    verdict: str
    took_ms: int
    text: str


class Pledge(Struct, frozen=True):
    """`next_at_ms`: time of the next action; null: none. `attempts`: the last few."""

    gid: str
    status: Status
    delivery: DeliveryState
    created_ms: int
    updated_ms: int
    next_at_ms: int | None
    not_before_ms: int | None
    finished_ms: int | None
    checkback: str
    protocol: str
    options: dict[str, Any]
    custom_data: str
    aborting: bool
    failures: int
    last_error: str
    reason: str
    branches: list[Branch]
    attempts: list[Attempt]
    revision: int


class Pledges(Struct, frozen=True):
    pledges: list[Pledge]
    next_position: str


class Changed(Struct, frozen=True):
    """`more`: there are more pledges than the limit."""

    changed: int
    more: bool


class TopicSubscriber(Struct, frozen=True):
    url: str
    remark: str


class Topic(Struct, frozen=True):
    name: str
    version: int
    created_ms: int
    updated_ms: int
    subscribers: list[TopicSubscriber]


class Topics(Struct, frozen=True):
    topics: list[Topic]
    next_position: str


class TopicRemoved(Struct, frozen=True):
    name: str
    removed: bool
