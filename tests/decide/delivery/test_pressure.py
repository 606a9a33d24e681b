"""How far a gateway is behind: marks, the gateway's own word, and no flapping."""

from __future__ import annotations

import pytest

from headgate.decide.delivery.pressure import Pressure, Watermarks
from headgate.model.control.reports import PressureLevel

MARKS = Watermarks(soft=70, hard=90, resume=60, queue_size=100)


@pytest.mark.parametrize(
    ("waiting", "levels"),
    [
        pytest.param([0, 69], ["normal", "normal"], id="below the soft mark"),
        pytest.param([70, 89], ["soft", "soft"], id="from the soft mark on"),
        pytest.param([90, 100], ["hard", "hard"], id="from the hard mark on"),
        pytest.param([70, 60, 59], ["soft", "soft", "normal"], id="soft until below resume"),
        pytest.param([95, 75, 60, 59], ["hard", "hard", "hard", "normal"], id="hard until resume"),
        pytest.param([75, 95, 75, 10, 75], ["soft", "hard", "hard", "normal", "soft"], id="again"),
    ],
)
def test_the_level_follows_what_waits(waiting: list[int], levels: list[PressureLevel]) -> None:
    pressure = Pressure(MARKS)
    assert [pressure.weigh(count) for count in waiting] == levels


@pytest.mark.parametrize(
    ("fill", "waiting", "level"),
    [
        pytest.param(0.5, 19, "normal", id="together below"),
        pytest.param(0.5, 20, "soft", id="together soft"),
        pytest.param(0.5, 40, "hard", id="together hard"),
        pytest.param(0.9, 0, "hard", id="the gateway alone"),
    ],
)
def test_what_waits_at_the_gateway_counts_too(
    fill: float, waiting: int, level: PressureLevel
) -> None:
    pressure = Pressure(MARKS)
    pressure.filled(fill)
    assert pressure.weigh(waiting) == level


def test_a_gateway_that_says_it_has_room_again_is_believed() -> None:
    pressure = Pressure(MARKS)
    pressure.filled(1.0)
    assert pressure.weigh(0) == "hard"
    pressure.filled(0.0)
    assert pressure.weigh(0) == "normal"
