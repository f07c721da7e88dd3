"""The pages of a pipeline file's keys and of Spark's reader and writer options, from the code that checks them."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec import inspect as types
from msgspec.structs import FieldInfo, fields

from avow.spark.pipelines import audit_spec, spec
from avow.spark.sink import options as sink_options
from avow.spark.source import options
from tools.reference.markdown import code, table

_KEYS: Final = """# Keys of a pipeline's file

The keys of a file, generated from the values that `avow pipeline` reads it into. [Pipelines](../pipelines.md) explains
each kind. An unknown key is an error that names it.

"""
_OPTIONS: Final = """# Options of Spark's reader and writer

Generated from the code that checks them. [Spark](../spark.md) has tables of both with their defaults.

"""
_HIDDEN: Final = ("cluster", "spark", "source", "sink", "folder")  # sections, and fields that are not in a file


def pipeline_keys_page() -> str:
    parts = [
        _section("Every kind", spec.Common),
        _section("Where the peers are, at the top", spec.Cluster),
        _section("`[spark]`", spec.SparkSettings),
        _section("`[source]`", spec.Source),
        _section("`[sink]` of a transform or a replay", spec.Sink),
        _section("archive", spec.ArchiveSpec, beside=spec.Common),
        _section("transform", spec.TransformSpec, beside=spec.Common),
        _section("replay", spec.ReplaySpec, beside=spec.Common),
        _text("In a file", spec),
        _section("audit", audit_spec.AuditSpec),
        *(_section(f"audit, `[{name}]`", kind) for name, kind in _stages()),
        _text("An audit's file", audit_spec),
    ]
    return _KEYS + "\n".join(parts)


def spark_options_page() -> str:
    names = ", ".join(code(name) for name in options.NAMES)
    return (
        f"{_OPTIONS}## Source\n\n{names}\n\n{_quoted(options)}\n## Sink\n\n"
        f"{', '.join(code(name) for name in sink_options.NAMES)}\n\n{_quoted(sink_options)}"
    )


def _stages() -> list[tuple[str, type[Struct]]]:
    return [
        ("business", audit_spec.BusinessInput),
        ("barrier", audit_spec.BarrierInput),
        ("pledges", audit_spec.PledgesInput),
        ("queue", audit_spec.QueueInput),
        ("table", audit_spec.TableInput),
    ]


def _section(title: str, kind: type[Struct], *, beside: type[Struct] | None = None) -> str:
    known = {field.name for field in fields(beside)} if beside else set()
    stages = {name for name, _ in _stages()} if kind is audit_spec.AuditSpec else set()
    shown = [field for field in fields(kind) if field.name not in {*known, *stages, *_HIDDEN, "kind"}]
    rows = [(code(field.name), _type(field.type), _default(field)) for field in shown]
    return f"## {title}\n\n{table(('key', 'type', 'default'), rows)}"


def _type(found: Any) -> str:
    """The type in TOML's terms."""
    info = types.type_info(found)
    choices = info.types if isinstance(info, types.UnionType) else (info,)
    return " or ".join(dict.fromkeys(_word(one) for one in choices if not isinstance(one, types.NoneType)))


def _word(info: types.Type) -> str:
    words = {
        types.StrType: "text",
        types.IntType: "whole number",
        types.FloatType: "number",
        types.BoolType: "true or false",
        types.DictType: "names and values",
        types.VarTupleType: "list",
    }
    return words[type(info)]


def _default(field: FieldInfo) -> str:
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "required" if field.name not in ("name", "checkpoint") else "from the file's name"
    return code(str(field.default).lower()) if isinstance(field.default, bool) else _shown(field.default)


def _shown(value: object) -> str:
    return "" if value in (None, "", ()) or value is msgspec.NODEFAULT else code(value)


def _text(title: str, module: ModuleType) -> str:
    return f"## {title}\n\n{_quoted(module)}"


def _quoted(module: ModuleType) -> str:
    return f"```\n{inspect.cleandoc(module.__doc__ or '')}\n```\n"
