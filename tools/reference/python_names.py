"""The page of public Python names with their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, get_type_hints, is_typeddict

_HEAD: Final = """# Python

Public names, their signatures and their docstrings. [The client](../client.md), [the channel](../channel.md),
[pledges](../pledges.md), [the barrier](../barrier.md), [Spark](../spark.md) and [pipelines](../pipelines.md) explain
their use. `avow.errors` is the module of all [errors](errors.md), `avow.__version__` the version. Import each name from
the place it has here: `from avow import Client`. Names that are not listed here, or begin with an underscore, may
change without notice; [stability](../stability.md) says what else may change, and when.

"""

NAMES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "The client": {
        "avow": (
            *("connect", "connect_blocking", "Client", "Queue", "Transaction", "Done"),
            *("ReadBatch", "Message", "StoredMessage", "Headers", "Level", "Strategy"),
            *("QueueInfo", "LaneInfo", "Retention", "SubscriberInfo", "PeerInfo"),
        ),
    },
    "Producers, subscribers, observers": {
        "avow": (
            *("Producer", "Written", "FileStore", "MemoryStore", "PendingStore", "Subscription", "SubscribedBatch"),
            *("Event", "Enqueued", "Stored", "Committed"),
        ),
    },
    "The client without an event loop": {
        "avow": (
            *("BlockingClient", "BlockingQueue", "BlockingTransaction"),
            *("BlockingProducer", "BlockingSubscription", "BlockingBatch", "BlockingPledge"),
        ),
    },
    "Pledges": {
        "avow": (
            *("Pledge", "PledgeOptions", "PledgeOutcome"),
            *("Delivered", "CommittedPending", "Stopped", "RolledBack", "OutcomeUnknown"),
            *("PledgePage", "PledgeAnswer"),
        ),
    },
    "Errors": {"avow": ("AvowError", "Refused", "Unknown")},
    "The barrier, in your service": {
        "avow.barrier": ("Verdict", "Question"),
        "avow.barrier.sql": ("Barrier", "check_back", "checkback", "create_table", "clean_up"),
        "avow.barrier.sqlalchemy": ("Barrier", "AsyncBarrier", "checkback", "create_table", "clean_up"),
        "avow.barrier.redis": ("Barrier", "AsyncBarrier", "checkback"),
        "avow.barrier.mongo": ("Barrier", "checkback", "create_collection"),
        "avow.barrier.web": ("starlette_route", "flask_blueprint", "django_path", "django_checkback", "answer"),
    },
    "A channel by itself": {
        "avow.channel.connector": ("connect_channel",),
        "avow.channel.listener": ("listen", "ChannelListener"),
        "avow.channel.protocol.events": ("Bounds",),
    },
    "Spark": {
        "avow.spark": ("session", "register"),
        "avow.spark.tables": ("open_table", "Table"),
        "avow.spark.pipelines": (
            "archive",
            "transform",
            "replay",
            "read_spec",
            "Pipeline",
            "PipelineFailed",
            "Message",
        ),
        "avow.spark.pipelines.audit": ("audit", "compare"),
    },
    "For tests": {"avow.testing.cluster": ("LocalCluster",)},
}


def python_page() -> str:
    parts = [_HEAD]
    for title, modules in NAMES.items():
        parts.append(f"## {title}\n\n")
        for module, names in modules.items():
            parts += [_described(module, name) for name in names]
    return "".join(parts).rstrip() + "\n"


def _described(module: str, name: str) -> str:
    found = getattr(import_module(module), name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return f"### {module}.{name}\n\n```\n{name} = {_alias(found)}\n```\n\n"
    lines = [f"### {module}.{name}\n\n", f"```\n{_signature(name, found)}\n```\n\n", _text(found)]
    if is_typeddict(found):
        lines += [f"- `{key}: {_annotation(kind)}`\n" for key, kind in get_type_hints(found).items()] + ["\n"]
    elif inspect.isclass(found):
        for word, method in _methods(found):
            docstring = _text(method).strip().replace("\n\n", "\n").replace("\n", "\n    ")
            lines.append(f"- `{_signature(word, method)}`{chr(10) + '    ' + docstring if docstring else ''}\n")
        lines.append("\n")
    return "".join(lines)


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for owner in reversed(kind.__mro__):
        if not owner.__module__.startswith("avow."):
            continue
        for word, value in vars(owner).items():
            public = not word.startswith("_") and vars(kind).get(word, value) is value
            if public and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                yield word, value


def _signature(name: str, found: Any) -> str:
    if isinstance(found, property):
        return name
    plain = found.__func__ if isinstance(found, classmethod) else found
    waits = "await " if inspect.iscoroutinefunction(plain) else ""
    try:
        signature = inspect.signature(plain)
    except (TypeError, ValueError):  # an Enum, an exception
        return name
    shown = [_unquoted(one) for one in signature.parameters.values() if one.name not in ("self", "cls")]
    shown_signature = signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    returns = signature.return_annotation
    arrow = "" if inspect.isclass(plain) or returns is inspect.Signature.empty else f" -> {_annotation(returns)}"
    return f"{waits}{name}{shown_signature}{arrow}"


def _unquoted(one: inspect.Parameter) -> inspect.Parameter:
    if one.annotation is inspect.Parameter.empty:
        return one
    return one.replace(annotation=_Plain(_annotation(one.annotation)))


class _Plain:
    """Text that `repr` shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _annotation(found: Any) -> str:
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _alias(found: Any) -> str:
    """A type alias, with the names of its members: types that are listed on this page or built in."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(found))


def _text(found: Any) -> str:
    docstring = found.__doc__ if not inspect.isclass(found) else vars(found).get("__doc__")
    return inspect.cleandoc(docstring) + "\n\n" if docstring else ""
