"""Two ends of a channel under Hypothesis: every move of the machine is a rule, and every walk must finish.

50 walks here; `make channel` takes 3,000. A failure is shrunk to the fewest moves, printed as calls of the machine.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from avow.channel.protocol.core import Core
from avow_lab.channel_machine.forged_packets import IMPOSSIBLE, PACKETS, STRANGERS
from avow_lab.channel_machine.model import Share
from avow_lab.channel_machine.moves import ACKS, ENDS, MISUSES, POSITIONS, TURNED_AWAY
from avow_lab.channel_machine.sockets import ACCEPTOR, DIALER, OTHER
from avow_lab.channel_machine.walk import SHARES, STEPS, WIDE, WIDE_COUNT, Machine, walk

EXAMPLES = int(os.environ.get("AVOW_CHANNEL_EXAMPLES", "50"))
SEEDS = 150

NAMES = st.sampled_from((DIALER, ACCEPTOR))
FEW = st.sampled_from((1, 1, 2, 5))
SIZES = st.sampled_from((65_536, 1, 20, 60))
MOSTLY = st.sampled_from((True, True, True, False))
DISASTERS = (
    *(("end", code) for code in ENDS),
    *(("forge", what) for what in PACKETS),
    *(("forge_hello", what) for what in (*STRANGERS, *IMPOSSIBLE)),
    *(("turn_away", code) for code in TURNED_AWAY),
    *[("restart", None)] * 4,
    *[("expire", None)] * 4,
)


class ChannelMachine(RuleBasedStateMachine):
    """Rules that make no sense at the moment are not offered, so that each of the steps is one."""

    core_class: type[Core] = Core
    machine: Machine
    failed = False

    @initialize(
        dialer=st.sampled_from(SHARES), acceptor=st.sampled_from(SHARES), wide=st.sampled_from((*[None] * 30, *WIDE))
    )
    def open(self, dialer: Share, acceptor: Share, wide: Share | None) -> None:
        self.machine = Machine(dialer=wide or dialer, acceptor=wide or acceptor, core_class=self.core_class)
        self.connect(acked=None)

    @rule(name=NAMES, size_bytes=st.sampled_from((0, 1, 30)), count=FEW, commits=MOSTLY, written=MOSTLY)
    def work(self, name: str, size_bytes: int, count: int, commits: bool, written: bool) -> None:
        wide = self.machine.shares[name].pending_count > WIDE_COUNT and count > 1
        self._do("send", name, size_bytes=size_bytes, count=WIDE_COUNT if wide else count)
        if commits:
            self._do("commit", name)
        if written:
            self._do("write", name, packets=5)

    @rule(name=NAMES)
    def send(self, name: str) -> None:
        self._do("send", name)

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        self._do("commit", name)

    @precondition(lambda self: any(self._delivered(name) for name in (DIALER, ACCEPTOR)))
    @rule(name=NAMES, which=st.sampled_from(ACKS), choice=st.integers(0, 7))
    def ack(self, name: str, which: str, choice: int) -> None:
        name = name if self._delivered(name) else OTHER[name]
        self._do("ack", name, which, choice=choice)

    @rule(name=NAMES, what=st.sampled_from(MISUSES))
    def misuse(self, name: str, what: str) -> None:
        self._do("misuse", name, what)

    @rule(acked=st.sampled_from((None, DIALER, ACCEPTOR)))
    def connect(self, acked: str | None) -> None:
        self._do("dial")
        for name in (DIALER, ACCEPTOR):
            self._do("write", name)
            if acked is not None:
                self._do("ack", acked, "newest")
            self._do("deliver", -1, name)

    @rule(written=MOSTLY)
    def dial(self, written: bool) -> None:
        self._do("dial")
        if written:
            self._do("write", DIALER)

    @rule(name=NAMES, packets=FEW, size_bytes=SIZES)
    def write(self, name: str, packets: int, size_bytes: int) -> None:
        self._do("write", name, packets=packets, size_bytes=size_bytes)

    @precondition(lambda self: self.machine.under_way())
    @rule(choice=st.integers(0, 7), packets=FEW)
    def deliver(self, choice: int, packets: int) -> None:
        under_way = self.machine.under_way()
        self._do("deliver", *under_way[choice % len(under_way)], packets=packets)

    @precondition(lambda self: self.machine.under_way())
    @rule(packets=FEW)
    def deliver_on_the_newest(self, packets: int) -> None:
        self._do("deliver", *self.machine.under_way()[-1], packets=packets)

    @precondition(lambda self: self.machine.sockets)
    @rule(index=st.sampled_from((-1, -1, 0, 1)), writer=NAMES, keep=st.integers(0, 2))
    def cut(self, index: int, writer: str, keep: int) -> None:
        self._do("cut", index, writer, keep=keep)

    @precondition(lambda self: self.machine.sockets)
    @rule(name=NAMES, index=st.integers(0, 7))
    def notice(self, name: str, index: int) -> None:
        self._do("notice_old", name, index)
        if index > 4:
            self._do("notice", name)

    @rule(name=NAMES, disaster=st.sampled_from(DISASTERS), really=st.integers(0, 2))
    def disaster(self, name: str, disaster: tuple[str, object], really: int) -> None:
        move, what = disaster
        if really:
            return
        if move in ("end", "forge"):
            self._do(move, name, what)
        elif move == "forge_hello":
            self._do(move, what)
        elif move == "turn_away":
            self._do("dial")
            self._do(move, -1, what, position=POSITIONS[name == DIALER])
        else:
            self._do("notice", ACCEPTOR)
            self._do(move)

    @precondition(lambda self: self.machine.dialer.socket)
    @rule()
    def fence(self) -> None:
        self._do("fence")

    @rule()
    def flow(self) -> None:
        self._do("flow")

    @precondition(lambda self: self.machine.dialer.over)
    @rule()
    def reopen(self) -> None:
        self._do("reopen")
        self.connect(acked=None)

    def teardown(self) -> None:
        if not self.failed and hasattr(self, "machine"):
            self._do("finish")
            SEEN.update(self.machine.counts)

    def _delivered(self, name: str) -> bool:
        end = self.machine.living(name)
        return end is not None and bool(end.into.delivered)

    def _do(self, move: str, *arguments: object, **named: object) -> None:
        """The first error is reported, not the errors that follow from it."""
        try:
            getattr(self.machine, move)(*arguments, **named)
        except BaseException:
            self.failed = True
            raise


SEEN: Counter[str] = Counter()

ChannelMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestAChannelKeepsItsPromisesWhateverIsDoneToIt(ChannelMachine.TestCase):  # type: ignore[misc, name-defined, valid-type]
    pass


def test_every_invariant_holds_on_random_walks() -> None:
    for seed in range(SEEDS):
        walked = walk(seed)
        assert not walked.violation, f"avow_lab.channel_machine.walk.walk({seed}): {walked.violation}"


def test_the_walks_reach_every_kind_of_failure() -> None:
    seen: Counter[str] = Counter()
    for seed in range(5_000, 5_600):
        seen.update(walk(seed).counts)
    assert {name: seen[name] for name in EVERYTHING if seen[name] < 3} == {}


def test_the_same_seed_gives_the_same_walk() -> None:
    assert walk(11) == walk(11)


EVERYTHING = (
    "Messages",
    "CommitDelivered",
    "CommitAcked",
    "Suspended",
    "Resumed",
    "acks of superseded commits",
    "acks while down",
    "acks, again",
    "acks, older",
    "both suspended",
    "commits while suspended",
    "cuts",
    "deliveries while an ack is owed",
    "empty commits",
    "ended CLOSED",
    "ended ABORTED",
    "ended UNKNOWN_CHANNEL",
    "ended EXPIRED",
    "ended IMPOSSIBLE",
    "ended PROTOCOL",
    "ended CAP_EXCEEDED",
    "ended REFUSED",
    "ended MOVED",
    "ended GOING",
    "expiries",
    "forgeries",
    "handed back, delivered",
    "handed back, unknown",
    "handed back, unsent",
    "late packets",
    "messages sent again",
    "quiet",
    "restarts",
    "stale Hellos",
    "strangers",
    "turned away",
)
