"""A pledge as it is stored: what was asked for, which never changes, and how far it got.

    Content   gid, branches, checkback, options: fixed when the gid is first seen. What was `asked` says whether a
              repeated request is the same one
    Progress  status, branches done, attempts, when to look at it next. Replaced as a whole, by compare-and-set on
              `revision`

Both are msgpack arrays in a store; fields are only ever added at the end, with a default. Times are milliseconds since
1970; durations are seconds.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct, msgpack

Status: TypeAlias = Literal["prepared", "submitted", "succeeded", "failed", "dead"]
BranchStatus: TypeAlias = Literal["prepared", "succeeded"]

UNFINISHED: Final[tuple[Status, ...]] = ("prepared", "submitted")
NEVER_MS: Final = (1 << 53) - 1  # of a pledge that nothing has to be done for


class Branch(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One delivery. `url`: http(s)://, grpc:// or host:port/service/method, or queue://name; topics are expanded."""

    branch_id: str
    url: str
    payload: bytes = b""
    key: bytes = b""  # of a queue's message


class Options(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """None: as the coordinator is set."""

    wait_result: bool = False
    concurrent: bool = False
    timeout_to_fail_s: float | None = None  # after which a prepared pledge is asked about
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
    steps: tuple[tuple[str, bytes], ...] = ()  # of a request: (url, payload). Stored only where a topic was expanded

    def asked(self) -> tuple[tuple[str, bytes], ...]:
        """The steps as a client gave them, topics not expanded: what a repeated request is compared by."""
        return self.steps or tuple((branch.url, branch.payload) for branch in self.branches)


class BranchProgress(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    status: BranchStatus = "prepared"
    attempts: int = 0
    last_error: str = ""
    finished_ms: int = 0


class Attempt(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A call that was made, for people. `branch_id` "00" is a checkback."""

    at_ms: int
    branch_id: str
    verdict: str
    took_ms: int = 0
    text: str = ""


class Progress(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    status: Status
    created_ms: int
    updated_ms: int
    next_at_ms: int  # when it is due; NEVER_MS when nothing has to be done
    branches: tuple[BranchProgress, ...] = ()
    interval_s: float = 0.0  # of the next retry; 0: the base
    failures: int = 0  # in a row
    aborting: bool = False  # an abort was asked for: the checkback decides, at once
    finished_ms: int = 0
    rollback_ms: int = 0
    last_error: str = ""
    reason: str = ""  # why it failed or died
    attempts: tuple[Attempt, ...] = ()  # the last few
    not_before_ms: int = 0  # branches are called no earlier: the delay as a time, of prepare or submit
    failing_since_ms: int = 0  # the first of `failures`
    options: Options | None = None  # with what submit added to the content's, if it did
    held: bool = False  # a coordinator is working on it; should it die, others see it due at next_at_ms


class Pledge(Struct, frozen=True, gc=False):
    """`revision` counts changes, from 1. `fence` counts claims by coordinators: a change carries the one it was made
    under, and a store refuses it when another claim came in between."""

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
