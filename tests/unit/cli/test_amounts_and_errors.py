"""Parsing of amounts and addresses, and the output of errors."""

from __future__ import annotations

import json

import pytest

from avow.cli.cluster_api import Api, path_of
from avow.cli.output import duration_text, exit_code, parsed_duration, parsed_size, plural, report, size_text
from avow.errors import Busy, InvalidRequest, NotEqual, Offline, StorageDamaged, Unknown, UnknownQueue


@pytest.mark.parametrize(
    ("text", "count_bytes"), [("0", 0), ("500", 500), ("500MB", 500_000_000), ("10 gb", 10**10), ("none", None)]
)
def test_sizes_are_numbers_with_a_unit(text: str, count_bytes: int | None) -> None:
    assert parsed_size(text) == count_bytes


@pytest.mark.parametrize(("text", "duration_s"), [("90s", 90), ("15min", 900), ("12h", 43_200), ("7d", 604_800)])
def test_durations_are_numbers_with_a_unit(text: str, duration_s: int) -> None:
    assert parsed_duration(text) == duration_s


@pytest.mark.parametrize("text", ["", "much", "-1d", "1.5h", "7 years", "d7"])
def test_an_invalid_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Write it as 90s, 12h, 7d or none"):
        parsed_duration(text)


def test_amounts_are_shown_with_readable_units() -> None:
    assert [size_text(count) for count in (12, 1500, 2_000_000, 3 * 10**12)] == ["12 B", "1.5 KB", "2.0 MB", "3.0 TB"]
    assert [duration_text(count) for count in (5, 120, 7200, 604_800)] == ["5 s", "2 min", "2 h", "7 d"]
    assert [plural(count, "lane") for count in (0, 1, 2000)] == ["0 lanes", "1 lane", "2,000 lanes"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownQueue("no queue x"), 1),
        (NotEqual(expected=1, current=2), 1),
        (Busy("too many"), 1),
        (StorageDamaged(file="f", position=1, expected=2, found=3), 1),
        (Unknown("no answer"), 3),
        (Offline("nobody"), 4),
    ],
)
def test_refused_unknown_and_unreachable_have_different_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code  # type: ignore[arg-type]


def test_an_error_is_one_line_of_text_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(NotEqual(expected=3, current=7), as_json=False) == 1
    line = capsys.readouterr().err
    assert line.startswith("avow: NOT_EQUAL: the lane ends at version 7")
    assert line.count("\n") == 1
    report(NotEqual(expected=3, current=7), as_json=True)
    printed = json.loads(capsys.readouterr().err)["error"]
    assert (printed["code"], printed["cursor"], printed["definite"], printed["retriable"]) == (
        "NOT_EQUAL",
        7,
        True,
        False,
    )


def test_addresses_may_leave_http_out_and_are_checked() -> None:
    assert Api("127.0.0.1:7401, http://[::1]:7402/").addresses == ("http://127.0.0.1:7401", "http://[::1]:7402")
    for wrong in ("", "ftp://host:1", "http://host", "http://host:seven"):
        with pytest.raises(InvalidRequest, match="nothing was done"):
            Api(wrong)


def test_an_authority_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidRequest, match="--ca nowhere"):
        Api("https://127.0.0.1:7401", ca="nowhere/ca.pem")


def test_names_in_paths_are_quoted() -> None:
    path = path_of("queues", "a/b c?", "subscribers", query={"lane": 1, "expected": None})
    assert path == "/v1/queues/a%2Fb%20c%3F/subscribers?lane=1"
