"""All vectors, by the file they belong in."""

from __future__ import annotations

from avow.testing.channel_vectors import failing, resuming, sending
from avow.testing.channel_vectors.form import Vector
from avow.testing.channel_vectors.stage import vectors_of
from avow.testing.channel_vectors.walks import walked


def written() -> dict[str, list[Vector]]:
    return {
        "failing.json": vectors_of(failing.SCRIPTS),
        "resuming.json": vectors_of(resuming.SCRIPTS),
        "sending.json": vectors_of(sending.SCRIPTS),
        "walks.json": walked(),
    }
