"""Access rights: tokens, which addresses a peer may listen on, and TLS.

A peer without tokens lets everyone who can connect do everything, so it must not be reachable from another machine:
`check_exposure` refuses any address but loopback without a tokens file, and links beyond loopback without mutual TLS.
No setting overrides this.

A token is a secret. The tokens file has its SHA-256, so reading the file gives no access. It is looked up by that
digest and compared in constant time. Its rights are given per queue name, by shell patterns:

    [[token]]
    name = "spark"
    sha256 = "<hex of the token's sha256>"
    admin = false
    rights = { "orders*" = ["read", "write"], "*" = ["read"] }

Every pattern that matches adds its rights. `admin` includes all rights, and the right to change the cluster's peers.
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
from avow.server.settings import Settings, address

Right: TypeAlias = Literal["read", "write", "manage", "admin", "use"]  # use: any right on that queue
QueueRight: TypeAlias = Literal["read", "write", "manage"]

BEARER_PROTOCOL: Final = b"avow.bearer."  # a WebSocket's subprotocol: the token behind it, in base64url
_CACHED_MAX: Final = 1_024  # queue names per token whose rights are cached


class TokenEntry(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
    admin: bool = False
    rights: dict[str, list[QueueRight]] = {}


class _TokensFile(Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[list[TokenEntry], Meta(min_length=1)]


class Token:
    """The rights of one bearer. `queue` is empty where a request names none."""

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
        """By pattern of queue names, as in the tokens file; an admin has all of them."""
        return {"*": ["read", "write", "manage"]} if self._admin else self._rights

    def matches(self, digest: bytes) -> bool:
        return hmac.compare_digest(self._digest, digest)

    def may(self, right: Right, queue: str = "") -> bool:
        if self._admin:
            return True
        known = self._known.get(queue)
        if known is None:
            if len(self._known) >= _CACHED_MAX:
                self._known.clear()
            known = self._known[queue] = frozenset(self._rights_for(queue))
        return bool(known) if right == "use" else right in known

    def check(self, right: Right, queue: str = "") -> None:
        if not self.may(right, queue):
            where = f" on queue {queue!r}" if queue else ""
            raise Forbidden(
                f"token {self.name!r} has no {right!r} right{where}; nothing was done. Ask its issuer for the right"
            )

    def _rights_for(self, queue: str) -> list[str]:
        """Without a queue the rights of all patterns count: the caller then filters its list queue by queue."""
        fits = [rights for pattern, rights in self._rights.items() if not queue or fnmatchcase(queue, pattern)]
        return [right for rights in fits for right in rights]


ANYBODY: Final = Token(TokenEntry("anybody", "00" * 32, admin=True))  # for a peer without tokens, on loopback


class Tokens:
    """All tokens of a peer. Without tokens every client may do everything."""

    def __init__(self, entries: list[TokenEntry]) -> None:
        self._by_digest = {bytes.fromhex(entry.sha256): Token(entry) for entry in entries}

    @property
    def needed(self) -> bool:
        return bool(self._by_digest)

    def bearer(self, authorization: bytes | None) -> Token:
        """The token of an Authorization header. Raises NotAuthenticated."""
        if not self._by_digest:
            return ANYBODY
        if authorization is None:
            raise NotAuthenticated("this peer requires a token; nothing was done. Send Authorization: Bearer <token>")
        scheme, _, secret = authorization.partition(b" ")
        digest = sha256(secret.strip()).digest()
        token = self._by_digest.get(digest)
        if scheme.lower() != b"bearer" or token is None or not token.matches(digest):
            raise NotAuthenticated("this peer does not know the token; nothing was done. Check it with its issuer")
        return token


def token_in(protocols: bytes | None) -> bytes | None:
    """An Authorization header from a WebSocket's subprotocols: browsers cannot set headers. None: it has no token."""
    if protocols is None:
        return None
    for name in protocols.split(b","):
        if name.strip().startswith(BEARER_PROTOCOL):
            text = name.strip().removeprefix(BEARER_PROTOCOL)
            try:
                return b"Bearer " + urlsafe_b64decode(text + b"=" * (-len(text) % 4))
            except ValueError:
                return b"Bearer"  # matches no token
    return None


def load_tokens(settings: Settings) -> Tokens:
    """Raises InvalidRequest that says what is wrong with the file."""
    if not settings.tokens:
        return Tokens([])
    path = Path(settings.tokens)
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _TokensFile)
    except OSError as cause:
        raise InvalidRequest(f"tokens file {path} cannot be read: {cause.strerror}") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as cause:
        raise InvalidRequest(
            f"tokens file {path} is not a valid list of tokens: {cause}; see [[token]] in the docs"
        ) from cause
    digests = {entry.sha256.lower() for entry in found.token}
    if len(digests) != len(found.token):
        raise InvalidRequest(f"tokens file {path} has the same sha256 twice; every token needs its own secret")
    return Tokens(found.token)


# ---------------------------------------------------------------------- addresses


def check_exposure(settings: Settings) -> None:
    """Refuses settings that would let anyone in. Raises InvalidRequest that says which setting to change."""
    for name in ("listen", *(("grpc_listen",) if settings.grpc_listen else ())):
        where = getattr(settings, name)
        if not is_loopback(address(where, name=name)[0]) and not settings.tokens:
            raise InvalidRequest(
                f"{name} {where} can be reached from other machines, and without tokens anyone there could do "
                "anything. Set `tokens` to a tokens file, or listen on 127.0.0.1"
            )
    beyond = not is_loopback(address(settings.peer_listen, name="peer_listen")[0])
    if beyond and not (settings.tls_ca and settings.tls_cert and settings.tls_key):
        raise InvalidRequest(
            f"peer_listen {settings.peer_listen} can be reached from other machines, and without mutual TLS anyone "
            "there could act as a peer. Set `tls_cert`, `tls_key` and `tls_ca`, or listen on 127.0.0.1"
        )
    load_tokens(settings)
    server_context(settings)
    link_contexts(settings)


def is_loopback(host: str) -> bool:
    """A name other than localhost counts as exposed, because it may resolve to any address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ---------------------------------------------------------------------- TLS


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """For clients of the API: the peer presents its certificate, clients send a token."""
    if not settings.tls_cert and not settings.tls_key:
        return None
    return _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)


def link_contexts(settings: Settings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """(accepting, dialling) for links between peers. With `tls_ca` both sides must present a certificate it signed."""
    if settings.tls_ca and not settings.tls_cert:
        raise InvalidRequest(
            "tls_ca requires certificates from peers, but this peer has none. Set `tls_cert` and `tls_key`"
        )
    if not settings.tls_cert and not settings.tls_key:
        return None, None
    accepting = _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
    dialling = _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)
    dialling.check_hostname = (
        False  # peers are identified by their certificate's issuer and their identity, not by a host name
    )
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
            raise InvalidRequest(f"TLS needs both `tls_cert` and `tls_key`: {name} is not set")
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
