"""The settings of a peer, from command line flags, environment variables and one TOML file.

Flags override the environment (AVOW_ and the name in capitals), the environment overrides the file, the file overrides
the default. Everything else about a peer is decided by its cluster, or is a bound in `limits`.

Nothing here opens a file or socket of the peer: `load` returns a value, or an error that names the setting as its user
wrote it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from avow.errors import InvalidRequest
from avow.limits import BATCH_SIZE_BYTES_MAX, MIB, PEER_NUMBER_MAX, PEERS_MAX

ENVIRONMENT_PREFIX: Final = "AVOW_"
_DAY_S: Final = 24 * 3600.0
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`DESCRIPTIONS` explains each one; `avow serve --help` and docs/reference/settings.md are generated from both."""

    data: str = "avow-data"
    listen: str = "127.0.0.1:7400"
    peer_listen: str = "127.0.0.1:7500"
    number: Annotated[int, Meta(ge=1, le=PEER_NUMBER_MAX)] = 1
    founders: str = ""
    join: str = ""
    advertise: str = ""
    tokens: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    cors_origins: str = ""
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    in_flight_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096
    request_bytes_max: Annotated[int, Meta(ge=1024, le=64 * MIB)] = BATCH_SIZE_BYTES_MAX + MIB
    memory_bytes_max: Annotated[int, Meta(ge=16 * MIB, le=1024 * 1024 * MIB)] = 256 * MIB
    channels_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    channel_window_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    pledge_store: str = "lane"
    pledge_timeout_s: Annotated[float, Meta(gt=0, le=_DAY_S)] = 35.0
    pledge_retry_s: Annotated[float, Meta(gt=0, le=_DAY_S)] = 10.0
    pledge_dead_s: Annotated[float, Meta(ge=0, le=3650 * _DAY_S)] = 7 * _DAY_S
    pledge_keep_s: Annotated[float, Meta(gt=0, le=3650 * _DAY_S)] = _DAY_S
    pledge_alert: str = ""
    grpc_listen: str = ""
    log: LogLevel = "info"


DESCRIPTIONS: Final[Mapping[str, str]] = {
    "data": "data folder of this peer, with its identity, its log and its lanes",
    "listen": "host:port of the HTTP API; with port 0 the system chooses a free port",
    "peer_listen": "host:port for links from other peers",
    "number": "this peer's number in `founders`; a peer that joins is assigned one",
    "founders": "link addresses of all founders, 1=host:port,2=host:port,...; empty: a cluster of one peer",
    "join": "API address of a member of the cluster that this peer joins; several are separated by commas",
    "advertise": "host under which others reach this peer, if it differs from the one it listens on",
    "tokens": "TOML file of access tokens; required to listen on any address but loopback",
    "tls_cert": "PEM certificate; with it, the API uses HTTPS and links use TLS",
    "tls_key": "PEM private key of tls_cert",
    "tls_ca": "PEM certificate of the authority that signs peers; links use mutual TLS; required beyond loopback",
    "cors_origins": "origins of web pages that may use this peer, https://a,https://b; its cluster's own always may",
    "connections_max": "maximum number of HTTP connections; further ones are answered BUSY",
    "in_flight_max": "maximum number of requests in flight; further ones are answered BUSY",
    "request_bytes_max": "maximum size of a request body; a larger one is answered TOO_LARGE",
    "memory_bytes_max": "maximum bytes held for clients (requests, unread answers, channels); beyond it clients wait",
    "channels_max": "maximum number of channels, connected or not; further ones are refused with BUSY",
    "channel_window_s": "how long a disconnected channel waits for its client to reconnect",
    "pledge_store": "where pledges are stored: lane (this cluster), sqlite:PATH, postgresql://..., mysql://... or redis://...",
    "pledge_timeout_s": "time after which the checkback of a prepared pledge is called; a pledge can override it",
    "pledge_retry_s": "pause before the first retry of a failed delivery; a pledge can override it",
    "pledge_dead_s": "time after which a delivery that keeps failing is given up and its pledge is dead; 0: never",
    "pledge_keep_s": "how long a finished pledge and its gid are kept",
    "pledge_alert": "URL to which alerts about failing and dead pledges are posted; empty: none",
    "grpc_listen": "host:port of dtm's API over gRPC; empty: not served",
    "log": "log level: debug, info, warning or error; the log goes to stderr",
}


def load(flags: Mapping[str, Any], *, environment: Mapping[str, str], config: Path | None = None) -> Settings:
    """Raises InvalidRequest that names the setting, its source and its allowed values."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, found in (
        (f"file {config}", _from_file(config) if config else {}),
        ("environment", _from_environment(environment)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in found.items():
            if name not in DESCRIPTIONS:
                raise InvalidRequest(f"{source}: unknown setting {name!r}; the settings are {', '.join(DESCRIPTIONS)}")
            values[name], sources[name] = value, source
    for name, value in values.items():
        try:
            values[name] = msgspec.convert(value, _TYPES[name], strict=False)
        except msgspec.ValidationError as cause:
            raise InvalidRequest(f"setting {name} ({sources[name]}): {cause}; {DESCRIPTIONS[name]}") from cause
    settings = Settings(**values)
    founders_of(settings)
    for name in ("listen", "peer_listen", *(("grpc_listen",) if settings.grpc_listen else ())):
        address(getattr(settings, name), name=name)
    return settings


def address(text: str, *, name: str) -> tuple[str, int]:
    """Parses host:port; an IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{name} must be host:port, for example 127.0.0.1:7400, not {text!r}")
    return host, int(port)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def founders_of(settings: Settings) -> dict[int, str]:
    """Number -> link address. Empty for a peer that joins; only this peer when `founders` is not set."""
    if settings.join:
        if settings.founders:
            raise InvalidRequest("a peer either founds a cluster or joins one: set `founders` or `join`, not both")
        return {}
    if not settings.founders:
        return {settings.number: settings.peer_listen}
    found: dict[int, str] = {}
    for item in settings.founders.split(","):
        number, _, link = item.strip().partition("=")
        if not number.isdigit() or not 1 <= int(number) <= PEER_NUMBER_MAX or int(number) in found:
            raise InvalidRequest(
                f"founders must be 1=host:port,2=host:port,..., each number once; {item.strip()!r} is not valid"
            )
        address(link, name=f"founder {number}")
        found[int(number)] = link
    if settings.number not in found:
        raise InvalidRequest(f"number {settings.number} is not among the founders {sorted(found)}")
    if len(found) > PEERS_MAX:
        raise InvalidRequest(f"a cluster has at most {PEERS_MAX} peers, not {len(found)}")
    return found


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as cause:
        raise InvalidRequest(f"settings file {path} cannot be read: {cause.strerror}") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise InvalidRequest(f"settings file {path} is not TOML: {cause}") from cause


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Ignores names that are not settings: the client's variables have the same prefix."""
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in DESCRIPTIONS}
    return {names[name]: value for name, value in environment.items() if name in names}


_TYPES: Final[Mapping[str, Any]] = {field.name: field.type for field in msgspec.structs.fields(Settings)}
