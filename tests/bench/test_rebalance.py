"""The parts of `bench rebalance` that need no running system, and its light router's promises."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from headgate.bench.rebalance.floor import Floor
from headgate.bench.rebalance.join import Joined, Latencies, latencies, pauses_ms
from headgate.bench.rebalance.main import percentile, result_of
from headgate.bench.rebalance.plan import Planned
from headgate.bench.rebalance.router import Notes
from headgate.bench.rebalance.stage import allow_files
from headgate.bench.rebalance.traffic import Sample, keys_of
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.decide.produce.placement import partition_of

NAMES_OF_THE_ISSUE = {
    "figures": {"plan_s", "unmoved_delayed", "floor_s"},
    "ratios": {"moved_over_minimum"},
}


def joined(seen: Latencies) -> Joined:
    return Joined(
        join_s=2.0,
        planned_s=1.1,
        moved=90,
        minimum=90,
        share=90,
        pauses_ms=[10.0, 20.0, 30.0],
        latencies=seen,
    )


def test_it_is_registered() -> None:
    assert BENCHMARKS["rebalance"].name == "rebalance"


def test_the_result_has_the_issues_names_and_is_flat_numbers() -> None:
    result = result_of(
        Planned(plan_s=0.05, moved=99, minimum=99),
        joined(Latencies([1.0, 2.0], [2.0, 3.0], [9.0])),
        Floor(clients=1_000, connect_s=1.0, floor_s=0.3, heard_s=0.2, bare_s=0.1),
        {"cores": 2},
    )
    decoded = msgspec.json.decode(msgspec.json.encode(result))
    for part, names in NAMES_OF_THE_ISSUE.items():
        assert names <= set(decoded[part])
        assert all(isinstance(value, int | float) for value in decoded[part].values())
    assert decoded["figures"]["unmoved_delayed"] == 1
    assert decoded["ratios"]["moved_over_minimum"] == 1.0
    assert decoded["ratios"]["floor_over_bare"] == 3.0


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 3.0), (99, 4.0), (100, 4.0)], ids=["p50", "p99", "max"]
)
def test_percentiles_never_leave_what_was_measured(percent: int, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected
    assert percentile([], percent) == 0.0


# --- what counts as delayed ----------------------------------------------------------------------

BEFORE = Sample(1, appended_s=5.0, received_s=5.010)


@pytest.mark.parametrize(
    ("sample", "delayed"),
    [
        pytest.param(Sample(1, 11.0, 11.011), 1, id="slower than any before"),
        pytest.param(Sample(1, 11.0, 11.009), 0, id="as fast as before"),
        pytest.param(Sample(7, 11.0, 12.0), 0, id="of a partition that moved"),
        pytest.param(Sample(1, 9.9, 10.4), 1, id="under way when the join began"),
        pytest.param(Sample(1, 11.9, 12.5), 1, id="under way when the join ended"),
        pytest.param(Sample(1, 12.1, 13.0), 0, id="after the join"),
    ],
)
def test_delayed_is_what_is_slower_in_the_join_than_everything_before(
    sample: Sample, delayed: int
) -> None:
    seen = latencies([BEFORE, sample], {7}, before_s=1.0, began_s=10.0, served_s=12.0)
    assert seen.unmoved_delayed == delayed


def test_only_the_minute_before_is_compared_with() -> None:
    early = Sample(1, appended_s=0.0, received_s=0.9)
    during = Sample(1, appended_s=11.0, received_s=11.5)
    seen = latencies([early, BEFORE, during], set(), before_s=1.0, began_s=10.0, served_s=12.0)
    assert len(seen.before_ms) == 1
    assert seen.unmoved_delayed == 1


def test_an_event_that_overtakes_its_acknowledgement_has_no_latency() -> None:
    assert Sample(0, appended_s=2.0, received_s=1.9).latency_ms == 0.0


def test_pauses_are_those_of_partitions_that_moved() -> None:
    found = pauses_ms({3, 4}, {3: 1.0, 4: 1.0, 5: 1.0}, {3: 1.25, 4: 1.5, 9: 2.0})
    assert found == [250.0, 500.0]


# --- traffic and notes ---------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 7, 100])
def test_every_partition_has_a_key_of_its_own(partitions: int) -> None:
    keys = keys_of(partitions)
    reached = Counter(partition_of(key, collection="", count=partitions) for key in keys)
    assert reached == Counter(range(partitions))


async def test_a_share_is_served_at_the_time_of_its_last_first_read() -> None:
    notes = Notes()
    waiting = asyncio.create_task(notes.until_read(2, timeout_s=30))
    for partition in (4, 4, 9, 4):
        await notes.reads(partition)
    assert await waiting == notes.first_read_s[9]
    assert set(notes.first_read_s) == {4, 9}


async def test_a_share_that_is_never_served_is_not_waited_for_for_ever() -> None:
    with pytest.raises(TimeoutError):
        await Notes().until_read(1, timeout_s=0.01)


def test_a_system_that_allows_too_few_files_is_said_so() -> None:
    with pytest.raises(Failed, match="ulimit"):
        allow_files(10**12)
