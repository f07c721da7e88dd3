"""dtm's `msg` transactions on top of pledges: requests and errors, shared by HTTP, JSON-RPC and gRPC.

Existing dtm clients work unchanged. Where dtm has a defect the behaviour differs, with answers that dtm has too: a
prepare without a checkback, or with a gid of other content, is a FAILURE; a repeated submit runs nothing again; an
abort calls the checkback, which decides; a client that waits for the result gets ONGOING until delivery is finished.

    pledge      prepared   submitted   succeeded   failed   dead
    dtm         prepared   submitted   succeed     failed   failed

The result is SUCCESS or a `DtmError`: with a result (FAILURE, which is definite, or ONGOING), or without one, when the
outcome is unknown. The other transaction kinds (saga, tcc, xa, workflow) are refused with FAILURE.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from avow.errors import (
    AlreadyExists,
    AvowError,
    ContentDiffers,
    InvalidRequest,
    PledgeDecided,
    Refused,
    UnknownPledge,
    UnknownSubscriber,
    UnknownTopic,
)
from avow.pledge.record import Content, Options, Pledge, Status
from avow.pledge.store import Filter, Page, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from avow.pledge.record import Many
    from avow.server.access import Token
    from avow.server.pledges.service import Pledges

Result: TypeAlias = Literal["FAILURE", "ONGOING", ""]

VERSION: Final = "v1.19.0"  # of dtm, whose API this is
STATUSES: Final[Mapping[Status, str]] = {
    "prepared": "prepared",
    "submitted": "submitted",
    "succeeded": "succeed",
    "failed": "failed",
    "dead": "failed",
}
KINDS: Final = ("saga", "tcc", "xa", "workflow")
_GID_LETTERS: Final = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_GID_CHARS: Final = 22
_ESCAPED: Final = str.maketrans("", "", "\n\r;")


class DtmError(Exception):
    """`result` empty: the outcome is unknown."""

    def __init__(self, message: str, result: Result = "") -> None:
        super().__init__(message)
        self.result = result


class Trans(Struct):
    """A request as dtm's clients send it. Every field may be null; unknown ones are ignored."""

    gid: str | None = None
    trans_type: str | None = None
    custom_data: str | None = None
    wait_result: bool | None = None
    concurrent: bool | None = None
    timeout_to_fail: float | None = None
    request_timeout: float | None = None
    retry_interval: float | None = None
    retry_limit: int | None = None
    branch_headers: dict[str, str] | None = None
    steps: list[dict[str, str | None]] | None = None
    payloads: list[str] | None = None
    query_prepared: str | None = None
    protocol: str | None = None
    rollback_reason: str | None = None
    bin_payloads: list[bytes] | None = None  # over gRPC, instead of `payloads`

    def content(self) -> Content:
        """Raises DtmError."""
        steps = self.steps or []
        payloads = self.bin_payloads or [text.encode() for text in self.payloads or ()]
        payloads += [
            data.encode() for step in steps if (data := step.get("data"))
        ]  # old clients send payloads this way
        if len(payloads) < len(steps):
            raise DtmError(f"{len(steps)} steps, but {len(payloads)} payloads; nothing was changed")
        return Content(
            self.name(),
            checkback=self.query_prepared or "",
            options=self._options(),
            protocol=self.protocol or "",
            custom_data=self.custom_data or "",
            steps=tuple((step.get("action") or "", payload) for step, payload in zip(steps, payloads, strict=False)),
        )

    def name(self) -> str:
        gid = (self.gid or "").translate(_ESCAPED)
        if not gid:
            raise DtmError("no gid specified")
        return gid

    def _options(self) -> Options:
        return Options(
            wait_result=bool(self.wait_result),
            concurrent=bool(self.concurrent),
            timeout_to_fail_s=self.timeout_to_fail or None,
            request_timeout_s=self.request_timeout or None,
            retry_interval_s=self.retry_interval or None,
            retry_limit=self.retry_limit or None,
            branch_headers=self.branch_headers or {},
            delay_s=_delay_s(self.custom_data or ""),
        )


class _Custom(Struct):
    delay: float = 0.0


def _delay_s(custom_data: str) -> float:
    """The delay in `custom_data`, if any; all else in it belongs to the client."""
    try:
        return max(0.0, msgspec.json.decode(custom_data, type=_Custom).delay) if custom_data else 0.0
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return 0.0


def new_gid() -> str:
    """In the format of a shortuuid, as dtm makes them."""
    return "".join(secrets.choice(_GID_LETTERS) for _ in range(_GID_CHARS))


class Dtm:
    def __init__(self, pledges: Pledges) -> None:
        self._pledges = pledges

    # ------------------------------------------------------------------ transactions

    async def prepare(self, trans: Trans, token: Token) -> None:
        content = self._checked_content(trans, token)
        with translated("cannot prepare"):
            coordinator = await self._pledges.coordinator()
            await coordinator.prepare(content)

    async def submit(self, trans: Trans, token: Token) -> None:
        content = self._checked_content(trans, token)
        with translated("cannot sumbmit"):  # dtm spells it so, and clients may look for it
            coordinator = await self._pledges.coordinator()
            done = await coordinator.submit(content)
        if done.repeated and done.pledge.status == "succeeded":
            raise DtmError("current status 'succeed', cannot sumbmit. FAILURE", "FAILURE")
        delivery = done.delivery
        if trans.wait_result and delivery.state not in ("succeeded", "dead"):
            branch = f" branch {delivery.branch_id}" if delivery.branch_id else ""
            raise DtmError(f"submitted;{branch} {delivery.state}, delivery continues. ONGOING", "ONGOING")

    async def abort(self, trans: Trans) -> None:
        gid = trans.name()
        _check_kind(trans)
        with translated("cannot abort", prefix="trans type: 'msg' "), _not_found(gid):
            coordinator = await self._pledges.coordinator()
            await coordinator.abort(gid)

    async def force_stop(self, trans: Trans) -> None:
        gid = trans.name()
        with _not_found(gid):
            try:
                coordinator = await self._pledges.coordinator()
                await coordinator.stop(gid, reason=trans.rollback_reason or "")
            except PledgeDecided as decided:
                status = STATUSES.get(decided.status, decided.status)  # type: ignore[call-overload]
                message = f"global transaction force stop error. status: {status}. error: FAILURE"
                raise DtmError(message, "FAILURE") from decided

    async def reset_next_cron_time(self, trans: Trans) -> None:
        gid = trans.name()
        with translated("cannot retry"), _not_found(gid):
            coordinator = await self._pledges.coordinator()
            await coordinator.retry(gid)

    async def reset_cron_time(self, *, longer_than_s: float, limit: int) -> Many:
        with translated("cannot retry"):
            coordinator = await self._pledges.coordinator()
            return await coordinator.retry_waiting(longer_than_s=longer_than_s, limit=limit)

    def register_branch(self, trans_type: str) -> None:
        """Only tcc and xa have it, so it always fails."""
        if trans_type in KINDS:
            raise _unsupported(trans_type)
        raise DtmError(f"unknow trans type: {trans_type}")

    def _checked_content(self, trans: Trans, token: Token) -> Content:
        content = trans.content()
        _check_kind(trans)
        with translated(""):
            self._pledges.check_targets(token, [url for url, _ in content.steps])
        return content

    # ------------------------------------------------------------------ queries

    async def query(self, gid: str) -> Pledge | None:
        with translated(""):
            coordinator = await self._pledges.coordinator()
            return await coordinator.query(gid)

    async def find(self, wanted: Filter, *, position: str, limit: int) -> Page:
        with translated(""):
            coordinator = await self._pledges.coordinator()
            return await coordinator.find(wanted, position=position, limit=limit)

    # ------------------------------------------------------------------ topics

    async def subscribe(self, topic: str, url: str, remark: str, token: Token) -> None:
        _check_topic(topic, url)
        with translated(""):
            self._pledges.check_targets(token, [url])
            coordinator = await self._pledges.coordinator()
            try:
                await coordinator.topics.subscribe(topic, url, remark=remark)
            except AlreadyExists as known:
                raise DtmError("this url exists") from known

    async def unsubscribe(self, topic: str, url: str) -> None:
        _check_topic(topic, url)
        with translated(""):
            coordinator = await self._pledges.coordinator()
            try:
                await coordinator.topics.unsubscribe(topic, url)
            except UnknownTopic as unknown:
                raise DtmError("no such a topic") from unknown
            except UnknownSubscriber as unknown:
                raise DtmError("no such an url ") from unknown

    async def delete_topic(self, topic: str) -> None:
        with translated(""):
            coordinator = await self._pledges.coordinator()
            try:
                await coordinator.topics.delete(topic)
            except UnknownTopic as unknown:
                raise DtmError("storage: NotFound") from unknown

    async def topics(self, *, position: str, limit: int) -> tuple[list[Topic], str]:
        with translated(""):
            coordinator = await self._pledges.coordinator()
            return await coordinator.topics.list(position=position, limit=limit)

    async def topic(self, name: str) -> Topic | None:
        with translated(""):
            coordinator = await self._pledges.coordinator()
            try:
                return await coordinator.topics.load(name)
            except UnknownTopic:
                return None


def _check_kind(trans: Trans) -> None:
    kind = trans.trans_type or "msg"
    if kind != "msg":
        raise _unsupported(kind)


def _unsupported(kind: str) -> DtmError:
    return DtmError(f"trans type '{kind[:40]}' is not supported, only msg is; nothing was changed. FAILURE", "FAILURE")


def _check_topic(topic: str, url: str) -> None:
    if not topic:
        raise DtmError("empty topic")
    if not url:
        raise DtmError("empty url")


@contextmanager
def _not_found(gid: str) -> Iterator[None]:
    try:
        yield
    except UnknownPledge as unknown:
        raise DtmError(f"no TransGlobal with gid: {gid} found") from unknown


@contextmanager
def translated(refusal: str, *, prefix: str = "") -> Iterator[None]:
    """Turns Avow's errors into dtm's. Definite, not retriable ones are FAILURE. `refusal`: a wrong status."""
    try:
        yield
    except PledgeDecided as decided:
        status = STATUSES.get(decided.status, decided.status)  # type: ignore[call-overload]
        raise DtmError(f"{prefix}current status '{status}', {refusal}. FAILURE", "FAILURE") from decided
    except UnknownTopic as unknown:
        raise DtmError("topic not found") from unknown
    except (UnknownPledge, AlreadyExists, UnknownSubscriber):
        raise
    except (InvalidRequest, ContentDiffers) as refused:
        raise DtmError(f"{refused}. FAILURE", "FAILURE") from refused
    except Refused as refused:
        result: Result = "" if refused.retriable else "FAILURE"
        raise DtmError(f"{refused}. FAILURE" if result else str(refused), result) from refused
    except AvowError as error:
        raise DtmError(str(error)) from error
