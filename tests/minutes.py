"""What the suite's minutes go to: every run of the tests remembers what each of them took, and

    python -m tests.minutes

puts the sums of the last runs into CONTRIBUTING.md, folder by folder.

A test's time is its own with what it was the first to start. Its processor time is that of the
process it ran in, and of those that this one has started and seen end: a server that serves further
tests is in nobody's figure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tests.quick import is_quick

ROOT = Path(__file__).parents[1]
KEPT = "headgate/minutes"
"""Where pytest's cache has it."""
DOCUMENT = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- made by `make minutes` -->\n", "<!-- that was it -->\n"


class Took(msgspec.Struct, frozen=True, array_like=True):
    wall_s: float
    cpu_s: float
    is_quick: bool


@dataclass(frozen=True, slots=True)
class Row:
    folder: str
    tests: int
    wall_s: float
    cpu_s: float
    quick_s: float


class Minutes:
    """The plugin: in a worker it measures, in the process that shares out the tests it adds up."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._cpu_s = _cpu_s()
        self._took: dict[str, Took] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before_s, self._cpu_s = self._cpu_s, _cpu_s()
        report.cpu_s = self._cpu_s - before_s  # type: ignore[attr-defined]  # travels with it
        report.is_quick = is_quick(item)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = self._took.get(report.nodeid, Took(0.0, 0.0, False))
        self._took[report.nodeid] = Took(
            round(took.wall_s + report.duration, 3),
            round(took.cpu_s + vars(report).get("cpu_s", 0.0), 3),
            vars(report).get("is_quick", False),
        )

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)  # a run may be without
        if hasattr(self._config, "workerinput") or cache is None:
            return
        took = {**cache.get(KEPT, {}), **msgspec.to_builtins(self._took)}
        cache.set(KEPT, {name: one for name, one in took.items() if _exists(name)})


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _exists(nodeid: str) -> bool:
    return (ROOT / nodeid.partition("::")[0]).exists()


def rows(took: Mapping[str, Took]) -> list[Row]:
    """A row per folder, the longest first."""
    folders: dict[str, list[Took]] = {}
    for nodeid, one in took.items():
        folders.setdefault("/".join(nodeid.split("/")[:2]), []).append(one)
    found = [
        Row(
            folder,
            len(tests),
            sum(one.wall_s for one in tests),
            sum(one.cpu_s for one in tests),
            sum(one.wall_s for one in tests if one.is_quick),
        )
        for folder, tests in folders.items()
    ]
    return sorted(found, key=lambda row: -row.wall_s)


def table(found: Iterable[Row]) -> str:
    """As Markdown, with the sums below."""
    listed = list(found)
    total = Row(
        "all",
        sum(row.tests for row in listed),
        sum(row.wall_s for row in listed),
        sum(row.cpu_s for row in listed),
        sum(row.quick_s for row in listed),
    )
    lines = [
        "| folder | tests | seconds | of a processor | in `make quick` |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.folder} | {row.tests:,} | {row.wall_s:,.0f} | {row.cpu_s:,.0f} "
        f"| {row.quick_s:,.0f} |"
        for row in (*listed, total)
    ]
    return "\n".join(lines) + "\n"


def put(document: str, made: str) -> str:
    """The document with what was made in place of what was there."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{DOCUMENT.name} has no place for the table"
    return before + begin + made + end + after


def main() -> None:
    kept = ROOT / ".pytest_cache" / "v" / KEPT
    if not kept.exists():
        sys.exit("no tests have run here yet: begin with `make test`")
    took = msgspec.json.decode(kept.read_bytes(), type=dict[str, Took])
    made = table(rows(took))
    DOCUMENT.write_text(put(DOCUMENT.read_text(), made))
    sys.stdout.write(made)


if __name__ == "__main__":
    main()
