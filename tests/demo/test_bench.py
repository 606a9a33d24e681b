"""The benchmark command and its parts that need no running system."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from headgate.bench.conditions import cpu_model
from headgate.bench.echo import bare_latency
from headgate.bench.latency import Runs, result_of
from headgate.bench.registry import BENCHMARKS
from headgate.cli.bench import bench
from headgate.demo.figures import Histogram
from headgate.demo.scoreboard import Scoreboard
from headgate.demo.summary import summarize
from headgate.demo.watches import WATCHES
from headgate.errors import InvalidRequest


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    bench()
    listed = capsys.readouterr().out
    assert all(name in listed for name in BENCHMARKS)


def test_a_mistyped_name_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidRequest, match="did you mean latency"):
        bench("latancy")


def test_the_result_is_flat_numbers_with_ratios_to_the_baseline() -> None:
    board = Scoreboard(len(WATCHES))
    board.sent("e1", key="a", number=1, expected={0})
    board.acknowledged("e1", at_s=0.0)
    board.received(0, "e1", partition=0, seq=1, at_s=0.004)
    summary = summarize(board, WATCHES, windows=3, seconds=20.0, seed=1)
    bare = Histogram()
    bare.add(0.5)
    watched = replace(summary, sent_p50_ms=1.0)
    alone, steady = replace(summary, sent_p50_ms=0.5), replace(summary, p99_ms=summary.p99_ms / 2)
    result = result_of(Runs(summary, steady, alone, watched), bare, {"cores": 2})
    decoded = msgspec.json.decode(msgspec.json.encode(result))
    assert decoded["name"] == "latency"
    assert decoded["conditions"] == {"cores": 2}
    assert {"p50_ms", "p99_ms", "max_ms", "produced", "delivered", "lost"} <= set(
        decoded["figures"]
    )
    assert decoded["ratios"]["p50_over_bare"] == pytest.approx(8, rel=0.03)
    assert decoded["ratios"]["window_p99"] == pytest.approx(2, rel=0.01)
    assert decoded["ratios"]["watched"] == pytest.approx(0.5, rel=0.01)
    for value in (*decoded["figures"].values(), *decoded["ratios"].values()):
        assert isinstance(value, int | float)


async def test_the_baseline_gets_every_frame_back_at_the_given_rate() -> None:
    latency = await bare_latency(per_s=100, seconds=0.5, seed=1, aircraft=10)
    assert 45 <= latency.count <= 52
    assert 0 < latency.percentile_ms(50) < 1_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nmodel name : Fast 3000\n", "Fast 3000"),
        ("model name :\n", None),
        (None, None),
    ],
    ids=["named", "empty", "no such file"],
)
def test_the_processor_has_a_name_wherever_one_is_known(
    tmp_path: Path, text: str | None, expected: str | None
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert cpu_model(file) == expected if expected else cpu_model(file)
