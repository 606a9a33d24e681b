"""Tests stand where their subject stands: who knows the folders of src knows those of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES, TESTS = ROOT / "src" / "headgate", ROOT / "tests"
ACROSS = {
    "access": "who may do what, through every role",
    "adapters/transports": "deliveries, the same over each transport",
    "api": "the HTTP interface of all roles",
    "browser": "pages in a real browser",
    "contracts": "every adapter of a port, by the same suite",
    "decide/coordination/scenarios": "no tests: what test_scenarios.py reads",
    "explaining": "explain, against the truth",
    "groups": "consumer groups, from consumer to store",
    "plants": "known mistakes, put back",
    "servers": "no tests: starts the real servers",
    "sim": "the whole cluster on virtual time",
    "system": "the whole system as processes",
    "system/soaking": "no tests: what make soak does",
    "tasks": "the one way to start tasks",
    "toolchain": "what holds the repository together",
}
"""What has no folder of its own in src, and why."""
FLAT = {"cli": "one file per command group"}
MANY = 24
"""Files in a folder whose subject has folders of its own."""


def folders() -> list[str]:
    found = {file.parent for file in TESTS.rglob("*") if file.suffix in {".py", ".scenario"}}
    return sorted(str(one.relative_to(TESTS)) for one in found - {TESTS})


@pytest.mark.parametrize("folder", folders())
def test_a_folder_of_tests_has_its_subject_in_the_same_place(folder: str) -> None:
    assert (SOURCES / folder).is_dir() != (folder in ACROSS)


@pytest.mark.parametrize("folder", sorted(set(folders()) - set(ACROSS) - set(FLAT)))
def test_what_has_parts_is_tested_in_parts(folder: str) -> None:
    has_parts = any(one.parent.parent == SOURCES / folder for one in SOURCES.rglob("__init__.py"))
    assert len(list((TESTS / folder).glob("*.py"))) <= MANY or not has_parts
