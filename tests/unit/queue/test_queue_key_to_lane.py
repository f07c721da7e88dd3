"""The lane of a key is a contract with every client and every stored message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from avow.errors import InvalidRequest
from avow.queue.key_to_lane import lane_for


@pytest.mark.parametrize(
    ("key", "lanes", "lane"),
    [
        (b"", 7, 0),
        (b"123456789", 1024, 0xE3069283 % 1024),  # the check value of CRC-32C
        (b"customer-1", 16, 1),
        (b"customer-2", 16, 5),
        (b"customer-3", 10, 2),
        ("zürich".encode(), 3, 0),
    ],
)
def test_known_keys_stay_in_their_lanes(key: bytes, lanes: int, lane: int) -> None:
    assert lane_for(key, lanes) == lane


def test_another_process_with_another_hash_seed_gives_the_same_lane() -> None:
    program = (
        "from avow.queue.key_to_lane import lane_for; import sys; sys.stdout.write(str(lane_for(b'order-77', 64)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "123"}, capture_output=True, check=True, text=True
    )
    assert int(found.stdout) == lane_for(b"order-77", 64)


@pytest.mark.parametrize("lanes", [2, 3, 8, 10])
def test_ten_thousand_keys_fill_every_lane_within_a_tenth_of_its_share(lanes: int) -> None:
    sizes = [0] * lanes
    for number in range(10_000):
        sizes[lane_for(b"key-%d" % number, lanes)] += 1
    assert max(sizes) < 11_000 / lanes
    assert min(sizes) > 9_000 / lanes


@pytest.mark.parametrize("lanes", [0, -1, 1025])
def test_an_impossible_number_of_lanes_is_refused(lanes: int) -> None:
    with pytest.raises(InvalidRequest):
        lane_for(b"k", lanes)
