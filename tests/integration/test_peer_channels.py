"""Channels at real peers: roles, cursors, takeovers, push-back, rights; nobody is killed here."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.browser.far import run_in_node
from tests.integration.peer_channels import (
    Reading,
    coordinator,
    create,
    metric,
    open_to,
    read,
    record,
    run,
    subscriber,
    until,
    values,
)
from tests.integration.reset_proxy import ResetProxy

from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Bounds, Messages
from avow.channel.transports.websocket_handshake import SUBPROTOCOL
from avow.errors import (
    AvowError,
    ChannelFailed,
    Forbidden,
    InvalidRequest,
    NotAuthenticated,
    UnknownQueue,
)
from avow.limits import MIB
from avow.testing.cluster import LocalCluster
from avow.wire.batch import Batch

PRODUCER = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def address(cluster: LocalCluster, at: int) -> tuple[str, int]:
    parts = urlsplit(cluster.api(at))
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


# ---------------------------------------------------------------------- producers


def test_a_producer_writes_each_message_once_and_in_order_through_hundreds_of_resets(cluster: LocalCluster) -> None:
    create(cluster, "resets", lanes=3)
    rng = random.Random(4)

    async def scenario() -> int:
        proxy = ResetProxy(address(cluster, 2), budget=lambda: rng.randrange(200, 20_000))
        url = await proxy.start()
        channel = await open_to(url, role="producer", queue="resets", format="records")
        for number in range(6_000):
            await channel.writable()
            channel.send(record(b"%d" % number, lane=number % 3))
            if number % 64 == 0:
                channel.commit()
                await asyncio.sleep(0)
        await asyncio.wait_for(channel.commit(), 60)
        channel.close()
        await channel.wait_ended()
        await proxy.close()
        return proxy.resets

    assert run(scenario()) >= 50
    for lane in range(3):
        assert values(cluster, "resets", lane, at=coordinator(cluster, "resets", lane=lane)) == numbered(6_000)[lane::3]


def test_a_page_writes_json_and_what_it_reads_is_json(cluster: LocalCluster) -> None:
    create(cluster, "pages")

    async def scenario() -> None:
        asked: dict[str, Any] = {"role": "producer", "queue": "pages", "format": "json", "producer": PRODUCER}
        channel = await open_to(cluster.api(1), **asked)
        for number in range(10):
            channel.send(json.dumps({"value": str(number), "headers": {"n": str(number)}}).encode())
        await channel.commit()
        reader = await read(cluster.api(2), role="reader", queue="pages", format="json")
        await until(lambda: len(reader.events) == 10)
        assert [(event["version"], event["value"]) for event in reader.events] == [(n + 1, str(n)) for n in range(10)]
        channel.send(b"nonsense")
        failure = await channel.wait_ended()
        assert failure is not None
        assert (failure.reason, failure.name) == ("REFUSED", "INVALID_REQUEST")
        assert "message 11" in str(failure)
        reader.channel.close()
        await reader.channel.wait_ended()

    run(scenario())


# ---------------------------------------------------------------------- subscribers


def test_a_cursor_is_durable_before_the_clients_commit_is_acknowledged(cluster: LocalCluster) -> None:
    create(cluster, "cursors", lanes=2)

    async def scenario() -> None:
        producer = await open_to(cluster.api(1), role="producer", queue="cursors")
        for number in range(100):
            producer.send(record(b"%d" % number, lane=number % 2))
        await producer.commit()
        first = await read(cluster.api(2), role="subscriber", queue="cursors", subscriber="s")
        await until(lambda: len(first.got) == 100)
        await first.channel.commit()
        for at in (1, 2, 3):
            assert subscriber(cluster, "cursors", "s", at=at)["versions"] == {"0": 50, "1": 50}
        first.channel.close()
        await first.channel.wait_ended()
        producer.send(record(b"after"))
        await producer.commit()
        second = await read(cluster.api(3), role="subscriber", queue="cursors", subscriber="s")
        await until(lambda: second.got)
        assert second.lanes == {"0": 50, "1": 50}
        assert second.got == [(0, b"after")]

    run(scenario())


def test_a_takeover_is_reported_to_the_previous_reader_whose_acks_move_nothing(cluster: LocalCluster) -> None:
    create(cluster, "takeover")

    async def scenario() -> None:
        producer = await open_to(cluster.api(1), role="producer", queue="takeover")
        for value in numbered(10):
            producer.send(record(value))
        await producer.commit()
        proxy = ResetProxy(address(cluster, 1))
        url = await proxy.start()
        first = await read(url, acks=False, role="subscriber", queue="takeover", subscriber="s")
        await until(lambda: len(first.got) == 10)
        proxy.stall()
        first.channel.ack_commit(first.commits[-1])  # it does not get through
        second = await read(cluster.api(2), acks=False, role="subscriber", queue="takeover", subscriber="s")
        await until(lambda: len(second.got) == 10)
        proxy.reset_all()
        await until(lambda: first.ended)
        assert (first.failure.reason, first.failure.name) == ("MOVED", "FENCED")
        assert "peer 2" in str(first.failure)
        shown = subscriber(cluster, "takeover", "s", at=2)
        assert shown["versions"] == {"0": 0}
        assert shown["members"] == [{"member": "", "peer": 2, "lanes": [0]}]
        assert shown["epoch"] > 0
        second.channel.ack_commit(second.commits[-1])
        await second.channel.commit()
        assert subscriber(cluster, "takeover", "s", at=3)["versions"] == {"0": 10}
        await proxy.close()

    run(scenario())


def test_two_members_share_the_lanes_and_one_that_leaves_releases_its_own(cluster: LocalCluster) -> None:
    create(cluster, "members", lanes=4)

    def asked(member: str) -> dict[str, Any]:
        return {"role": "subscriber", "queue": "members", "subscriber": "s", "member": member}

    async def scenario() -> None:
        first = await read(cluster.api(1), **asked("a"))
        await until(lambda: first.lanes == dict.fromkeys("0123", 0))
        second = await read(cluster.api(2), **asked("b"))
        await until(lambda: first.ended and second.lanes is not None)
        assert (first.failure.reason, first.failure.name) == ("MOVED", "")
        first = await read(cluster.api(1), **asked("a"))
        await until(lambda: first.lanes is not None)
        assert (first.lanes, second.lanes) == ({"0": 0, "2": 0}, {"1": 0, "3": 0})
        producer = await open_to(cluster.api(3), role="producer", queue="members")
        for number in range(40):
            producer.send(record(b"%d" % number, lane=number % 4))
        await producer.commit()
        await until(lambda: len(first.got) == len(second.got) == 20)
        await second.channel.commit()
        second.channel.close()
        await second.channel.wait_ended()
        for number in range(40, 80):
            producer.send(record(b"%d" % number, lane=number % 4))
        await producer.commit()
        await until(lambda: len(first.got) == 60)
        assert all(first.of(lane) == numbered(80)[lane::4] for lane in (0, 2))
        assert all(first.of(lane) == numbered(80)[lane::4][10:] for lane in (1, 3))

    run(scenario())


def test_withheld_acks_suspend_the_peer_within_a_bound_and_acks_resume_it_at_once(cluster: LocalCluster) -> None:
    create(cluster, "slow")

    async def scenario() -> None:
        coordinates = await until(lambda: coordinator(cluster, "slow"))
        at = coordinates % 3 + 1
        producer = await open_to(cluster.api(coordinates), role="producer", queue="slow")
        before = metric(cluster, at, "avow_channel_messages_pushed_total")
        reader = await read(cluster.api(at), acks=False, role="subscriber", queue="slow", subscriber="s")
        for number in range(400):
            await producer.writable()
            producer.send(record(b"%d" % number + b"." * 200_000))
        await producer.commit()
        await until(lambda: metric(cluster, at, "avow_channels_suspended") == 1)
        # all that the peer has handed to the channel, sent or not
        await until(lambda: reader.received == metric(cluster, at, "avow_channel_messages_pushed_total") - before)
        assert reader.size < Bounds().pending_bytes + MIB
        assert len(reader.got) < 400
        reader.acks = True
        reader.channel.ack_commit(reader.commits[-1])
        await until(lambda: len(reader.got) == 400)
        assert [value.partition(b".")[0] for value in reader.of(0)] == numbered(400)
        await reader.channel.commit()
        assert subscriber(cluster, "slow", "s", at=1)["versions"] == {"0": 400}

    run(scenario())


# ---------------------------------------------------------------------- observers


def test_an_observer_sees_enqueue_then_stored_by_each_peer_then_committed(cluster: LocalCluster) -> None:
    """As the propagation sequence of the strategy has it: Enqueue, Stored @1, Stored @2, accepted, Stored @3."""
    create(cluster, "news", strategy="pub-sub")

    async def scenario() -> Reading:
        lane = await until(lambda: cluster.ask(1, "/v1/queues/news")["open_lane"])
        observer = await read(cluster.api(1), role="observer", queue="news")
        producer = await open_to(cluster.api(1), role="producer", queue="news")
        producer.send(record(b"x'", lane=lane))
        await producer.commit()
        await until(lambda: sum(event["event"] == "stored" for event in observer.events) == 3)
        await until(lambda: any(event["event"] == "committed" for event in observer.events))
        return observer

    seen = run(scenario()).events
    names = [event["event"] for event in seen]
    assert names[0] == "enqueue"
    assert bytes(Batch(b64decode(seen[0]["batch"])).value(0)) == b"x'"
    stored = [event["peer"] for event in seen if event["event"] == "stored"]
    assert sorted(stored) == [1, 2, 3]
    assert all(event["upto_version"] == 1 for event in seen if event["event"] != "enqueue")
    assert names[: names.index("committed")].count("stored") >= 2


# ---------------------------------------------------------------------- requests and rights


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"role": "reader", "queue": "nowhere"}, UnknownQueue),
        ({"role": "writer", "queue": "asked"}, InvalidRequest),
        ({"role": "reader"}, InvalidRequest),
        ({"role": "reader", "queue": "asked", "colour": "blue"}, InvalidRequest),
        ({"role": "reader", "queue": "asked", "after": "x"}, InvalidRequest),
        ({"role": "observer", "queue": "asked"}, InvalidRequest),
        ({"role": "subscriber", "queue": "asked"}, InvalidRequest),
    ],
)
def test_a_wrong_request_is_answered_before_the_upgrade_with_its_own_error(
    cluster: LocalCluster, asked: dict[str, Any], error: type[AvowError]
) -> None:
    create(cluster, "asked")
    with pytest.raises(error):
        run(open_to(cluster.api(1), **asked))


ASKED_WRONGLY = [
    ({"role": "reader", "queue": "nowhere"}, "UNKNOWN_QUEUE"),
    ({"role": "writer", "queue": "asked"}, "INVALID_REQUEST"),
    ({"role": "observer", "queue": "asked"}, "INVALID_REQUEST"),
    ({"role": "producer", "queue": "avow.pledges"}, "FORBIDDEN"),
]


@pytest.mark.parametrize(("asked", "name"), ASKED_WRONGLY)
@pytest.mark.parametrize("sign", [("Origin", "http://127.0.0.1:1"), ("Sec-Fetch-Mode", "websocket")])
def test_a_script_gets_the_reason_of_a_refusal_over_its_socket(
    cluster: LocalCluster, asked: dict[str, Any], name: str, sign: tuple[str, str]
) -> None:
    create(cluster, "asked")
    with pytest.raises(ChannelFailed) as failed:
        run(open_to(cluster.api(1), headers=[sign], **asked))
    assert (failed.value.reason, failed.value.name) == ("REFUSED", name)


@pytest.mark.parametrize(("asked", "name"), ASKED_WRONGLY)
def test_the_browsers_module_reports_why_a_peer_refused(
    cluster: LocalCluster, asked: dict[str, Any], name: str
) -> None:
    """Regression: it tried again for 30 s, and then reported that its patience had ended."""
    create(cluster, "asked")
    url = f"{cluster.api(1).replace('http', 'ws', 1)}/v1/channel?{urlencode(asked)}"
    found = asyncio.run(run_in_node("refused", over=lambda: True, url=url))
    assert (found["reason"], found["name"]) == ("REFUSED", name)
    assert found["text"]


def test_a_page_that_may_not_use_a_peer_without_tokens_is_not_told_why(cluster: LocalCluster) -> None:
    with pytest.raises(Forbidden):
        run(open_to(cluster.api(1), headers=[("Origin", "http://example.org")], role="reader", queue="nowhere"))


def ask(cluster: LocalCluster, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address(cluster, 1), timeout=60)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_without_an_upgrade_the_answer_names_the_required_one(cluster: LocalCluster) -> None:
    create(cluster, "asked")
    status, headers, body = ask(cluster, "/v1/channel?role=reader&queue=asked")
    assert (status, headers["upgrade"]) == (426, "websocket")
    assert json.loads(body)["error"]["code"] == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:1234", 426),
        ("http://localhost", 426),
        ("http://example.org", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_origins_cannot_reach_a_peer_without_tokens(
    cluster: LocalCluster, origin: str, status: int
) -> None:
    create(cluster, "asked")
    assert ask(cluster, "/v1/channel?role=reader&queue=asked", origin=origin)[0] == status
    assert ask(cluster, "/v1/webchannel?VER=8&SID=x&RID=rpc", origin=origin)[0] == 403


@pytest.mark.parametrize(
    ("path", "kind", "has"),
    [
        ("/v1/channel.js", "text/javascript", b"export"),
        ("/v1/channel.d.ts", "text/plain", b"export"),
        ("/v1/webchannel-socket.js", "text/javascript", b"WebChannel"),
    ],
)
def test_browsers_get_their_files_and_304_when_they_have_them(
    cluster: LocalCluster, path: str, kind: str, has: bytes
) -> None:
    status, headers, body = ask(cluster, path)
    assert status == 200
    assert has in body
    assert headers["content-type"].startswith(kind)
    assert ask(cluster, path, if_none_match=headers["etag"])[0] == 304
    assert ask(cluster, path, if_none_match='"other"')[0] == 200


def test_a_token_is_sent_as_a_header_or_as_a_subprotocol(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    rights = {
        "reading": '{ "a*" = ["read"] }',
        "writing": '{ "a*" = ["write"] }',
        "both": '{ "*" = ["read", "write"] }',
    }
    lines = [
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\nrights = {given}\n'
        for name, given in rights.items()
    ]
    root = sha256(b"root").hexdigest()
    tokens.write_text("".join(lines) + f'[[token]]\nname = "root"\nsha256 = "{root}"\nadmin = true\n')

    def by_header(token: str) -> dict[str, Any]:
        return {"headers": [("Authorization", f"Bearer {token}")]}

    def by_subprotocol(token: str) -> dict[str, Any]:
        text = urlsafe_b64encode(token.encode()).decode().rstrip("=")
        return {"subprotocols": [SUBPROTOCOL, f"avow.bearer.{text}"]}

    async def may(url: str, given: dict[str, Any], **asked: Any) -> bool:
        try:
            channel = await open_to(url, **given, **asked)
        except (Forbidden, NotAuthenticated):
            return False
        channel.close()
        await channel.wait_ended()
        return True

    async def scenario(url: str) -> None:
        producer = {"role": "producer", "queue": "a"}
        subscribes = {"role": "subscriber", "queue": "a", "subscriber": "s"}
        reader = {"role": "reader", "queue": "a"}
        for way in (by_header, by_subprotocol):
            allowed = {
                name: [await may(url, way(name), **asked) for asked in (producer, subscribes, reader)]
                for name in ("reading", "writing", "both", "stranger")
            }
            assert allowed == {
                "reading": [False, False, True],
                "writing": [True, False, False],
                "both": [True, True, True],
                "stranger": [False, False, False],
            }
        assert not await may(url, {}, **reader)
        assert not await may(url, {"subprotocols": [SUBPROTOCOL, "avow.bearer.!"]}, **reader)

    with LocalCluster(1, settings={"tokens": str(tokens)}, token="root") as cluster:
        connection = http.client.HTTPConnection(*address(cluster, 1), timeout=60)
        sent = {"authorization": "Bearer root", "content-type": "application/json"}
        connection.request("POST", "/v1/queues", json.dumps({"name": "a"}), sent)
        assert connection.getresponse().status == 201
        connection.close()
        run(scenario(cluster.api(1)))


def test_a_channel_is_opened_over_webchannel_with_the_same_parameters_and_errors(cluster: LocalCluster) -> None:
    create(cluster, "webbed")

    def post(path: str, body: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*address(cluster, 1), timeout=60)
        connection.request("POST", path, body, {"content-type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    core = Core(channel=b"c" * 16, token=b"t" * 16, initiator=True)
    generation = core.socket()
    form = {"count": 1, "ofs": 0, "req0_f": b64encode(b"".join(core.packet())).decode()}
    for query, status in (
        ("role=reader&queue=nowhere", 404),
        ("role=reader", 400),
        ("role=reader&queue=webbed&colour=blue", 400),
        ("role=observer&queue=webbed", 400),
    ):
        assert post(f"/v1/webchannel?VER=8&CVER=22&RID=1&{query}", urlencode(form))[0] == status
    status_, body = post("/v1/webchannel?VER=8&CVER=22&RID=1&role=reader&queue=webbed", urlencode(form))
    assert status_ == 200
    sid = json.loads(body.partition(b"\n")[2])[0][1][1]
    _, _, seen = ask(cluster, f"/v1/webchannel?VER=8&SID={sid}&RID=rpc&AID=0&CI=1&TYPE=xmlhttp")
    for _number, (frame,) in json.loads(seen.partition(b"\n")[2]):
        core.received(generation, b64decode(frame["f"]))
    messages = [bytes(value) for event in core.take_events() if isinstance(event, Messages) for value in event.values]
    assert messages == [b'{"lanes":{"0":0}}']


def test_the_settings_limit_channels_and_their_waiting_time() -> None:
    async def scenario(url: str) -> None:
        create(peer, "q")
        held = await open_to(url, role="reader", queue="q")
        with pytest.raises(ChannelFailed) as refused:
            await open_to(url, role="reader", queue="q")
        assert refused.value.name == "BUSY"
        held.close()
        await held.wait_ended()
        proxy = ResetProxy(address(peer, 1))
        lost = await open_to(await proxy.start(), role="reader", queue="q", options={"patience_s": 20.0})
        proxy.refusing = True
        proxy.reset_all()
        await until(lambda: metric(peer, 1, "avow_channels_detached") == 1)
        await until(lambda: metric(peer, 1, "avow_channels_expired_total") == 1)
        proxy.refusing = False
        failure = await lost.wait_ended()
        assert failure is not None
        assert failure.reason == "EXPIRED"
        await proxy.close()

    with LocalCluster(1, settings={"channels_max": "1", "channel_window_s": "0.5"}) as peer:
        run(scenario(peer.api(1)))


def test_a_channel_is_not_resumed_for_another_purpose(cluster: LocalCluster) -> None:
    create(cluster, "mine")
    create(cluster, "yours")

    async def scenario() -> None:
        reader = await read(cluster.api(1), role="reader", queue="mine")
        other = await open_to(cluster.api(1), role="reader", queue="yours")
        stolen = reader.channel.core
        other.core.channel, other.core.token = stolen.channel, stolen.token
        assert other._socket is not None
        other._socket.abort()
        failure = await other.wait_ended()
        assert failure is not None
        assert failure.reason in ("UNKNOWN_CHANNEL", "IMPOSSIBLE")
        assert not reader.ended
        reader.channel.close()
        await reader.channel.wait_ended()

    run(scenario())
