"""Whatever the configuration allows, a plan can be made with: both know one definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headgate.config import LoadedConfig
from headgate.config.value_types import Imbalance, Weight
from headgate.decide.planning.plan import IMBALANCE_MAX, plan
from headgate.decide.planning.starting_point import WEIGHT_MAX, WEIGHT_MIN, Candidate
from headgate.errors import InvalidConfig, InvalidRequest
from headgate.model.event import PartitionRef
from headgate.wiring.roles import coordinator_settings, ingest_options

Load = Callable[..., LoadedConfig]
REFS = [PartitionRef("flights", number) for number in range(5)]

edges = (0.0, 0.0005, WEIGHT_MIN, 1.0, WEIGHT_MAX, 1_000.001, float("inf"), float("nan"))
weights = st.sampled_from(edges) | st.floats()
imbalances = st.sampled_from((-1, 0, 1, IMBALANCE_MAX, IMBALANCE_MAX + 1, 10**30)) | st.integers()


def is_allowed(kind: Any, value: object) -> bool:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def is_planned(weight: float = 1.0, imbalance: int = 0) -> bool:
    nodes = [Candidate("a", weight), Candidate("b")]
    try:
        for strategy in ("balanced", "ring"):
            made = plan(REFS, {}, nodes, strategy=strategy, imbalance=imbalance)
            assert sum(made.after.values()) == len(REFS)
    except InvalidRequest:
        return False
    return True


@given(weights)
def test_a_weight_that_may_be_set_is_planned_with(weight: float) -> None:
    assert is_allowed(Weight, weight) is is_planned(weight=weight)


@given(imbalances)
def test_an_imbalance_that_may_be_set_is_planned_with(imbalance: int) -> None:
    assert is_allowed(Imbalance, imbalance) is is_planned(imbalance=imbalance)


@pytest.mark.parametrize("key", ["ingest.weight", "router.weight"])
def test_a_weight_that_no_plan_takes_is_refused_before_anything_runs(load: Load, key: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{key} is '0.0005' .* a number from 0.001 to 1000"):
        load(command_line={key: "0.0005"})


@pytest.mark.parametrize("role", ["ingest", "router", "consumer"])
def test_an_imbalance_that_no_plan_takes_is_refused_before_anything_runs(
    load: Load, role: str
) -> None:
    with pytest.raises(InvalidConfig, match="a whole number from 0 to 1000000"):
        load(command_line={f"coordinator.{role}_imbalance": str(10**30)})


def test_what_is_at_the_bounds_reaches_the_roles(load: Load) -> None:
    bounds = {
        "ingest.weight": str(WEIGHT_MIN),
        "coordinator.ingest_imbalance": str(IMBALANCE_MAX),
    }
    config = load(command_line=bounds).config
    assert ingest_options(config).weight == WEIGHT_MIN
    assert coordinator_settings(config).balance.ingest == IMBALANCE_MAX
