"""What a peer can be told: twenty-five settings, from flags, the environment and one TOML file.

Flags win over the environment (AVOW_ and the name in capitals), the environment over the file, the file over the
default. Everything else about a peer is decided by the cluster it belongs to, or is a bound in `limits`.

Nothing here opens anything: `load` makes a value and says what is wrong with it, in the words of the one who set it.
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
    """`DESCRIPTIONS` says what each is for; `avow serve --help` and docs/reference/settings.md are made from both."""

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
    "data": "folder of this peer: its identity, its log, its lanes",
    "listen": "host:port of the HTTP API; port 0 takes a free one",
    "peer_listen": "host:port for links from other peers",
    "number": "this founder's number among `founders`; a peer that joins is given one",
    "founders": "link addresses of all founders, 1=host:port,2=host:port,...; empty: a cluster of one",
    "join": "API address of a member; this peer asks it for a place in the cluster",
    "advertise": "host under which others reach this peer, when it is not the one it listens on",
    "tokens": "TOML file of access tokens; needed to listen anywhere but on loopback",
    "tls_cert": "PEM certificate: the API speaks HTTPS, links speak TLS",
    "tls_key": "PEM private key of tls_cert",
    "tls_ca": "PEM of the authority that signs peers: links are mutual TLS; needed for links beyond loopback",
    "cors_origins": "origins of web pages that may use this peer, https://a,https://b; its cluster's own always may",
    "connections_max": "HTTP connections at a time; one more is answered BUSY",
    "in_flight_max": "requests being answered at a time; one more is answered BUSY",
    "request_bytes_max": "largest request body; a larger one is answered TOO_LARGE",
    "channels_max": "channels at a time, also those that wait for their client; one more is refused with BUSY",
    "channel_window_s": "how long a channel without a connection waits for its client to come back",
    "pledge_store": "where pledges live: lane (this cluster), sqlite:PATH, postgresql://..., mysql://... or redis://...",
    "pledge_timeout_s": "a pledge prepared for so long is asked about at its checkback, unless it says otherwise",
    "pledge_retry_s": "before a delivery that failed is repeated for the first time, unless the pledge says otherwise",
    "pledge_dead_s": "a delivery that only failed for so long is given up: the pledge is dead; 0: never",
    "pledge_keep_s": "how long a finished pledge is remembered, and its gid with it",
    "pledge_alert": "URL that is told of pledges that keep failing, and of dead ones; empty: nobody is",
    "grpc_listen": "host:port of dtm's API over gRPC; empty: it is not served",
    "log": "debug, info, warning or error, to stderr",
}


def load(flags: Mapping[str, Any], *, environment: Mapping[str, str], config: Path | None = None) -> Settings:
    """Raises InvalidRequest naming the setting, where it came from, and what it may be."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, found in (
        (f"file {config}", _from_file(config) if config else {}),
        ("environment", _from_environment(environment)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in found.items():
            if name not in DESCRIPTIONS:
                raise InvalidRequest(f"{source}: there is no setting {name!r}; there are {', '.join(DESCRIPTIONS)}")
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
    """host:port; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{name} is host:port, for example 127.0.0.1:7400, not {text!r}")
    return host, int(port)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def founders_of(settings: Settings) -> dict[int, str]:
    """Number -> link address; empty for a peer that joins, itself alone when nobody else is named."""
    if settings.join:
        if settings.founders:
            raise InvalidRequest("a peer is a founder or it joins: give `founders` or `join`, not both")
        return {}
    if not settings.founders:
        return {settings.number: settings.peer_listen}
    found: dict[int, str] = {}
    for item in settings.founders.split(","):
        number, _, link = item.strip().partition("=")
        if not number.isdigit() or not 1 <= int(number) <= PEER_NUMBER_MAX or int(number) in found:
            raise InvalidRequest(f"founders is 1=host:port,2=host:port,..., each number once; not {item.strip()!r}")
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
    """Only names that are settings: the prefix is shared with the client's variables."""
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in DESCRIPTIONS}
    return {names[name]: value for name, value in environment.items() if name in names}


_TYPES: Final[Mapping[str, Any]] = {field.name: field.type for field in msgspec.structs.fields(Settings)}
