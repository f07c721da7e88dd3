"""How many lanes a cluster may have is checked before a queue is created."""

from __future__ import annotations

import pytest

from avow.errors import TooMany
from avow.limits import LANES_PER_QUEUE_MAX, TWO_PHASE_LANES_COUNT
from avow.queue.commands import RetentionRules
from avow.queue.records import Queue
from avow.server.http.handlers_queues import check_room
from avow.server.http.schemas import NewQueue


def full() -> list[Queue]:
    """All the lanes that a cluster may have but one."""
    lanes = [LANES_PER_QUEUE_MAX] * (TWO_PHASE_LANES_COUNT // LANES_PER_QUEUE_MAX)
    lanes[-1] -= 1
    return [Queue(f"q{n}", "two-phase", count, 1 + n * 2_000, RetentionRules(), {}) for n, count in enumerate(lanes)]


def test_a_queue_that_would_exceed_the_lanes_of_a_cluster_is_refused_with_both_numbers() -> None:
    check_room(full(), NewQueue("new", lanes=1))
    with pytest.raises(
        TooMany, match=f"{TWO_PHASE_LANES_COUNT - 1} lanes.*{TWO_PHASE_LANES_COUNT}; nothing was created"
    ):
        check_room(full(), NewQueue("new", lanes=2))


def test_a_queue_that_exists_may_be_created_again_and_pubsub_queues_do_not_count() -> None:
    queues = full()
    check_room(queues, NewQueue("q0", lanes=LANES_PER_QUEUE_MAX))
    check_room(queues, NewQueue("news", strategy="pub-sub"))
