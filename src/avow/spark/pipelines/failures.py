"""Finds the one line that says why a pipeline failed.

Spark wraps an exception of a Python worker in a Java exception in a Py4J exception in a StreamingQueryException, with
two stack traces and a query plan. The useful line is in the middle: the last one of the Python trace, with the class
and the message. The full text is stored in a file, which the error names.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, ClassVar, Final

from avow.errors import AvowError

LINE_CHARS: Final = 400
_RAISED: Final = re.compile(
    r"^(?:Caused by|\s)*:?\s*(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt|Exit|[A-Z]\w+)): (.+)$"
)
_AVOWS: Final = re.compile(r"(?:^|\s)avow\.errors\.(\w+): (.+)$")
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ((?:(?!\[[A-Z][A-Z0-9_.]+\] ).)+?)(?: SQLSTATE: \w+)?$")
_NOISE: Final = (
    "Py4JJavaError",
    "PySparkRuntimeError",
    "PythonException",
    "SQLSTATE",
    "SparkException",
    "StreamingQueryException",
)
_PLAN: Final = "=== Streaming Query ==="  # from here on: offsets and plans, but no reason


class PipelineFailed(AvowError):
    """Committed batches stay, and the next run continues after them. `trace` is the full stack trace."""

    code: ClassVar[str] = "PIPELINE_FAILED"

    def __init__(self, name: str, *, cause: str, trace: str) -> None:
        super().__init__(
            f"pipeline {name} failed: {cause}. Batches that it committed before stay; a restart continues after them"
        )
        self.cause, self.trace = cause, trace

    def details(self) -> dict[str, Any]:
        return {"cause": self.cause}


def failed(name: str, error: BaseException) -> PipelineFailed:
    trace = "".join(traceback.format_exception(error))
    return PipelineFailed(name, cause=cause_of(error), trace=trace)


def cause_of(error: BaseException) -> str:
    """One line: an error of Avow, else the end of a Python trace, else the last error condition that Spark names."""
    if isinstance(error, AvowError):
        return _short(str(error))
    lines = str(error).partition(_PLAN)[0].splitlines()
    for line in lines:
        if found := _AVOWS.search(line):
            return _short(found[2])
    raised = [found for line in lines if (found := _RAISED.match(line)) and found[1] not in _NOISE]
    if raised:
        return _short(f"{raised[0][1]}: {raised[0][2]}")
    if conditions := [found for line in lines if (found := _CONDITION.search(line))]:
        return _short(f"[{conditions[-1][1]}] {conditions[-1][2]}")
    first = next((line.strip() for line in lines if line.strip()), "")
    return _short(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def _short(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"
