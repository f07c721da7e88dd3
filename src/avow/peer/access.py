"""Who may do what, and over which connections.

A peer without tokens trusts whoever reaches it, so it must not be reachable from another machine: `check_exposure`
refuses any address but loopback without a tokens file, and links beyond loopback without mutual TLS. There is no switch
to allow it anyway.

A token is a secret whose SHA-256 stands in the tokens file, so reading the file gives nobody access. It is found by
that digest and compared in constant time. Its rights are given per queue name, by patterns as a shell has them:

    [[token]]
    name = "spark"
    sha256 = "<hex of the token's sha256>"
    admin = false
    rights = { "orders*" = ["read", "write"], "*" = ["read"] }

Every pattern that fits adds its rights. `admin` includes all of them, and changing the cluster's peers.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
import tomllib
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from avow.errors import Forbidden, InvalidRequest, NotAuthenticated
from avow.peer.settings import Settings, address

Right: TypeAlias = Literal["read", "write", "manage", "admin", "use"]  # use: any right on that queue at all
QueueRight: TypeAlias = Literal["read", "write", "manage"]

BEARER_PROTOCOL: Final = b"avow.bearer."  # a WebSocket's subprotocol: the token behind it, in base64url
_REMEMBERED_MAX: Final = 1_024  # queue names per token whose rights are known already


class TokenEntry(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
    admin: bool = False
    rights: dict[str, list[QueueRight]] = {}


class _TokensFile(Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[list[TokenEntry], Meta(min_length=1)]


class Token:
    """What one bearer may do. `queue` is empty where a request names none."""

    __slots__ = ("_admin", "_digest", "_known", "_rights", "name")

    def __init__(self, entry: TokenEntry) -> None:
        self.name = entry.name
        self._admin = entry.admin
        self._digest = bytes.fromhex(entry.sha256)
        self._rights = entry.rights
        self._known: dict[str, frozenset[str]] = {}

    @property
    def admin(self) -> bool:
        return self._admin

    @property
    def rights(self) -> dict[str, list[QueueRight]]:
        """By pattern of queue names, as its issuer wrote them; those of an admin need not be written."""
        return {"*": ["read", "write", "manage"]} if self._admin else self._rights

    def matches(self, digest: bytes) -> bool:
        return hmac.compare_digest(self._digest, digest)

    def may(self, right: Right, queue: str = "") -> bool:
        if self._admin:
            return True
        known = self._known.get(queue)
        if known is None:
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            known = self._known[queue] = frozenset(self._rights_for(queue))
        return bool(known) if right == "use" else right in known

    def check(self, right: Right, queue: str = "") -> None:
        if not self.may(right, queue):
            where = f" on queue {queue!r}" if queue else ""
            raise Forbidden(f"token {self.name!r} has no right to {right}{where}; nothing was done. Ask its issuer")

    def _rights_for(self, queue: str) -> list[str]:
        """Without a queue, any pattern's rights count: what is listed is then filtered queue by queue."""
        fits = [rights for pattern, rights in self._rights.items() if not queue or fnmatchcase(queue, pattern)]
        return [right for rights in fits for right in rights]


ANYBODY: Final = Token(TokenEntry("anybody", "00" * 32, admin=True))  # of a peer without tokens, on loopback


class Tokens:
    """All tokens of a peer. None at all: whoever is here may do everything."""

    def __init__(self, entries: list[TokenEntry]) -> None:
        self._by_digest = {bytes.fromhex(entry.sha256): Token(entry) for entry in entries}

    @property
    def needed(self) -> bool:
        return bool(self._by_digest)

    def bearer(self, authorization: bytes | None) -> Token:
        """Raises NotAuthenticated."""
        if not self._by_digest:
            return ANYBODY
        if authorization is None:
            raise NotAuthenticated("this peer wants a token; nothing was done. Send Authorization: Bearer <token>")
        scheme, _, secret = authorization.partition(b" ")
        digest = sha256(secret.strip()).digest()
        token = self._by_digest.get(digest)
        if scheme.lower() != b"bearer" or token is None or not token.matches(digest):
            raise NotAuthenticated("this token is not known here; nothing was done. Check it with its issuer")
        return token


def token_in(protocols: bytes | None) -> bytes | None:
    """An Authorization header made of a browser's subprotocols, because it cannot set headers; None: there is none."""
    if protocols is None:
        return None
    for name in protocols.split(b","):
        if name.strip().startswith(BEARER_PROTOCOL):
            text = name.strip().removeprefix(BEARER_PROTOCOL)
            try:
                return b"Bearer " + urlsafe_b64decode(text + b"=" * (-len(text) % 4))
            except ValueError:
                return b"Bearer"  # of nobody
    return None


def load_tokens(settings: Settings) -> Tokens:
    """Raises InvalidRequest saying what is wrong with the file."""
    if not settings.tokens:
        return Tokens([])
    path = Path(settings.tokens)
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _TokensFile)
    except OSError as cause:
        raise InvalidRequest(f"tokens file {path} cannot be read: {cause.strerror}") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as cause:
        raise InvalidRequest(
            f"tokens file {path} is not a list of tokens: {cause}; see [[token]] in the docs"
        ) from cause
    digests = {entry.sha256.lower() for entry in found.token}
    if len(digests) != len(found.token):
        raise InvalidRequest(f"tokens file {path} gives the same sha256 twice: each token has its own secret")
    return Tokens(found.token)


# ---------------------------------------------------------------------- addresses


def check_exposure(settings: Settings) -> None:
    """Refuse what would let a stranger in. Raises InvalidRequest that says which setting to change."""
    for name in ("listen", *(("grpc_listen",) if settings.grpc_listen else ())):
        where = getattr(settings, name)
        if not is_loopback(address(where, name=name)[0]) and not settings.tokens:
            raise InvalidRequest(
                f"{name} {where} can be reached from other machines, and without tokens anybody there may do "
                "everything. Set `tokens` to a tokens file, or listen on 127.0.0.1"
            )
    beyond = not is_loopback(address(settings.peer_listen, name="peer_listen")[0])
    if beyond and not (settings.tls_ca and settings.tls_cert and settings.tls_key):
        raise InvalidRequest(
            f"peer_listen {settings.peer_listen} can be reached from other machines, and without mutual TLS anybody "
            "there may speak as a peer. Set `tls_cert`, `tls_key` and `tls_ca`, or listen on 127.0.0.1"
        )
    load_tokens(settings)
    server_context(settings)
    link_contexts(settings)


def is_loopback(host: str) -> bool:
    """A name other than localhost counts as exposed: what it resolves to is not known here."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---------------------------------------------------------------------- TLS


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """For clients of the API: the peer shows its certificate, clients show a token."""
    if not settings.tls_cert and not settings.tls_key:
        return None
    return _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)


def link_contexts(settings: Settings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """(accepting, dialling) for links between peers. With `tls_ca` both sides must show a certificate it signed."""
    if settings.tls_ca and not settings.tls_cert:
        raise InvalidRequest("tls_ca asks peers for certificates, and this one has none. Set `tls_cert` and `tls_key`")
    if not settings.tls_cert and not settings.tls_key:
        return None, None
    accepting = _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
    dialling = _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)
    dialling.check_hostname = False  # peers are known by their certificate's issuer and their identity, not by a name
    if settings.tls_ca:
        for context in (accepting, dialling):
            _trust(context, settings.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    else:
        dialling.verify_mode = ssl.CERT_NONE  # loopback only, see check_exposure
    return accepting, dialling


def _with_certificate(context: ssl.SSLContext, settings: Settings) -> ssl.SSLContext:
    files: Mapping[str, str] = {"tls_cert": settings.tls_cert, "tls_key": settings.tls_key}
    for name, path in files.items():
        if not path:
            raise InvalidRequest(f"TLS needs a certificate and its key: {name} is not set")
        _check_readable(name, path)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # an encrypted key must not prompt
    except ssl.SSLError as cause:
        mismatch = "KEY_VALUES_MISMATCH" in str(cause)
        what = (
            "tls_key is not the key of tls_cert"
            if mismatch
            else "tls_cert and tls_key are not a PEM certificate and key"
        )
        raise InvalidRequest(f"{what} ({settings.tls_cert}, {settings.tls_key}): {cause.reason or cause}") from cause
    return context


def _trust(context: ssl.SSLContext, path: str) -> None:
    _check_readable("tls_ca", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as cause:
        raise InvalidRequest(f"tls_ca {path} is not a PEM certificate: {cause.reason or cause}") from cause


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as cause:
        raise InvalidRequest(f"{name} {path} cannot be read: {cause.strerror}") from cause
