"""docs/architecture.md maps the packages that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "headgate"


def mapped() -> list[str]:
    """The packages of the map, as paths, from its lines: two spaces deeper is a folder further
    in."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"### Every folder\n.*?```\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None, "docs/architecture.md has no map"
    found: list[str] = []
    outer: list[str] = []
    for line in block[1].splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        outer = [*outer[:depth], name]
        found.append("/".join(outer))
    return found


def packages() -> list[str]:
    return sorted(
        str(folder.parent.relative_to(SOURCES))
        for folder in SOURCES.rglob("__init__.py")
        if folder.parent != SOURCES
    )


def test_the_map_names_every_package_once_and_no_other() -> None:
    assert sorted(mapped()) == packages()


@pytest.mark.parametrize("package", packages())
def test_a_folder_has_few_files_or_no_parts(package: str) -> None:
    """What has more than fifteen is one flat thing, named here with what it is."""
    flat = {
        "model": "values",
        "cli": "one file per command group",
        "adapters/memory": "one file per port",
        "decide/filter": "one language, from its text to its answers",
    }
    files = [file for file in (SOURCES / package).glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= 18 or package in flat
