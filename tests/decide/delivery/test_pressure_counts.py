from __future__ import annotations

import pytest

from headgate.decide.delivery.pressure import Pressure, Watermarks


@pytest.mark.parametrize(
    ("waiting", "soft", "hard"),
    [
        pytest.param([10, 50, 69], 0, 0, id="below the marks"),
        pytest.param([70, 71, 75], 1, 0, id="staying isn't rising"),
        pytest.param([70, 90, 95, 90], 1, 1, id="by way of soft"),
        pytest.param([95, 10], 0, 1, id="at once"),
        pytest.param([70, 65, 70], 1, 0, id="not below the resume mark"),
        pytest.param([70, 59, 70, 59, 92], 2, 1, id="again and again"),
    ],
)
def test_a_level_counts_each_time_it_is_reached(waiting: list[int], soft: int, hard: int) -> None:
    pressure = Pressure(Watermarks(queue_size=100))
    for one in waiting:
        pressure.weigh(one)
    assert (pressure.soft, pressure.hard) == (soft, hard)
