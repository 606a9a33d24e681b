"""`bench subscriptions`: what the figures are made of."""

from __future__ import annotations

from headgate.bench.subscriptions.gateways import subscriptions
from headgate.bench.subscriptions.main import Measured, Phase, Used, result_of
from headgate.decide.matching.index import MatchIndex

MIB = 2**20


def phase(took_s: float, coordinator_mib: int, worker_mib: int, cpu_s: float) -> Phase:
    used = [Used(mib * MIB, cpu_s) for mib in (coordinator_mib, worker_mib)]
    return Phase(took_s, [1.0, 2.0, 40.0], *used)


def test_memory_counts_from_before_the_first_subscription_and_time_from_the_phase_before() -> None:
    measured = Measured(
        empty=phase(0.0, 100, 90, 1.0),
        changes=phase(20.0, 600, 500, 9.0),
        snapshot=phase(10.0, 600, 790, 8.0),
    )
    figures = (result := result_of(1_048_576, measured, 4.0, {})).figures
    assert figures["coordinator_bytes_per_subscription"] == 500
    assert figures["worker_bytes_per_subscription"] == 700
    assert figures["worker_rss_mib"] == 790
    assert figures["worker_rss_mib_by_changes"] == 500
    assert figures["adopted_worker_cpu_s"] == 8.0
    assert figures["snapshot_worker_cpu_s"] == 7.0
    assert figures["wait_max_ms"] == 40.0
    assert result.ratios == {
        "adopted_worker_cpu_over_index": 2.0,
        "snapshot_worker_cpu_over_index": 1.75,
    }


def test_every_gateway_asks_for_other_aircraft_and_all_filters_are_good() -> None:
    first, second = (list(subscriptions(f"g{n}", n * 50, 50)) for n in range(2))
    assert len({s.id for s in (*first, *second)}) == 100
    assert len({s.where for s in (*first, *second)}) == 100
    assert len(MatchIndex.of([*first, *second])) == 100
