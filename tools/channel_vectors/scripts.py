"""All vectors, by file."""

from __future__ import annotations

from tools.channel_vectors import failing, resuming, sending
from tools.channel_vectors.form import Vector
from tools.channel_vectors.stage import vectors_of
from tools.channel_vectors.walks import walked


def written() -> dict[str, list[Vector]]:
    return {
        "failing.json": vectors_of(failing.SCRIPTS),
        "resuming.json": vectors_of(resuming.SCRIPTS),
        "sending.json": vectors_of(sending.SCRIPTS),
        "walks.json": walked(),
    }
