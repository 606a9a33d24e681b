"""Workers share the tests: one begins with Spark, one with what waits, others with the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import ROUGHLY_S, SHARING, LongestFirst

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/decide/produce/test_placement.py::test_one",
    "tests/spark/test_log_source.py::test_one",
    "tests/sim/test_seeds.py::test_one",
    "tests/system/test_executors.py::test_one",
    "tests/system/test_handoff.py::test_one",
    "tests/system/test_end_to_end.py::test_one[a@b]",
    "tests/contracts/test_log_contract.py::test_one",
]


@dataclass(eq=False)
class Worker:
    gateway: Any
    shutting_down: bool = False
    given: list[str] = field(default_factory=list)

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += [TESTS[number] for number in numbers]

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(*workers: Worker) -> LongestFirst:
    """As pytest-xdist does, once every worker has collected the tests."""
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: [f"{len(workers)}*popen"])
    scheduler = LongestFirst(config)
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, TESTS)
    scheduler.schedule()
    return scheduler


def test_one_worker_begins_with_spark_others_with_what_waits_with_stores_and_computing() -> None:
    workers = [Worker(SimpleNamespace(id=name)) for name in ("gw0", "gw1", "gw2", "gw3")]
    scheduled(*workers)
    _, source, seeds, executors, handoff, end, log = TESTS
    spark, waiting, stores, computing = (worker.given for worker in workers)
    assert spark == [source, end, executors]
    assert waiting[0] == handoff
    assert stores[0] == log
    assert computing[0] == seeds


def test_who_has_nothing_to_begin_with_takes_what_starts_spark_last() -> None:
    late = Worker(SimpleNamespace(id="gw9"))
    scheduler = scheduled(late)
    for test in late.given:  # which grows meanwhile
        scheduler.mark_test_complete(late, TESTS.index(test))
    placement, source, seeds, executors, handoff, end, log = TESTS
    assert late.given == [log, seeds, handoff, placement, source, end, executors]


def test_what_a_worker_that_dies_has_finished_keeps_nobody_from_the_rest() -> None:
    dies = Worker(SimpleNamespace(id="gw0"))
    scheduler = scheduled(dies)
    _, source, _, executors, _, end, _ = TESTS
    for test in (source, end):
        scheduler.mark_test_complete(dies, TESTS.index(test))
    assert scheduler.remove_node(dies) == executors
    follows = Worker(SimpleNamespace(id="gw1"))
    scheduler.add_node(follows)
    scheduler.add_node_collection(follows, TESTS)
    scheduler.schedule()
    for test in follows.given:  # which grows meanwhile
        scheduler.mark_test_complete(follows, TESTS.index(test))
    assert {*follows.given} == {*TESTS} - {source, end}
    assert follows.shutting_down


@pytest.mark.parametrize(
    "path", [*chain(*SHARING.values()), *(name for name in ROUGHLY_S if name not in SHARING)]
)
def test_what_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()
