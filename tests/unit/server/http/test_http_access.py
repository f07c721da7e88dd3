"""Tokens and rights, and which addresses a peer refuses to listen on."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import trustme

from avow.errors import Forbidden, InvalidRequest, NotAuthenticated
from avow.server.access import (
    Tokens,
    check_exposure,
    is_loopback,
    link_contexts,
    load_tokens,
    server_context,
)
from avow.server.settings import Settings

FILE = """
[[token]]
name = "spark"
sha256 = "{spark}"
rights = {{ "orders*" = ["read", "write"], "*" = ["read"] }}

[[token]]
name = "ops"
sha256 = "{ops}"
admin = true
"""


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def tokens_in(folder: Path, text: str = "") -> Settings:
    path = folder / "tokens.toml"
    path.write_text(text or FILE.format(spark=digest("s3cret"), ops=digest("root")))
    return Settings(tokens=str(path))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return load_tokens(tokens_in(tmp_path))


def test_rights_follow_the_matching_patterns(tokens: Tokens) -> None:
    spark = tokens.bearer(b"Bearer s3cret")
    assert spark.name == "spark"
    assert spark.may("write", "orders.eu")
    assert spark.may("read", "invoices")
    assert not spark.may("write", "invoices")
    assert not spark.may("manage", "orders")
    assert not spark.may("admin")
    with pytest.raises(Forbidden, match="invoices"):
        spark.check("write", "invoices")


def test_an_admin_may_do_everything(tokens: Tokens) -> None:
    ops = tokens.bearer(b"bearer root")
    assert ops.may("admin")
    assert ops.may("manage", "anything")


def test_without_a_queue_any_pattern_is_enough(tokens: Tokens) -> None:
    spark = tokens.bearer(b"Bearer s3cret")
    assert spark.may("write")
    assert not spark.may("manage")


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer wrong", b"Basic s3cret", b"s3cret", b"Bearer s3cret x"]
)
def test_a_client_without_a_known_token_is_refused(tokens: Tokens, header: bytes | None) -> None:
    with pytest.raises(NotAuthenticated):
        tokens.bearer(header)


def test_a_peer_without_tokens_grants_every_right() -> None:
    assert load_tokens(Settings()).bearer(None).may("admin")


def test_the_cache_of_rights_is_bounded(tokens: Tokens) -> None:
    spark = tokens.bearer(b"Bearer s3cret")
    for number in range(3000):
        assert spark.may("read", f"queue{number}")
    assert len(spark._known) <= 1024


@pytest.mark.parametrize(
    "text",
    [
        "token = 1",
        "[[token]]\nname = 'a'\nsha256 = 'short'",
        f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nrights = {{ '*' = ['fly'] }}",
        f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nsecret = 'x'",
        "not toml",
        "token = []",
        2 * f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\n",
    ],
)
def test_an_invalid_tokens_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"tokens\.toml"):
        load_tokens(tokens_in(tmp_path, text))


def test_a_missing_tokens_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_tokens(Settings(tokens=str(tmp_path / "none")))


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
    assert not is_loopback("my.host")


def test_loopback_needs_nothing() -> None:
    check_exposure(Settings())
    check_exposure(Settings(listen="[::1]:0", peer_listen="localhost:7000"))


def test_another_address_needs_tokens(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="Set `tokens`"):
        check_exposure(Settings(listen="0.0.0.0:7400"))
    settings = tokens_in(tmp_path)
    check_exposure(Settings(listen="0.0.0.0:7400", tokens=settings.tokens))


@pytest.fixture
def pki(tmp_path: Path) -> dict[str, str]:
    ca = trustme.CA()
    cert = ca.issue_cert("127.0.0.1", "localhost")
    other = ca.issue_cert("localhost")
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key", "other")}
    ca.cert_pem.write_to_path(paths["ca"])
    cert.cert_chain_pems[0].write_to_path(paths["cert"])
    cert.private_key_pem.write_to_path(paths["key"])
    other.private_key_pem.write_to_path(paths["other"])
    return paths


def test_links_beyond_loopback_need_mutual_tls(pki: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="mutual TLS"):
        check_exposure(Settings(peer_listen="0.0.0.0:7500"))
    with pytest.raises(InvalidRequest, match="mutual TLS"):
        check_exposure(Settings(peer_listen="0.0.0.0:7500", tls_cert=pki["cert"], tls_key=pki["key"]))
    check_exposure(Settings(peer_listen="0.0.0.0:7500", tls_cert=pki["cert"], tls_key=pki["key"], tls_ca=pki["ca"]))


# ---------------------------------------------------------------------- TLS


def test_without_files_there_is_no_tls() -> None:
    assert server_context(Settings()) is None
    assert link_contexts(Settings()) == (None, None)


def test_peers_require_certificates_of_each_other_when_there_is_an_authority(pki: dict[str, str]) -> None:
    settings = Settings(tls_cert=pki["cert"], tls_key=pki["key"], tls_ca=pki["ca"])
    accepting, dialling = link_contexts(settings)
    assert accepting is not None
    assert dialling is not None
    assert accepting.verify_mode.name == dialling.verify_mode.name == "CERT_REQUIRED"
    api = server_context(settings)
    assert api is not None
    assert api.verify_mode.name == "CERT_NONE"


def test_mismatched_files_are_refused_with_an_explanation(pki: dict[str, str], tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    wrong = {
        "is not the key": Settings(tls_cert=pki["cert"], tls_key=pki["other"]),
        "tls_key is not set": Settings(tls_cert=pki["cert"]),
        "tls_cert is not set": Settings(tls_key=pki["key"]),
        "cannot be read": Settings(tls_cert=str(tmp_path / "none"), tls_key=pki["key"]),
        "not a PEM certificate and key": Settings(tls_cert=str(text), tls_key=pki["key"]),
    }
    for words, settings in wrong.items():
        with pytest.raises(InvalidRequest, match=words):
            server_context(settings)
    with pytest.raises(InvalidRequest, match=r"tls_ca .* is not a PEM"):
        link_contexts(Settings(tls_cert=pki["cert"], tls_key=pki["key"], tls_ca=str(text)))
    with pytest.raises(InvalidRequest, match="this peer has none"):
        link_contexts(Settings(tls_ca=pki["ca"]))
