"""The parts of `bench repartition` that need no running system."""

from __future__ import annotations

import msgspec
import pytest

from headgate.bench.registry import BENCHMARKS
from headgate.bench.repartition.backlog import Fences
from headgate.bench.repartition.main import Measured, measured_of, result_of
from headgate.bench.repartition.phases import Cutover, durations_ms
from headgate.bench.repartition.traffic import (
    KEYS,
    Sent,
    Traffic,
    longest_hold_ms,
    seen_between,
)
from headgate.bench.result import Failed

NAMES_OF_THE_ISSUE = {
    "figures": {"longest_hold_ms", "failed"},
    "ratios": {"produce_p99", "deliver_p99", "fence_with_backlog"},
}


def sent(called_s: float, *, took_s: float = 0.01, way_s: float = 0.002) -> Sent:
    return Sent(called_s, called_s + took_s, received_s=called_s + took_s + way_s)


def measured() -> Measured:
    """Ten seconds without, ten with one that makes everything twice as slow, ten with one that
    makes it three times as slow."""
    events = [
        sent(number / 10, took_s=0.01 * factor, way_s=0.002 * factor)
        for number, factor in enumerate([1] * 100 + [2] * 100 + [3] * 100)
    ]
    phases = {"announced": 30.0, "sealing": 20.0, "fenced": 10.0}
    cutovers = {
        "grow": Cutover(10.0, 10.05, 11.0, phases),
        "shrink": Cutover(20.0, 20.05, 21.0, phases),
    }
    return measured_of(events, [0.0, 10.0, 20.0, 30.0], cutovers)


def test_it_is_registered() -> None:
    assert BENCHMARKS["repartition"].name == "repartition"


def test_the_result_has_the_issues_names_and_the_worse_of_both_cutovers() -> None:
    result = result_of(measured(), Fences(60.0, 40.0, 20_000), {"cores": 2})
    decoded = msgspec.json.decode(msgspec.json.encode(result))
    for part, names in NAMES_OF_THE_ISSUE.items():
        assert names <= set(decoded[part])
        assert all(isinstance(value, int | float) for value in decoded[part].values())
    assert decoded["ratios"]["produce_p99"] == pytest.approx(3.0)
    assert decoded["ratios"]["grow_produce_p99"] == pytest.approx(2.0)
    assert decoded["ratios"]["deliver_p99"] == pytest.approx(3.0)
    assert decoded["ratios"]["fence_with_backlog"] == 1.5
    assert decoded["figures"]["longest_hold_ms"] == pytest.approx(30.0)
    assert decoded["figures"]["grow_fence_ms"] == pytest.approx(50.0)
    assert decoded["figures"]["grow_sealing_ms"] == 20.0


def test_a_call_that_fails_is_counted_with_its_time_and_is_no_delivery() -> None:
    failed = Sent(1.0, 31.0, failed=True)
    seen = seen_between([sent(0.5), failed, sent(2.0)], 0.0, 2.0)
    assert seen.failed == 1
    assert seen.produce_ms == pytest.approx([10.0, 30_000.0])
    assert seen.deliver_ms == pytest.approx([2.0])


def test_a_hold_is_a_call_that_was_under_way_between_request_and_fence() -> None:
    before, held, after = sent(0.0, took_s=0.9), sent(0.8, took_s=0.4), sent(1.6, took_s=0.7)
    assert longest_hold_ms([before, held, after], 1.0, 1.5) == pytest.approx(400.0)
    assert longest_hold_ms([before], 1.0, 1.5) == 0.0


def test_a_phase_lasts_until_the_next_that_was_seen() -> None:
    since_s = {"announced": 1.0, "fenced": 1.5, "": 4.0}
    assert durations_ms(since_s, 2.0) == pytest.approx({"announced": 500.0, "fenced": 500.0})


async def test_a_key_out_of_order_is_no_measurement() -> None:
    flow = Traffic("load", 1.0, [sent(n / 1_000) for n in range(KEYS + 1)])
    for event in flow.events:
        event.received_s = None
    for number in (*range(1, KEYS + 1), 0):
        flow.note(number, 2.0)
    flow._sent_all.set()
    with pytest.raises(Failed, match="event 0 came after 1000"):
        await flow.finish()
