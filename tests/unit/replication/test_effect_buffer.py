"""When a message may leave: the one place that decides it."""

from __future__ import annotations

from random import Random

import pytest

from avow.replication.durable import synced_receipt
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Effects, SaveCut
from avow.wire.messages import Probe

PROOF = synced_receipt(1)


def saved(number: int) -> SaveCut:
    return SaveCut(1, number)


def test_an_independent_send_leaves_with_the_next_drain() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    buffer.send_all((2, 3), Probe(1))
    assert buffer.drain(0) == Effects([(2, Probe(1)), (3, Probe(1))], [])
    assert buffer.drain(0) is None
    assert buffer.all_synced


def test_a_send_that_depends_on_a_sync_leaves_after_its_proof() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    buffer.persist(saved(1))
    buffer.send_synced(2, Probe(1))
    assert buffer.drain(7) == Effects([], [saved(1)])
    assert buffer.drain(8) is None
    assert buffer.persisted(PROOF) == 7
    assert buffer.drain(9) == Effects([(2, Probe(1))], [])


def test_a_send_that_waits_and_persists_nothing_waits_for_the_youngest_record() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    for number in (1, 2):
        buffer.persist(saved(number))
        buffer.drain(number)
    buffer.send_synced(2, Probe(1))
    assert buffer.drain(3) is None
    assert buffer.persisted(PROOF) == 1
    assert buffer.drain(4) is None
    assert buffer.persisted(PROOF) == 2
    assert buffer.drain(5) == Effects([(2, Probe(1))], [])


def test_nothing_waits_when_nothing_is_outstanding() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    called: list[str] = []
    buffer.send_synced(2, Probe(1))
    buffer.after_sync(lambda: called.append("now"))
    assert buffer.drain(1) == Effects([(2, Probe(1))], [])
    assert called == ["now"]


def test_calls_after_a_sync_get_the_proof_of_their_record() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    called: list[str] = []
    buffer.persist(saved(1))
    buffer.after_sync(lambda: called.append("first"))
    buffer.drain(1)
    buffer.after_sync(lambda: called.append("later"))
    buffer.drain(2)
    assert called == []
    buffer.persisted(PROOF)
    assert called == ["first", "later"]


def test_a_call_that_persists_waits_for_the_proof_of_its_record() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    buffer.after_sync(lambda: buffer.persist(saved(1)))
    buffer.send_synced(2, Probe(1))
    assert buffer.drain(7) == Effects([], [saved(1)])
    assert buffer.persisted(PROOF) == 7
    assert buffer.drain(8) == Effects([(2, Probe(1))], [])


def test_a_mark_that_claims_too_much_is_corrected() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    for mark in (3, 9):
        buffer.persist(saved(mark))
        buffer.drain(mark)
    buffer.revise(lambda mark: min(mark, 5))
    assert [buffer.persisted(PROOF), buffer.persisted(PROOF)] == [3, 5]


def test_a_proof_of_nothing_is_a_programming_error() -> None:
    with pytest.raises(IndexError):
        EffectBuffer().persisted(PROOF)


@pytest.mark.parametrize("seed", range(40))
def test_no_message_leaves_before_all_that_was_persisted_before_it_is_synced(seed: int) -> None:
    """Against a dumb twin: each waiting send is numbered by the operation it follows."""
    rng, buffer = Random(seed), EffectBuffer[int]()
    persisted = synced = 0
    records: list[int] = []
    sent: list[int] = []
    expected: list[int] = []
    for _ in range(300):
        what = rng.choice(("persist", "send", "drain", "drain", "sync"))
        if what == "persist":
            persisted += 1
            buffer.persist(saved(persisted))
        elif what == "send":
            buffer.send_synced(2, Probe(persisted))
            expected.append(persisted)
        elif what == "sync" and records:
            assert buffer.persisted(PROOF) == records[0]
            synced = records.pop(0)
        elif what == "drain" and (effects := buffer.drain(persisted)) is not None:
            for _, message in effects.sends:
                assert isinstance(message, Probe)
                assert message.ballot <= synced
                sent.append(message.ballot)
            if effects.persist:
                records.append(persisted)
    while records:
        buffer.persisted(PROOF)
        records.pop(0)
    while (effects := buffer.drain(0)) is not None:
        sent += [message.ballot for _, message in effects.sends if isinstance(message, Probe)]
        if effects.persist:
            buffer.persisted(PROOF)
    assert sent == expected


def test_a_call_after_a_sync_may_register_another_one() -> None:
    buffer: EffectBuffer[int] = EffectBuffer()
    called: list[str] = []

    def first() -> None:
        called.append("first")
        buffer.after_sync(lambda: called.append("second"))

    buffer.after_sync(first)
    buffer.drain(0)
    assert called == ["first", "second"]
