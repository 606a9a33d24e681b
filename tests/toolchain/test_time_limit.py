"""The time limit of the tests holds, also for a test that swallows it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SWALLOWS = """
import threading

def test_swallows():
    try:
        threading.Event().wait()
    except BaseException:
        pass
"""


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        (SWALLOWS, {"failed": 1}),
        ("import asyncio\nasync def test_hangs(): await asyncio.Event().wait()", {"failed": 1}),
        ("def test_is_quick(): pass", {"passed": 1}),
    ],
    ids=["swallows it", "hangs", "is quick"],
)
def test_a_test_passes_only_within_its_limit(
    pytester: pytest.Pytester, test: str, outcome: dict[str, int]
) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test)
    done = pytester.runpytest_subprocess("--timeout", "1", "-o", "asyncio_mode=auto", timeout=60)
    assert done.parseoutcomes() == outcome
