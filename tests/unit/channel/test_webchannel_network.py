"""A WebChannel session and a client that behaves like the libraries, on a network with injected failures."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.channel.test_webchannel import body, session, taken, unframed

from avow.channel.transports.webchannel import Session, read_form


class Client:
    """Behaves like the libraries: several POSTs in flight, retries with the same maps, one active back channel."""

    def __init__(self, server: Session) -> None:
        self.server = server
        self.sent = 0
        self.queue: dict[int, bytes] = {}
        self.posts: list[dict[int, bytes]] = []
        self.seen = 0
        self.received: list[bytes] = []
        self.back = 0
        self.wire = b""  # written by the server, not read yet

    def say(self) -> None:
        self.queue[self.sent] = b"up %d" % self.sent
        self.sent += 1

    def post(self) -> None:
        if self.queue and len(self.posts) < 3:
            self.posts.append(self.queue)
            self.queue = {}

    def arrive(self, at: int, *, answered: bool) -> None:
        maps = self.posts.pop(at)
        self.server.forward(read_form(body(maps, raw=at == 1)), aid=self.seen, now=0)
        if not answered:
            self.retry(maps)

    def vanish(self, at: int) -> None:
        self.retry(self.posts.pop(at))

    def retry(self, maps: dict[int, bytes]) -> None:
        self.queue = {**maps, **self.queue}

    def listen(self, *, streaming: bool) -> None:
        self.wire = b""
        self.back = self.server.back(aid=self.seen, streaming=streaming, now=0)

    def cut(self) -> None:
        """Cut the stream at a random unread byte."""
        self.wire = b""
        self.server.gone(self.back, now=0)

    def read(self) -> None:
        for group in unframed(self.wire):
            for number, payload in group:
                self.seen = number
                if payload != ["noop"]:
                    self.received.append(b64decode(payload[0]["f"]))
        self.wire = b""


STEPS = st.lists(
    st.sampled_from(
        ["say", "send", "post", "arrive", "unanswered", "vanish", "listen", "poll", "cut", "write", "read", "tick"]
    ),
    max_size=120,
)


@settings(max_examples=300)
@given(STEPS, st.randoms(use_true_random=False))
def test_through_any_failures_everything_arrives_once_and_in_order(steps: list[str], random: Any) -> None:
    one = session()
    client, down, up = Client(one), 0, list[bytes]()
    heal = ["post", "arrive", "arrive", "arrive", "listen", "write", "read"] * 3
    for step in [*steps, *heal]:
        at = random.randrange(len(client.posts)) if client.posts else -1
        if step == "say":
            client.say()
        elif step == "send":
            one.send([b"down %d" % down])
            down += 1
        elif step == "post":
            client.post()
        elif step in ("arrive", "unanswered") and at >= 0:
            client.arrive(at, answered=step == "arrive")
        elif step == "vanish" and at >= 0:
            client.vanish(at)
        elif step in ("listen", "poll"):
            client.listen(streaming=step == "listen")
        elif step == "cut":
            client.cut()
        elif step == "write":
            chunk = one.chunk(0)
            client.wire += chunk.data if chunk is not None else b""
        elif step == "read":
            client.read()
        elif step == "tick":
            one.tick(30)
        up += taken(one)
        assert up == [b"up %d" % n for n in range(len(up))]
        assert client.received == [b"down %d" % n for n in range(len(client.received))]
    assert len(up) == client.sent
    assert len(client.received) == down
    assert one.statistics()["held"] == 0
