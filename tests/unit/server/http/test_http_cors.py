"""Origins of pages, as browsers write them and as an operator lists them."""

from __future__ import annotations

import pytest

from avow.errors import InvalidRequest
from avow.server.http.cors import Cors, origins_of, read_origins


@pytest.mark.parametrize(
    ("api", "origins"),
    [
        ("https://a.example:7400", {"https://a.example:7400"}),
        ("https://A.example:443/", {"https://a.example"}),
        ("http://a.example:80", {"http://a.example"}),
        ("http://[fd00::1]:7400", {"http://[fd00::1]:7400"}),
        ("http://127.0.0.1:7401", {f"http://{name}:7401" for name in ("127.0.0.1", "localhost", "[::1]")}),
        ("", set()),
        ("ftp://a.example", set()),
        ("http://a.example:99999999", set()),
        ("http://\xe9.example", set()),
    ],
)
def test_a_peers_address_as_an_origin(api: str, origins: set[str]) -> None:
    assert set(origins_of(api)) == origins


def test_allowed_origins_follow_the_list_of_peers() -> None:
    apis = ["https://a:1"]
    cors = Cors(["https://listed"], lambda: apis)
    assert [cors.allows(origin) for origin in (b"https://a:1", b"https://b:1", b"https://listed")] == [
        True,
        False,
        True,
    ]
    apis[:] = ["https://b:1"]
    assert [cors.allows(origin) for origin in (b"https://a:1", b"https://b:1", b"https://listed")] == [
        False,
        True,
        True,
    ]
    assert cors.headers(b"https://a:1") == b""
    assert b"allow-origin: https://b:1\r\n" in cors.headers(b"https://b:1")


def test_origins_are_listed_with_commas() -> None:
    assert read_origins(" https://a:1, http://b ,") == ["https://a:1", "http://b"]
    assert read_origins("") == []


@pytest.mark.parametrize(
    "text", ["*", "shop.example", "https://a/path", "https://A.example", "https://a b", "https://", "https://\xe9"]
)
def test_an_invalid_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cors_origins"):
        read_origins(text)
