"""Workers share the tests: one begins with Spark, one with what waits, others with the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import ROUGHLY_S, SHARED_SPARK, SHARING, LongestFirst

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/decide/test_placement.py::test_one",
    "tests/spark/test_log_source.py::test_one",
    "tests/decide/test_routing.py::test_one",
    "tests/system/test_executors.py::test_one",
    "tests/system/test_handoff.py::test_one",
    "tests/system/test_end_to_end.py::test_one[a@b]",
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


def test_one_worker_begins_with_spark_one_with_what_waits_and_one_with_the_rest() -> None:
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: ["3*popen"])
    scheduler = LongestFirst(config)
    workers = [Worker(SimpleNamespace(id=name)) for name in ("gw0", "gw1", "gw2")]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, TESTS)
    scheduler.schedule()
    one, source, other, executors, handoff, end = TESTS
    spark, waiting, computing = (worker.given for worker in workers)
    assert spark == [source, end, executors]
    assert waiting[0] == handoff
    assert computing[0] in (one, other)


@pytest.mark.parametrize("path", [*SHARING, *(name for name in ROUGHLY_S if name != SHARED_SPARK)])
def test_what_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()
