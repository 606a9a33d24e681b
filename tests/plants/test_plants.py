"""Every plant still applies to the sources, and the tests that find it are there.

That they find it is shown by `make plants`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.plants.planting import FOLDER, plant_files, read_plant

ROOT = FOLDER.parents[1]


def is_there(test: str) -> bool:
    """Does a node id name a test function, in a class or not, with or without parameters?"""
    file, *names = test.partition("[")[0].split("::")
    if not (ROOT / file).is_file() or not names:
        return False
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
    for name in names:
        found = [
            one
            for one in body
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and one.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return names[-1].startswith("test_")


def test_there_are_plants() -> None:
    assert plant_files()


@pytest.mark.parametrize("file", plant_files(), ids=lambda file: file.stem)
def test_a_plant_applies_and_its_finders_are_there(file: Path) -> None:
    plant = read_plant(file)
    for path, text in plant.applied(lambda path: (ROOT / path).read_text()).items():
        assert text != (ROOT / path).read_text(), f"Plant {plant.name} changes nothing in {path}."
        if path.endswith(".py"):
            compile(text, path, "exec")
    assert [test for test in plant.found_by if not is_there(test)] == []


@pytest.mark.parametrize(
    ("test", "there"),
    [
        ("tests/plants/test_plants.py::test_there_are_plants", True),
        ("tests/plants/test_plants.py::test_there_are_plants[some-case]", True),
        ("tests/plants/test_plants.py::test_gone", False),
        ("tests/plants/test_plants.py::is_there", False),
        ("tests/plants/test_plants.py", False),
        ("tests/plants/test_gone.py::test_there_are_plants", False),
    ],
)
def test_a_finder_is_a_test_that_is_there(test: str, there: bool) -> None:
    assert is_there(test) is there
