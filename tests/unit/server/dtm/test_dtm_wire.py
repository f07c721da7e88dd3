"""dtm's gRPC messages as bytes: missing fields are empty, unknown ones are skipped, invalid ones are named."""

import pytest

from avow.errors import Malformed
from avow.server.dtm import grpc as wire


def test_a_request_is_read_field_by_field() -> None:
    header = wire.write_bytes(1, b"a") + wire.write_bytes(2, b"b")
    options = wire.write_number(1, 1) + wire.write_number(2, 35) + wire.write_bytes(5, header) + wire.write_number(7, 3)
    data = b"".join(
        (
            wire.write_bytes(1, "gid-ä".encode()),
            wire.write_bytes(2, b"msg"),
            wire.write_bytes(3, options),
            wire.write_bytes(5, b"\xff\x00"),
            wire.write_bytes(5, b""),
            wire.write_bytes(6, b"host:1/s/check"),
            wire.write_bytes(7, b'[{"action":"host:1/s/m"},{"action":""}]'),
        )
    )
    trans = wire.read_request(data)
    assert (trans.gid, trans.trans_type, trans.protocol) == ("gid-ä", "msg", "grpc")
    assert (trans.wait_result, trans.timeout_to_fail, trans.retry_limit) == (True, 35.0, 3)
    assert trans.branch_headers == {"a": "b"}
    content = trans.content()
    assert content.steps == (("host:1/s/m", b"\xff\x00"), ("", b""))
    assert content.checkback == "host:1/s/check"


def test_an_empty_request_is_one_without_anything() -> None:
    trans = wire.read_request(b"")
    assert (trans.gid, trans.steps, trans.bin_payloads) == (None, None, [])


def test_unknown_fields_of_every_type_are_skipped() -> None:
    strange = wire.write_number(99, 5) + bytes((98 << 3 & 0x7F | 0x80 | 1, 98 >> 4)) + b"12345678"
    strange += wire.write_bytes(97, b"x") + bytes((11 << 3 | 5,)) + b"1234"
    assert wire.read_request(strange + wire.write_bytes(1, b"g")).gid == "g"


def test_numbers_may_be_negative() -> None:
    options = wire.write_bytes(3, wire.write_number(7, -1))
    assert wire.read_request(options).retry_limit == -1


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\xff" * 11,
        b"\x0b",
        wire.write_bytes(1, b"\xff"),
        wire.write_number(1, 7),
        wire.write_bytes(7, b"{"),
        wire.write_bytes(3, wire.write_bytes(2, b"x")),
    ],
)
def test_broken_bytes_are_named(data: bytes) -> None:
    with pytest.raises(Malformed):
        wire.read_request(data)


def test_topics_and_gids_survive_encoding() -> None:
    data = wire.write_bytes(1, b"t") + wire.write_bytes(3, b"r")
    assert wire.read_topic(data) == ("t", "", "r")
    assert dict(wire.fields(wire.gid_reply("abc"))) == {1: b"abc"}
