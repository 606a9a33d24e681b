"""The page of promises names tests and plants that there are."""

from __future__ import annotations

import re

import pytest

from tests.plants.planting import plant_files
from tests.plants.test_plants import ROOT, is_there

PROMISES = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "promises.md").read_text().splitlines()
    if line.startswith("| ") and "`" in line
]


def quoted(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def test_there_are_promises() -> None:
    assert len(PROMISES) > 40


@pytest.mark.parametrize("cells", PROMISES, ids=lambda cells: cells[0])
def test_what_shows_and_breaks_a_promise_is_there(cells: list[str]) -> None:
    _, shown_by, *broken_by = cells
    assert quoted(shown_by), "nothing shows it"
    for test in quoted(shown_by):
        is_file = "::" not in test and (ROOT / "tests" / test).is_file()
        assert is_file or is_there(f"tests/{test}"), f"there is no {test}"
    plants = {file.stem for file in plant_files()}
    assert {name for cell in broken_by for name in quoted(cell)} <= plants
