"""Parses the URL of a table.

    delta:PATH                                            a Delta table in a folder
    parquet:PATH                                          Parquet files in a folder, listed by manifests
    postgresql://user@host:port/db?table=schema.name      a table of a database; other parameters go to the connection
    PATH                                                  an existing table of one of the first two kinds

A folder must be visible to every worker under the same path: any local folder on one machine, a shared one on a
cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from avow.errors import InvalidRequest

DELTA_LOG: Final = "_delta_log"
PARQUET_NOTE: Final = os.path.join("_avow", "table.json")
FORMS: Final = "delta:PATH, parquet:PATH, or postgresql://user@host:port/db?table=schema.name"
COMPRESSIONS: Final = ("zstd", "snappy", "none")
COMPACT_EVERY_MAX: Final = 1_000_000


class Kind(StrEnum):
    DELTA = "delta"
    PARQUET = "parquet"
    POSTGRESQL = "postgresql"


class Address(msgspec.Struct, frozen=True):
    """`place` is a folder or a database's URL; `schema` and `table` are only for a database. `compact_every`: the
    number of commits between compactions of a Delta table; 0 is never, None uses the table's own setting."""

    kind: Kind
    place: str
    schema: str = ""
    table: str = ""
    compression: str = "zstd"
    compact_every: int | None = None


def parse(url: str, options: Mapping[str, str] | None = None) -> Address:
    scheme, separator, rest = url.partition(":")
    scheme = scheme.lower() if separator else ""
    if scheme in ("postgresql", "postgres"):
        _known(options, ())
        return _database(url)
    known = _known(options, ("compact", "compression") if scheme == Kind.DELTA else ("compression",))
    compression = known.get("compression", "zstd")
    if compression not in COMPRESSIONS:
        raise _wrong(f"the option compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    kind, folder = _folder(url, scheme=scheme, rest=rest)
    return Address(kind, folder, compression=compression, compact_every=_commits(known.get("compact")))


def _commits(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) > COMPACT_EVERY_MAX:
        raise _wrong(f"the option compact must be a number of commits up to {COMPACT_EVERY_MAX:,}, or 0, not {text!r}")
    return int(text)


def _folder(url: str, *, scheme: str, rest: str) -> tuple[Kind, str]:
    if scheme in (Kind.DELTA, Kind.PARQUET):
        return Kind(scheme), _path(url, rest)
    if scheme and scheme != "file":
        raise _wrong(f"{url!r} has the unknown kind {scheme!r}")
    path = _path(url, url if not scheme else f"file:{rest}")
    if os.path.isdir(os.path.join(path, DELTA_LOG)):
        return Kind.DELTA, path
    if os.path.isfile(os.path.join(path, PARQUET_NOTE)):
        return Kind.PARQUET, path
    raise _wrong(f"{url!r} is a folder without a table, so the URL must name the kind")


def _path(url: str, text: str) -> str:
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    elif "://" in text:
        raise _wrong(f"{url!r} is not in a file system that workers can mount ({text.partition(':')[0]})")
    if not text:
        raise _wrong(f"{url!r} has no path")
    return os.path.abspath(text)


def _database(url: str) -> Address:
    parts = urlsplit(url)
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    names = [value for key, value in parameters if key == "table"]
    if len(names) != 1 or not names[0]:
        raise _wrong(f"{_without_password(url)!r} names no table: add ?table=schema.name")
    schema, dot, table = names[0].rpartition(".")
    if not table or (dot and not schema) or "." in schema:
        raise _wrong(f"{names[0]!r} is not a valid table name: use schema.name or name")
    rest = urlencode([(key, value) for key, value in parameters if key != "table"])
    place = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
    return Address(Kind.POSTGRESQL, place, schema=schema or "public", table=table)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    shown = f"{user.partition(':')[0]}{at}{host}"
    return urlunsplit((parts.scheme, shown, parts.path, parts.query, ""))


def _known(options: Mapping[str, str] | None, names: tuple[str, ...]) -> Mapping[str, str]:
    given = {} if options is None else {key.lower(): value for key, value in options.items()}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise _wrong(f"unknown options of a table: {', '.join(unknown)}; known here: {', '.join(names) or 'none'}")
    return given


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what}; nothing was changed. The URL of a table is {FORMS}")
