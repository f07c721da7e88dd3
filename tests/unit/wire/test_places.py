"""Encoding of places; an invalid list of places is refused by name."""

from __future__ import annotations

import pytest

from avow.errors import Malformed
from avow.wire.places import PlacedRange, Places, decode_places, encode_places
from avow.wire.record import HEADER_SIZE_BYTES

HEADER = bytes(HEADER_SIZE_BYTES)
FILES = [("/data/lanes/1/00000000000000000001.log", True)]


def test_places_are_read_back_unchanged() -> None:
    places = Places(3, FILES, [PlacedRange(7, 1, 2, 0, 4096, HEADER)])
    assert decode_places(encode_places(places)) == places


@pytest.mark.parametrize(
    "wrong",
    [
        PlacedRange(7, 1, 2, 1, 4096, HEADER),
        PlacedRange(7, 1, 2, -1, 4096, HEADER),
        PlacedRange(7, 1, 0, 0, 4096, HEADER),
        PlacedRange(7, -1, 2, 0, 4096, HEADER),
        PlacedRange(7, 1, 2, 0, -8, HEADER),
        PlacedRange(7, 1, 2, 0, 4096, HEADER[:-1]),
    ],
    ids=["no such file", "no file", "no messages", "before the record", "before the file", "half a header"],
)
def test_an_invalid_place_is_refused(wrong: PlacedRange) -> None:
    with pytest.raises(Malformed):
        decode_places(encode_places(Places(3, FILES, [wrong])))


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"lane":1,"files":[],"ranges":[[1]]}', b"\xff"])
def test_an_invalid_list_of_places_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode_places(body)
