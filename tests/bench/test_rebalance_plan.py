"""The planning part of `bench rebalance`."""

from __future__ import annotations

import pytest

from headgate.bench.rebalance.plan import fewest_moves, measure_plan
from headgate.decide.planning.plan import Strategy


@pytest.mark.parametrize("strategy", ["balanced", "ring"])
def test_it_moves_the_minimum_and_takes_some_time(strategy: Strategy) -> None:
    found = measure_plan(partitions=100, nodes=9, strategy=strategy)
    assert (found.moved, found.minimum, found.moved_over_minimum) == (10, 10, 1.0)
    assert found.plan_s > 0


@pytest.mark.parametrize(
    ("loads", "moves"),
    [
        pytest.param([100] * 10 + [0], 90, id="an eleventh node"),
        pytest.param([4, 2, 2], 1, id="one above"),
        pytest.param([3, 3, 2], 0, id="even"),
        pytest.param([5, 0, 0], 3, id="all on one"),
        pytest.param([1, 1, 0, 0], 0, id="fewer partitions than nodes"),
    ],
)
def test_the_minimum_is_counted_from_the_loads_alone(loads: list[int], moves: int) -> None:
    assert fewest_moves(loads) == moves
