"""The Python core passes the vectors, and the vector files are up to date with the scripts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.channel_vectors.form import FOLDER, Vector, differences, repeated, spelled, stored, text
from tools.channel_vectors.scripts import written

STORED = stored()
WRITTEN = written()
VECTORS = [pytest.param(vector, id=vector.name) for vectors in STORED.values() for vector in vectors]


@pytest.mark.parametrize("vector", VECTORS)
def test_the_core_follows_the_vector(vector: Vector) -> None:
    assert differences(vector) == []


@pytest.mark.parametrize("name", sorted(STORED.keys() | WRITTEN.keys()))
def test_the_files_are_up_to_date(name: str) -> None:
    file = FOLDER / name
    assert file.read_text() == text(WRITTEN[name]), "python -m tools.channel_vectors --write"


def test_a_wrong_vector_is_detected() -> None:
    vector = next(one for one in STORED["sending.json"] if "idle" in one.name)
    reversed_steps = Vector(vector.name, vector.ends, vector.steps[::-1])
    assert differences(reversed_steps)


def test_names_are_not_used_twice() -> None:
    names = Counter(vector.name for vectors in STORED.values() for vector in vectors)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 60


def test_every_kind_of_step_event_error_and_end_occurs() -> None:
    steps = [step for vectors in STORED.values() for vector in vectors for step in vector.steps]
    events = [event for step in steps for event in step.expect.events]
    assert {step.do for step in steps} == {
        *("send", "commit", "resend", "ack_commit", "end", "socket", "greeted", "received", "lost"),
    }
    assert {event["type"] for event in events} == {
        *("Messages", "CommitDelivered", "CommitAcked", "Suspended", "Resumed", "Connected", "Ended"),
    }
    assert {step.expect.raises for step in steps} == {"", "BUSY", "TOO_LARGE", "INVALID_REQUEST", "CHANNEL_FAILED"}
    assert {event["code"] for event in events if event["type"] == "Ended"} == {
        *("CLOSED", "ABORTED", "UNKNOWN_CHANNEL", "EXPIRED", "IMPOSSIBLE", "PROTOCOL", "CAP_EXCEEDED"),
        *("REFUSED", "MOVED", "GOING"),
    }
    pending = [one for event in events if event["type"] == "Ended" for one in event["pending"]]
    assert {one["fate"] for one in pending} == {"delivered", "unknown", "unsent"}


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(1, 200)), max_size=5))
def test_bytes_survive_the_vector_format(pieces: list[tuple[bytes, int]]) -> None:
    data = b"".join(piece * times for piece, times in pieces)
    assert spelled(repeated(data)) == data
