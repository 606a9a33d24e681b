"""The parts of `bench flood` that need no running system."""

from __future__ import annotations

import pytest

from headgate.bench.flood.crowd import Flooded
from headgate.bench.flood.main import Round, check, result_of
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed


def test_what_was_never_refused_was_no_flood() -> None:
    check("limited", Flooded({"200": 900, "429": 1}))
    with pytest.raises(Failed, match="429"):
        check("limited", Flooded({"200": 900}))
    with pytest.raises(Failed, match="401"):
        check("unknown", Flooded({}))


def test_a_ratio_is_to_the_same_round_without_a_flood() -> None:
    def one(alone_ms: float, beside_ms: float) -> Round:
        beside = {"limited": [1.0, beside_ms], "unknown": [1.0, 3 * beside_ms]}
        return Round([0.5, alone_ms], beside, {"limited": 10.0, "unknown": 20.0})

    found = result_of([one(2.0, 4.0), one(20.0, 20.0), one(2.0, 3.0)], {})
    assert found.ratios == {"p99_limited": 1.5, "p99_unknown": 4.5}
    assert (found.figures["p99_ms"], found.figures["limited_p99_ms"]) == (2.0, 4.0)
    assert found.figures["unknown_per_s"] == 20.0


def test_it_is_among_the_benchmarks() -> None:
    assert BENCHMARKS["flood"].name == "flood"
