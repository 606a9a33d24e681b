from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.units import LONGEST_S, DurationUnit, NotAllowed, SizeUnit

UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@settings(deadline=None)
@given(st.integers(0, int(LONGEST_S * 1000)))
def test_a_duration_survives_being_written_and_read(ms: int) -> None:
    unit = DurationUnit()
    assert unit.parse(unit.format(ms / 1000)) == ms / 1000


@settings(deadline=None)
@given(st.integers(0, 3650), st.sampled_from(sorted(UNITS_S)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert DurationUnit().parse(f"{number}{unit}") == pytest.approx(number * UNITS_S[unit])


@settings(deadline=None)
@given(st.integers(0, 10**12 - 1))
def test_a_size_survives_being_written_and_read(count: int) -> None:
    assert SizeUnit().parse(SizeUnit().format(count)) == count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0.05, "50ms", id="below a second"),
        pytest.param(1.5, "1500ms", id="not whole seconds"),
        pytest.param(90.0, "90s", id="not whole minutes"),
        pytest.param(180.0, "3m", id="whole minutes"),
        pytest.param(3600.0, "1h", id="whole hours"),
        pytest.param(7 * 86400.0, "7d", id="whole days"),
        pytest.param(0.0, "0s", id="nothing"),
    ],
)
def test_a_duration_is_written_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert DurationUnit().format(seconds) == text


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "-5s", "5 s", "5S", "5w", "1m30s", "1e3s", "\u0665s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(NotAllowed, match="a duration such as 50ms"):
        DurationUnit().parse(text)


def test_a_duration_beyond_ten_years_is_refused() -> None:
    with pytest.raises(NotAllowed, match="at most 3650d"):
        DurationUnit().parse("3651d")


@pytest.mark.parametrize("raw", [250, "250", " 250 "])
def test_a_plain_number_is_milliseconds_only_where_that_is_the_custom(raw: object) -> None:
    assert DurationUnit(plain_ms=True).parse(raw) == 0.25
    with pytest.raises(NotAllowed):
        DurationUnit().parse(raw)


@pytest.mark.parametrize(
    ("text", "count"),
    [("16MiB", 16 << 20), ("1GiB", 1 << 30), ("3KiB", 3 << 10), ("7B", 7), ("7", 7), (7, 7)],
)
def test_sizes_are_bytes_or_carry_a_unit(text: object, count: int) -> None:
    assert SizeUnit().parse(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "-1", "16MB", "16 MiB", "1e6"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(NotAllowed, match="a size such as"):
        SizeUnit().parse(text)
