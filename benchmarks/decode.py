"""How long it takes to look at a batch: decode to Arrow, encode, check, merge.

A batch is laid out so that reading it is pointing at it. The claim that follows, and that this file measures, is that
decoding costs a few microseconds for a batch and nothing for a message: the figure for 10,000 messages must be that for
100. Encoding and checking do depend on the number of messages; they happen once in a batch's life.

Each figure is the best of several rounds, in microseconds for one call: what the code costs when nothing else runs.
Run it with `python -m benchmarks.decode`.
"""

from __future__ import annotations

from timeit import Timer
from typing import TYPE_CHECKING, Final

from avow.wire.arrow import from_arrow, to_arrow, value_array
from avow.wire.batch import Batch, check, encode_batch, merge, pack_entry, patch_header, unpack_entry

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS: Final = (100, 1_000, 10_000)
VALUE_SIZE_BYTES: Final = 100
DECODE_US_MAX: Final = 5.0  # for 1,000 messages
FLAT_RATIO_MAX: Final = 1.5  # 10,000 messages against 100
MERGED_COUNT: Final = 100
_ROUNDS: Final = 7
_ROUND_S: Final = 0.02


def microseconds(call: Callable[[], object]) -> float:
    """The best of several rounds, each long enough for the clock."""
    timer = Timer(call)
    number = max(1, int(_ROUND_S / max(timer.timeit(1), 1e-7)))
    return min(timer.repeat(_ROUNDS, number)) / number * 1e6


def measure(count: int) -> dict[str, float]:
    """Figures for one batch of `count` messages, already checked where reading is measured."""
    values = [bytes(VALUE_SIZE_BYTES)] * count
    record = encode_batch(values, write_id=b"w" * 16)
    check(record)
    array, view = value_array(record), memoryview(record)
    entry = unpack_entry(view)
    return {
        "to_arrow": microseconds(lambda: to_arrow(record)),
        "value_array": microseconds(lambda: value_array(record)),
        "views": microseconds(lambda: Batch(record).values()),
        "encode_batch": microseconds(lambda: encode_batch(values)),
        "from_arrow": microseconds(lambda: from_arrow(array)),
        "check": microseconds(lambda: check(record)),
        "patch_header": microseconds(lambda: patch_header(record, position=1, ballot=1, first_version=1)),
        "pack_entry": microseconds(lambda: pack_entry(entry)),
        "unpack_entry": microseconds(lambda: unpack_entry(view)),
    }


def measure_merge() -> float:
    """For each batch of one message that becomes part of a merged record."""
    ones = [encode_batch([bytes(VALUE_SIZE_BYTES)], write_id=b"%016d" % number) for number in range(MERGED_COUNT)]
    return microseconds(lambda: merge(ones)) / MERGED_COUNT


def main() -> dict[str, object]:
    figures = {count: measure(count) for count in COUNTS}
    merge_us = measure_merge()
    print(f"{'µs for a batch of':<20}" + "".join(f"{count:>10,}" for count in COUNTS) + f"   x {VALUE_SIZE_BYTES} B")
    for name in figures[COUNTS[0]]:
        print(f"{name:<20}" + "".join(f"{figures[count][name]:>10.2f}" for count in COUNTS))
    print(f"{'merge, per batch':<20}{merge_us:>10.2f}   {MERGED_COUNT} batches of one message")
    decode_us = figures[1_000]["to_arrow"]
    flat_ratio = figures[COUNTS[-1]]["to_arrow"] / figures[COUNTS[0]]["to_arrow"]
    print(f"decode of 1,000: {decode_us:.2f} µs (at most {DECODE_US_MAX}); 10,000 against 100: x {flat_ratio:.2f}")
    return {
        "us_per_batch": figures,
        "merge_us_per_batch_of_one": merge_us,
        "decode_us": decode_us,
        "flat_ratio": flat_ratio,
        "held": decode_us <= DECODE_US_MAX and flat_ratio <= FLAT_RATIO_MAX,
    }


if __name__ == "__main__":
    raise SystemExit(0 if main()["held"] else 1)
