"""/v1/pledges and /v1/topics: what can be asked of a pledge, and who may ask it.

The right that counts is that on the queue `avow.pledges`: read to look, write for everything else. A branch that writes
to a queue needs the right to write to that queue as well, checked when it is pledged or subscribed.

What changes a pledge goes on when its client hangs up: a submit that is stored and not carried on would wait for the
time that it is held for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from msgspec import structs

from avow.errors import InvalidRequest
from avow.peer.pledges import shapes
from avow.pledge import state
from avow.pledge.record import NEVER_MS, Content, Options, Pledge, Status
from avow.pledge.store import Filter

if TYPE_CHECKING:
    from avow.peer.http.api import Api
    from avow.peer.http.exchange import Exchange
    from avow.pledge import store
    from avow.pledge.coordinator import Coordinator, Many, Submission

STATUSES: Final[tuple[str, ...]] = get_args(Status)
_OPTIONS: Final = tuple(field.name for field in structs.fields(Options))
_UNSAID: Final = Options()


def prepare_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: None) -> None:  # noqa: ARG001
    request = request_of(asked.gid, api.decode("prepare_pledge", exchange))
    _serve(api, exchange, asked, _prepare(api, exchange, request))


async def _prepare(api: Api, exchange: Exchange, request: Content) -> None:
    _check_targets(api, exchange, request)
    coordinator = api.pledges.running or await api.pledges.coordinator()
    pledge = await coordinator.prepare(request, source=exchange.body)
    api.answer(exchange, shapes.Prepared(request.gid, pledge.progress.status))


def submit_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: None) -> None:  # noqa: ARG001
    """Most submits repeat their prepare to the byte."""
    running = api.pledges.running
    request = running.prepared_from(asked.gid, exchange.body) if running is not None else None
    if request is None:
        request = request_of(asked.gid, api.decode("submit_pledge", exchange))
    _serve(api, exchange, asked, _submit(api, exchange, request))


async def _submit(api: Api, exchange: Exchange, request: Content) -> None:
    coordinator = api.pledges.running or await api.pledges.coordinator()
    if not request.steps:
        request = _prepared(await coordinator.load(request.gid), request)
    _check_targets(api, exchange, request)

    def answer(done: Submission) -> None:
        status, how = done.pledge.progress.status, done.delivery
        api.answer(
            exchange,
            shapes.Submitted(request.gid, status, how.state, done.repeated, how.branch_id, how.error, how.next_at_ms),
        )
        api.pledges.answered(exchange)

    await coordinator.submit(request, told=answer)


def _check_targets(api: Api, exchange: Exchange, request: Content) -> None:
    queues = [url for url, _ in request.steps if url.startswith("queue://")]
    if queues:
        api.pledges.check_targets(api.token(exchange), queues)


def abort_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, exchange, asked, _abort(api, exchange, asked.gid))


async def _abort(api: Api, exchange: Exchange, gid: str) -> None:
    coordinator = await api.pledges.coordinator()
    pledge = await coordinator.abort(gid)
    api.answer(exchange, shapes.Prepared(pledge.gid, pledge.status))


def _serve(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, work: Coroutine[Any, Any, None]) -> None:
    api.pledges.serve(exchange, work, deadline=api.listener.now() + asked.timeout_s)


# ---------------------------------------------------------------------- for people


async def show_pledge(api: Api, exchange: Exchange, asked: shapes.PledgeParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    api.answer(exchange, view(api, await coordinator.load(asked.gid), with_payloads=True))


async def list_pledges(api: Api, exchange: Exchange, asked: shapes.ListParameters, content: None) -> None:  # noqa: ARG001
    wanted = Filter(asked.gid or "", statuses_of(asked.status), asked.created_from_ms, asked.created_to_ms)
    coordinator = await api.pledges.coordinator()
    page = await coordinator.find(wanted, position=asked.position, limit=asked.limit)
    api.answer(exchange, shapes.Pledges([view(api, pledge) for pledge in page.pledges], page.next_position))


def retry_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, exchange, asked, _change(api, exchange, lambda coordinator: coordinator.retry(asked.gid)))


def redrive_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: None) -> None:  # noqa: ARG001
    _serve(api, exchange, asked, _change(api, exchange, lambda coordinator: coordinator.redrive(asked.gid)))


def stop_pledge(api: Api, exchange: Exchange, asked: shapes.WaitingParameters, content: shapes.Stopping) -> None:
    def stop(coordinator: Coordinator) -> Coroutine[Any, Any, Pledge]:
        return coordinator.stop(asked.gid, reason=content.reason)

    _serve(api, exchange, asked, _change(api, exchange, stop))


async def retry_pledges(api: Api, exchange: Exchange, asked: shapes.RetryParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    _answer_many(api, exchange, await coordinator.retry_waiting(longer_than_s=asked.longer_than_s, limit=asked.limit))


async def redrive_pledges(api: Api, exchange: Exchange, asked: shapes.RedriveParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    wanted = Filter(created_from_ms=asked.created_from_ms, created_to_ms=asked.created_to_ms)
    _answer_many(api, exchange, await coordinator.redrive_all(wanted, limit=asked.limit))


async def _change(api: Api, exchange: Exchange, change: Callable[[Coordinator], Coroutine[Any, Any, Pledge]]) -> None:
    coordinator = await api.pledges.coordinator()
    pledge = await change(coordinator)
    api.answer(exchange, view(api, pledge, with_payloads=True))


def _answer_many(api: Api, exchange: Exchange, many: Many) -> None:
    api.answer(exchange, shapes.Changed(many.changed_count, many.more))


# ---------------------------------------------------------------------- topics


async def list_topics(api: Api, exchange: Exchange, asked: shapes.TopicsParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    topics, position = await coordinator.topics.list(position=asked.position, limit=asked.limit)
    api.answer(exchange, shapes.Topics([topic_view(topic) for topic in topics], position))


async def show_topic(api: Api, exchange: Exchange, asked: shapes.TopicParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    api.answer(exchange, topic_view(await coordinator.topics.load(asked.topic)))


async def subscribe_topic(
    api: Api, exchange: Exchange, asked: shapes.TopicParameters, content: shapes.NewSubscriber
) -> None:
    api.pledges.check_targets(api.token(exchange), [content.url])
    coordinator = await api.pledges.coordinator()
    topic = await coordinator.topics.subscribe(asked.topic, content.url, remark=content.remark)
    api.answer(exchange, topic_view(topic))


async def unsubscribe_topic(
    api: Api,
    exchange: Exchange,
    asked: shapes.SubscriberParameters,
    content: None,  # noqa: ARG001
) -> None:
    coordinator = await api.pledges.coordinator()
    topic = await coordinator.topics.unsubscribe(asked.topic, asked.url)
    api.answer(exchange, topic_view(topic))


async def remove_topic(api: Api, exchange: Exchange, asked: shapes.TopicParameters, content: None) -> None:  # noqa: ARG001
    coordinator = await api.pledges.coordinator()
    await coordinator.topics.delete(asked.topic)
    api.answer(exchange, shapes.TopicRemoved(asked.topic, removed=True))


def topic_view(topic: store.Topic) -> shapes.Topic:
    subscribers = [shapes.TopicSubscriber(url, remark) for url, remark in topic.subscribers]
    return shapes.Topic(topic.name, topic.version, topic.created_ms, topic.updated_ms, subscribers)


# ---------------------------------------------------------------------- from and to JSON


def request_of(gid: str, asked: shapes.NewPledge) -> Content:
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
        options=_UNSAID if options == _UNSAID else options,
        protocol=asked.protocol,
        custom_data=asked.custom_data,
        steps=tuple((branch.url, _payload(branch)) for branch in asked.branches),
    )


def _payload(branch: shapes.NewBranch) -> bytes:
    json = bytes(branch.json) or None
    given = [part for part in (branch.payload, branch.payload_base64, json) if part is not None]
    if len(given) > 1:
        raise InvalidRequest("a branch has `payload`, `payload_base64` or `json`, one of them; nothing was done")
    if not given:
        return b""
    return given[0].encode() if isinstance(given[0], str) else given[0]


def _prepared(known: Pledge, request: Content) -> Content:
    """A submit that repeats nothing: of what is known, with what it says itself."""
    content = known.content
    return structs.replace(
        request, steps=content.asked(), checkback=request.checkback or content.checkback, protocol=content.protocol
    )


def statuses_of(text: str | None) -> tuple[Status, ...]:
    """Names with commas between them. Raises InvalidRequest."""
    names = text.split(",") if text else []
    for name in names:
        if name not in STATUSES:
            raise InvalidRequest(f"a status is one of {', '.join(STATUSES)}, not {name!r}; nothing was done")
    return cast("tuple[Status, ...]", tuple(names))


def view(api: Api, pledge: Pledge, *, with_payloads: bool = False) -> shapes.Pledge:
    content, progress = pledge.content, pledge.progress
    branches = [
        shapes.Branch(
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
    return shapes.Pledge(
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
        options=_said(state.options_of(content, progress)),
        custom_data=content.custom_data,
        aborting=progress.aborting,
        failures=progress.failures,
        last_error=progress.last_error,
        reason=progress.reason,
        branches=branches,
        attempts=[shapes.Attempt(a.at_ms, a.branch_id, a.verdict, a.took_ms, a.text) for a in progress.attempts],
        revision=pledge.revision,
    )


def _said(options: Options) -> dict[str, Any]:
    """What differs from the coordinator's own settings."""
    given = {name: getattr(options, name) for name in _OPTIONS}
    return {name: value for name, value in given.items() if value != getattr(_UNSAID, name)}


def _shown(payload: bytes) -> dict[str, Any]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": payload}
