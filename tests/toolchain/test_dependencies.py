"""What is installed with headgate is used by it."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def imported() -> frozenset[str]:
    """The distributions whose packages are imported anywhere in the sources."""
    found: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found.update(one.name.partition(".")[0] for one in node.names)
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return frozenset(
        normal(distribution)
        for package, distributions in packages_distributions().items()
        if package in found
        for distribution in distributions
    )


@pytest.mark.parametrize("requirement", NEEDED)
def test_what_is_required_is_imported(requirement: str) -> None:
    [name] = re.findall(r"^[\w.-]+", requirement)
    assert normal(name) in imported()
