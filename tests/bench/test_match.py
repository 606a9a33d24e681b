"""`bench match`: its workloads, one small case of it, and a user's own files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headgate.bench.match.case import (
    AskAll,
    Asked,
    Build,
    Built,
    Case,
    Measure,
    Measured,
    ask_all,
)
from headgate.bench.match.main import CaseResult, result_of
from headgate.bench.match.own import run_own
from headgate.bench.match.plot import svg
from headgate.bench.match.workloads import WORKLOADS, events, subscriptions
from headgate.bench.registry import BENCHMARKS
from headgate.bench.result import Failed
from headgate.bench.worker import worker
from headgate.errors import CallerError
from tests.cli.command import headgate


def test_it_is_registered() -> None:
    assert BENCHMARKS["match"].name == "match"


def test_events_have_about_two_hundred_bytes() -> None:
    sizes = [len(event) for event in events(200, of=1_000_000, seed=1)]
    assert all(180 <= size <= 230 for size in sizes)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("size", [1_000, 10_000], ids=str)
def test_an_event_matches_about_as_many_of_few_as_of_many(workload: str, size: int) -> None:
    case = Case(Build(workload, size))
    matches, *_ = case._read(events(1_000, of=size, seed=2))
    assert 800 <= matches <= 1_500


def test_a_seed_gives_the_same_again_and_another_one_other_ids() -> None:
    first, again, other = (list(subscriptions("mixed", 50, of=50, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert {one.id for one in first}.isdisjoint(one.id for one in other)
    assert events(5, of=50, seed=1) == events(5, of=50, seed=1) != events(5, of=50, seed=2)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_case_measures_while_subscriptions_change(workload: str) -> None:
    case = Case(Build(workload, 300))
    for _ in range(2):
        measured = case.measure(0.05)
        assert measured.events >= 100
        assert measured.matches >= measured.matching_events > 0
        assert measured.changes >= 50
        assert 0 < measured.changing_s < measured.seconds
        assert measured.failures == 0
    assert len(case._index) == 300
    assert case.built.seconds > 0


def test_the_baseline_asks_every_filter_and_finds_the_same() -> None:
    asked = ask_all(AskAll("mixed", 100))
    assert asked.events > 0
    assert asked.seconds > 0


async def test_a_case_runs_in_a_process_of_its_own() -> None:
    async with worker("headgate.bench.match.case") as process:
        built = await process.ask(Build("equality", 100), Built)
        measured = await process.ask(Measure(0.01), Measured)
    assert built.seconds > 0
    assert measured.events > 0


def case_of(workload: str, size: str, us: float, failures: int = 0) -> CaseResult:
    measured = Measured(1_000, us / 1e3, 900, 600, 10, 0.0005, failures, 212.0)
    slow = Measured(1_000, us, 900, 600, 10, 0.0005, 0, 212.0)
    return CaseResult(workload, size, Built(2.0, 5e8), [measured, measured, slow])


def test_figures_have_the_names_that_were_agreed_on() -> None:
    cases = [
        case_of(workload, size, us)
        for workload, size, us in (
            ("equality", "1k", 2.0),
            ("equality", "1m", 3.0),
            ("mixed", "1k", 10.0),
            ("mixed", "100k", 12.5),
            ("mixed", "1m", 25.0),
        )
    ]
    result = result_of(cases, Asked(10, 0.01), {"cores": 2})
    assert result.figures["equality_1m_events_per_s"] == pytest.approx(333_333)
    assert result.figures["mixed_100k_events_per_s"] == 80_000
    assert result.figures["mixed_1m_us_per_event"] == 25.0
    assert result.figures["mixed_1m_matches_per_event"] == 0.9
    assert result.figures["bytes_per_subscription"] == 500.0
    assert result.figures["change_us"] == 50.0
    assert result.ratios["us_1m_over_1k"] == 2.5
    assert result.ratios["equality_us_1m_over_1k"] == 1.5
    assert result.ratios["naive_over_index_1k"] == 100.0
    assert result.conditions["event_bytes"] == 212


def test_a_case_whose_filters_failed_is_no_measurement() -> None:
    with pytest.raises(Failed):
        result_of([case_of("mixed", "1k", 1.0, failures=1)], Asked(10, 0.01), {})


def test_the_plot_has_a_curve_per_workload_that_was_measured() -> None:
    figures = {f"mixed_{size}_us_per_event": 10.0 for size in ("1k", "100k", "1m")}
    figures |= {"equality_1k_us_per_event": 3.0, "equality_1m_events_per_s": 5.0}
    root = ET.fromstring(svg(figures))
    curves = [one.get("points", "").split() for one in root.iter() if one.tag.endswith("polyline")]
    assert sorted(map(len, curves)) == [1, 3]


# --- a user's own files --------------------------------------------------------------------------


def files(folder: Path, events: str, filters: str) -> tuple[str, str]:
    (folder / "events.jsonl").write_text(events)
    (folder / "filters.txt").write_text(filters)
    return str(folder / "events.jsonl"), str(folder / "filters.txt")


async def test_own_events_are_matched_against_own_filters(tmp_path: Path) -> None:
    own = files(tmp_path, '{"a": 1}\n{"a": 2}\n\n5\n', 'a == 1\na > 0\n\na + "x" == "y"\n')
    ended = await headgate(
        "bench", "match", "--quick", "--json", "--events", own[0], "--filters", own[1]
    )
    answer = json.loads(ended.out)
    assert answer["figures"]["matches"] == 3
    assert answer["figures"]["matching_events"] == 2
    assert answer["figures"]["filter_errors"] == 2
    assert answer["figures"]["events_per_s"] > 0
    assert answer["conditions"]["filters"] == 3


WRONG = {
    "an event": ('{"a": 1}\n{"a": \n', "a == 1\n", "Line 2 of events.jsonl is not JSON"),
    "a filter": ('{"a": 1}\n', "a == 1\n\na ==\n", "Line 3 of filters.txt: The filter is wrong"),
    "no events": ("\n", "a == 1\n", "events.jsonl has no events"),
    "no filters": ("{}\n", "\n", "filters.txt has no filters"),
}


@pytest.mark.parametrize(("events", "filters", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_in_them_is_said_with_its_line(
    tmp_path: Path, events: str, filters: str, message: str
) -> None:
    own = files(tmp_path, events, filters)
    with pytest.raises(CallerError) as caught:
        run_own(Path(own[0]), Path(own[1]), quick=True, say=lambda _: None)
    assert caught.value.message.startswith(message)


OPTIONS = {
    "one file alone": (["match", "--events", "x"], "give both files"),
    "another benchmark": (["append", "--events", "x"], "belong to headgate bench match"),
    "no such file": (["match", "--events", "x", "--filters", "y"], "can't be read"),
}


@pytest.mark.parametrize(("arguments", "message"), OPTIONS.values(), ids=OPTIONS.keys())
async def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], message: str
) -> None:
    ended = await headgate("bench", *arguments)
    assert ended.code == 2
    assert message in ended.err
