"""How fast partitions grow and lanes work, and what of it the status shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.coordination.views.rates import HALF_MS, SILENT_MS, Meter
from headgate.decide.coordination.views.status import Stored, describe
from headgate.model import api
from headgate.model.control.reports import IngestReport, LaneReport
from tests.decide.coordination.world import World, ref


def meter(*readings: tuple[int, float]) -> Meter:
    made = Meter()
    for at_ms, total in readings:
        made.read(total, at_ms)
    return made


@pytest.mark.parametrize(
    ("readings", "now_ms", "per_s"),
    [
        pytest.param([], 0, 0.0, id="nothing heard"),
        pytest.param([(0, 500)], 0, 0.0, id="one report says nothing"),
        pytest.param([(0, 500), (1_000, 700)], 1_000, 200.0, id="two"),
        pytest.param([(0, 0), (500, 10), (2_000, 100)], 2_000, 50.0, id="uneven times"),
        pytest.param([(0, 0), (1_000, 900), (2_000, 10)], 2_000, 0.0, id="begun anew"),
        pytest.param(
            [(0, 0), (1_000, 900), (2_000, 10), (3_000, 30)], 3_000, 20.0, id="after that"
        ),
        pytest.param([(0, 0), (1_000, 900)], 1_000 + SILENT_MS, 900.0, id="not yet silent"),
        pytest.param([(0, 0), (1_000, 900)], 1_001 + SILENT_MS, 0.0, id="silent"),
        pytest.param([(0, 0), (60_000, 900)], 60_000, 0.0, id="silence has no rate"),
        pytest.param([(0, 0), (0, 100)], 0, 0.0, id="two at once"),
    ],
)
def test_growth_is_measured_between_reports(
    readings: list[tuple[int, float]], now_ms: int, per_s: float
) -> None:
    assert meter(*readings).per_s(now_ms) == pytest.approx(per_s)


def test_what_stops_is_forgotten_in_ten_seconds() -> None:
    busy = [(second * 1_000, second * 100.0) for second in range(30)]
    idle = [(second * 1_000, 2_900.0) for second in range(30, 41)]
    assert meter(*busy).per_s(29_000) == pytest.approx(100.0)
    assert meter(*busy, *idle).per_s(40_000) == 0.0


@given(st.lists(st.tuples(st.integers(1, SILENT_MS), st.floats(0, 1_000)), min_size=2, max_size=60))
def test_it_is_the_mean_over_some_of_the_last_seconds(steps: list[tuple[int, float]]) -> None:
    """The oracle knows all reports, and which of them may be the base."""
    readings, at_ms, total = [(0, 0.0)], 0, 0.0
    for step_ms, grown in steps:
        at_ms, total = at_ms + step_ms, total + grown
        readings.append((at_ms, total))
    means = [(total - earlier) * 1_000 / (at_ms - then_ms) for then_ms, earlier in readings[:-1]]
    fresh = [
        mean
        for mean, (then_ms, _) in zip(means, readings, strict=False)
        if at_ms - then_ms <= 2 * HALF_MS + 2 * SILENT_MS
    ]
    measured = meter(*readings).per_s(at_ms)
    assert any(measured == pytest.approx(mean, abs=1e-6) for mean in fresh)


def shown(world: World) -> api.Status:
    return describe(
        world.cluster, version="0", stored=Stored({}, {}), now_ms=world.now_ms, wall_ms=0
    )


def test_the_status_shows_how_fast_a_partition_grows() -> None:
    world = World()
    ingest, _ = world.join("ingest", "i-1"), world.join("router", "r-1")
    world.create("flights")
    for second in range(4):
        world.say(ingest, IngestReport(((ref("flights"), 7_000 * second),)))
        world.now_ms += 1_000
    [topic] = shown(world).topics
    assert topic.details[0].rate == 7_000.0
    world.apply(world.cluster.delete_topic("flights"))
    assert world.cluster.growth == {}


def test_the_status_shows_how_much_of_a_core_a_lane_uses() -> None:
    world = World()
    world.join("ingest", "i-1")
    world.join("router", "r-1")
    lane = world.lane(*world.create("flights"))
    for second in range(4):
        report = LaneReport(
            partitions=(), read=0, matched=0, delivered=0, filter_errors=0, cpu_s=0.85 * second
        )
        world.say(lane, report)
        world.now_ms += 1_000
    assert [one.cpu for one in shown(world).lanes] == [0.85]
