"""The values of a pledge: its content, which never changes, its progress, and the results of calls and requests.

    Content   gid, branches, checkback, options: fixed by the first request with the gid. A repeated request is compared
              with what was `asked`
    Progress  status, branches done, attempts, time of the next action. Replaced as a whole, by compare-and-set on
              `revision`

Content and progress are stored as msgpack arrays; new fields must be added at the end, with a default. Times
are milliseconds since 1970; durations are seconds.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct, msgpack

from avow.pledge.verdicts import Result

Status: TypeAlias = Literal["prepared", "submitted", "succeeded", "failed", "dead"]
BranchStatus: TypeAlias = Literal["prepared", "succeeded"]

UNFINISHED: Final[tuple[Status, ...]] = ("prepared", "submitted")
NEVER_MS: Final = (1 << 53) - 1  # `next_at_ms` of a pledge that needs no further action


class Branch(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One delivery. `url`: http(s)://, grpc:// or host:port/service/method, or queue://name; topics are expanded."""

    branch_id: str
    url: str
    payload: bytes = b""
    key: bytes = b""  # of a queue's message


class Options(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """None: the coordinator's setting."""

    wait_result: bool = False
    concurrent: bool = False
    timeout_to_fail_s: float | None = None  # after which the checkback of a prepared pledge is called
    request_timeout_s: float | None = None
    retry_interval_s: float | None = None
    retry_limit: int | None = None  # failed attempts before it is dead
    branch_headers: dict[str, str] = {}
    delay_s: float = 0.0  # counted from creation
    not_before_ms: int = 0


class Content(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    gid: str
    branches: tuple[Branch, ...] = ()
    checkback: str = ""  # empty: submitted without prepare
    options: Options = Options()
    protocol: str = ""  # "", "http", "grpc", "json-rpc", as in dtm
    custom_data: str = ""
    steps: tuple[tuple[str, bytes], ...] = ()  # of a request: (url, payload). Stored only if a topic was expanded

    def asked(self) -> tuple[tuple[str, bytes], ...]:
        """The steps as the client gave them, with topics not expanded. Repeated requests are compared with them."""
        return self.steps or tuple((branch.url, branch.payload) for branch in self.branches)


class BranchProgress(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    status: BranchStatus = "prepared"
    attempts: int = 0
    last_error: str = ""
    finished_ms: int = 0


class Attempt(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A call, recorded for operators. `branch_id` "00" is the checkback."""

    at_ms: int
    branch_id: str
    verdict: str
    took_ms: int = 0
    text: str = ""


class Progress(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    status: Status
    created_ms: int
    updated_ms: int
    next_at_ms: int  # when it is due; NEVER_MS: never
    branches: tuple[BranchProgress, ...] = ()
    interval_s: float = 0.0  # of the next retry; 0: the base
    failures: int = 0  # in a row
    aborting: bool = False  # an abort was requested: the checkback is called at once and decides
    finished_ms: int = 0
    rollback_ms: int = 0
    last_error: str = ""
    reason: str = ""  # why it failed or died
    attempts: tuple[Attempt, ...] = ()  # the last few
    not_before_ms: int = 0  # branches are not called earlier: the delay of prepare or submit, as a time
    failing_since_ms: int = 0  # time of the first of `failures`
    options: Options | None = None  # the content's with those of submit, if submit gave any
    held: bool = False  # a coordinator is delivering it; if that one crashes, others see it due at next_at_ms


class Pledge(Struct, frozen=True, gc=False):
    """`revision` counts changes, from 1. `fence` counts claims by coordinators: a change has the fence under which it
    was made, and the store refuses it if the pledge was claimed since."""

    content: Content
    progress: Progress
    revision: int = 1
    fence: int = 0
    owner: str = ""
    lease_until_ms: int = 0

    @property
    def gid(self) -> str:
        return self.content.gid

    @property
    def status(self) -> Status:
        return self.progress.status


encode: Final = msgpack.Encoder().encode
decode_content: Final = msgpack.Decoder(Content).decode
decode_progress: Final = msgpack.Decoder(Progress).decode


# ---------------------------------------------------------------------- results, not stored


class CallResult(Struct, frozen=True, gc=False):
    """The result of one call. `index` is the branch's, or `state.CHECKBACK`."""

    index: int
    result: Result
    at_ms: int
    took_ms: int = 0
    text: str = ""


class Delivery(Struct, frozen=True, gc=False):
    """The state of a pledge's delivery. `failing` and `ongoing` are not final: it is committed, and delivery continues.

    started: being delivered. delayed: before its time. ongoing: a branch needs more time. failing: see `error`; it is
    retried at `next_at_ms`.
    """

    state: Literal["succeeded", "started", "delayed", "ongoing", "failing", "failed", "dead", "prepared"]
    branch_id: str = ""
    error: str = ""
    next_at_ms: int = 0


class Submission(Struct, frozen=True, gc=False):
    """`repeated`: it was submitted before, and nothing was changed. `delivery`: its current state."""

    pledge: Pledge
    delivery: Delivery
    repeated: bool = False


class Many(Struct, frozen=True):
    """The result of a request for many pledges. `more`: there are others left."""

    changed_count: int
    more: bool
