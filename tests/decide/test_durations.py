"""Durations: a number and a unit, nothing else."""

from __future__ import annotations

import pytest

from headgate.decide.durations import parse_duration_ms
from headgate.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("50ms", 50),
        ("5s", 5_000),
        ("3m", 180_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("0s", 0),
        ("1.5s", 1_500),
        ("010s", 10_000),
    ],
)
def test_a_number_and_a_unit_is_a_duration(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "5 s",
        "5S",
        "-5s",
        "5s ",
        "1e3s",
        "5sec",
        "5s5m",
        "٣s",
        ".5s",
        "5.s",
        "9" * 400,
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write a number and a unit, like 50ms"):
        parse_duration_ms(text)


def test_what_is_shorter_than_can_be_said_is_not_taken_for_none() -> None:
    with pytest.raises(InvalidRequest, match="shorter than 1ms"):
        parse_duration_ms("0.5ms")
