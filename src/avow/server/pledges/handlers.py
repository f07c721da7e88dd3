"""Handlers of /v1/pledges and /v1/topics.

Queries need the right to read the queue `avow.pledges`, all other calls the right to write it. A branch that writes to
a queue also needs the right to write to that queue; it is checked when the pledge or the subscription is made.

A request that changes a pledge continues after its client disconnects: otherwise a submit that is stored and not
delivered would wait until the time until which it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from msgspec import structs

from avow.errors import InvalidRequest
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Content, Options, Pledge, Status
from avow.pledge.store import Filter
from avow.server.pledges import schemas

if TYPE_CHECKING:
    from avow.pledge import store
    from avow.pledge.coordinator import Coordinator
    from avow.pledge.record import Many, Submission
    from avow.server.http.api import Api
    from avow.server.http.request import HttpRequest

STATUSES: Final[tuple[str, ...]] = get_args(Status)
_OPTIONS: Final = tuple(field.name for field in structs.fields(Options))
_DEFAULTS: Final = Options()


def prepare_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: None) -> None:  # noqa: ARG001
    wanted = content_of(asked.gid, api.decode("prepare_pledge", request))
    _serve(api, request, asked, _prepare(api, request, wanted))


async def _prepare(api: Api, request: HttpRequest, wanted: Content) -> None:
    _check_targets(api, request, wanted)
    coordinator = api.pledges.running or await api.pledges.coordinator()
    pledge = await coordinator.prepare(wanted, source=request.body)
    api.answer(request, schemas.Prepared(wanted.gid, pledge.progress.status))


def submit_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: None) -> None:  # noqa: ARG001
    """Most submits have the same bytes as their prepare."""
    running = api.pledges.running
    wanted = running.prepared_from(asked.gid, request.body) if running is not None else None
    if wanted is None:
        wanted = content_of(asked.gid, api.decode("submit_pledge", request))
    _serve(api, request, asked, _submit(api, request, wanted))


async def _submit(api: Api, request: HttpRequest, wanted: Content) -> None:
    coordinator = api.pledges.running or await api.pledges.coordinator()
    if not wanted.steps:
        wanted = _prepared(await coordinator.load(wanted.gid), wanted)
    _check_targets(api, request, wanted)

    def answer(done: Submission) -> None:
        status, how = done.pledge.progress.status, done.delivery
        api.answer(
            request,
            schemas.Submitted(wanted.gid, status, how.state, done.repeated, how.branch_id, how.error, how.next_at_ms),
        )
        api.pledges.answered(request)

    await coordinator.submit(wanted, on_stored=answer)


def _check_targets(api: Api, request: HttpRequest, wanted: Content) -> None:
    queues = [url for url, _ in wanted.steps if url.startswith("queue://")]
    if queues:
        api.pledges.check_targets(api.token(request), queues)


def abort_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, request, asked, _abort(api, request, asked.gid))


async def _abort(api: Api, request: HttpRequest, gid: str) -> None:
    coordinator = await api.pledges.coordinator()
    pledge = await coordinator.abort(gid)
    api.answer(request, schemas.Prepared(pledge.gid, pledge.status))


def _serve(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, work: Coroutine[Any, Any, None]) -> None:
    api.pledges.serve(request, work, deadline=api.listener.now() + asked.timeout_s)


# ---------------------------------------------------------------------- queries and operations


async def show_pledge(api: Api, request: HttpRequest, asked: schemas.PledgeParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    api.answer(request, view(api, await coordinator.load(asked.gid), with_payloads=True))


async def list_pledges(api: Api, request: HttpRequest, asked: schemas.ListParameters, content: None) -> None:  # noqa: ARG001
    wanted = Filter(asked.gid or "", statuses_of(asked.status), asked.created_from_ms, asked.created_to_ms)
    coordinator = await api.pledges.coordinator()
    page = await coordinator.find(wanted, position=asked.position, limit=asked.limit)
    api.answer(request, schemas.Pledges([view(api, pledge) for pledge in page.pledges], page.next_position))


def retry_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, request, asked, _change(api, request, lambda coordinator: coordinator.retry(asked.gid)))


def redrive_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, request, asked, _change(api, request, lambda coordinator: coordinator.redrive(asked.gid)))


def stop_pledge(api: Api, request: HttpRequest, asked: schemas.WaitingParameters, content: schemas.Stopping) -> None:
    def stop(coordinator: Coordinator) -> Coroutine[Any, Any, Pledge]:
        return coordinator.stop(asked.gid, reason=content.reason)

    _serve(api, request, asked, _change(api, request, stop))


async def retry_pledges(api: Api, request: HttpRequest, asked: schemas.RetryParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    _answer_many(api, request, await coordinator.retry_waiting(longer_than_s=asked.longer_than_s, limit=asked.limit))


async def redrive_pledges(api: Api, request: HttpRequest, asked: schemas.RedriveParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    wanted = Filter(created_from_ms=asked.created_from_ms, created_to_ms=asked.created_to_ms)
    _answer_many(api, request, await coordinator.redrive_all(wanted, limit=asked.limit))


async def _change(api: Api, request: HttpRequest, change: Callable[[Coordinator], Coroutine[Any, Any, Pledge]]) -> None:
    coordinator = await api.pledges.coordinator()
    pledge = await change(coordinator)
    api.answer(request, view(api, pledge, with_payloads=True))


def _answer_many(api: Api, request: HttpRequest, many: Many) -> None:
    api.answer(request, schemas.Changed(many.changed_count, many.more))


# ---------------------------------------------------------------------- topics


async def list_topics(api: Api, request: HttpRequest, asked: schemas.TopicsParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    topics, position = await coordinator.topics.list(position=asked.position, limit=asked.limit)
    api.answer(request, schemas.Topics([topic_view(topic) for topic in topics], position))


async def show_topic(api: Api, request: HttpRequest, asked: schemas.TopicParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    api.answer(request, topic_view(await coordinator.topics.load(asked.topic)))


async def subscribe_topic(
    api: Api, request: HttpRequest, asked: schemas.TopicParameters, content: schemas.NewSubscriber
) -> None:
    api.pledges.check_targets(api.token(request), [content.url])
    coordinator = await api.pledges.coordinator()
    topic = await coordinator.topics.subscribe(asked.topic, content.url, remark=content.remark)
    api.answer(request, topic_view(topic))


async def unsubscribe_topic(
    api: Api,
    request: HttpRequest,
    asked: schemas.SubscriberParameters,
    content: None,  # noqa: ARG001
) -> None:
    coordinator = await api.pledges.coordinator()
    topic = await coordinator.topics.unsubscribe(asked.topic, asked.url)
    api.answer(request, topic_view(topic))


async def remove_topic(api: Api, request: HttpRequest, asked: schemas.TopicParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    await coordinator.topics.delete(asked.topic)
    api.answer(request, schemas.TopicRemoved(asked.topic, removed=True))


def topic_view(topic: store.Topic) -> schemas.Topic:
    subscribers = [schemas.TopicSubscriber(url, remark) for url, remark in topic.subscribers]
    return schemas.Topic(topic.name, topic.version, topic.created_ms, topic.updated_ms, subscribers)


# ---------------------------------------------------------------------- from and to JSON


def content_of(gid: str, asked: schemas.NewPledge) -> Content:
    """Raises InvalidRequest."""
    options = Options(
        asked.wait_result,
        asked.concurrent,
        asked.timeout_to_fail_s,
        asked.request_timeout_s,
        asked.retry_interval_s,
        asked.retry_limit,
        asked.branch_headers,
        asked.delay_s,
        asked.not_before_ms,
    )
    return Content(
        gid,
        checkback=asked.checkback,
        options=_DEFAULTS if options == _DEFAULTS else options,
        protocol=asked.protocol,
        custom_data=asked.custom_data,
        steps=tuple((branch.url, _payload(branch)) for branch in asked.branches),
    )


def _payload(branch: schemas.NewBranch) -> bytes:
    json = bytes(branch.json) or None
    given = [part for part in (branch.payload, branch.payload_base64, json) if part is not None]
    if len(given) > 1:
        raise InvalidRequest("a branch must have one of `payload`, `payload_base64` and `json`; nothing was done")
    if not given:
        return b""
    return given[0].encode() if isinstance(given[0], str) else given[0]


def _prepared(known: Pledge, wanted: Content) -> Content:
    """A submit without branches: those of the prepared pledge, with the submit's own options."""
    content = known.content
    return structs.replace(
        wanted, steps=content.asked(), checkback=wanted.checkback or content.checkback, protocol=content.protocol
    )


def statuses_of(text: str | None) -> tuple[Status, ...]:
    """Parses comma-separated names. Raises InvalidRequest."""
    names = text.split(",") if text else []
    for name in names:
        if name not in STATUSES:
            raise InvalidRequest(f"`status` must be one of {', '.join(STATUSES)}, not {name!r}; nothing was done")
    return cast("tuple[Status, ...]", tuple(names))


def view(api: Api, pledge: Pledge, *, with_payloads: bool = False) -> schemas.Pledge:
    content, progress = pledge.content, pledge.progress
    branches = [
        schemas.Branch(
            branch.branch_id,
            branch.url,
            done.status,
            done.attempts,
            done.last_error,
            done.finished_ms or None,
            **(_shown(branch.payload) if with_payloads else {}),
        )
        for branch, done in zip(content.branches, progress.branches, strict=True)
    ]
    return schemas.Pledge(
        gid=pledge.gid,
        status=pledge.status,
        delivery=state.delivery(progress, now_ms=api.peer.now_ms()).state,
        created_ms=progress.created_ms,
        updated_ms=progress.updated_ms,
        next_at_ms=progress.next_at_ms if progress.next_at_ms < NEVER_MS else None,
        not_before_ms=progress.not_before_ms or None,
        finished_ms=progress.finished_ms or None,
        checkback=content.checkback,
        protocol=content.protocol,
        options=_option_fields(state.options_of(content, progress)),
        custom_data=content.custom_data,
        aborting=progress.aborting,
        failures=progress.failures,
        last_error=progress.last_error,
        reason=progress.reason,
        branches=branches,
        attempts=[schemas.Attempt(a.at_ms, a.branch_id, a.verdict, a.took_ms, a.text) for a in progress.attempts],
        revision=pledge.revision,
    )


def _option_fields(options: Options) -> dict[str, Any]:
    """The options that differ from the defaults."""
    given = {name: getattr(options, name) for name in _OPTIONS}
    return {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}


def _shown(payload: bytes) -> dict[str, Any]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": payload}
