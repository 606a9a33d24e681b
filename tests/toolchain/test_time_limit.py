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


HANGS = "import asyncio\nasync def test_hangs(): await asyncio.Event().wait()"
IS_QUICK = "def test_is_quick(): pass"


def test_a_test_passes_only_within_its_limit(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_1=SWALLOWS, test_2=HANGS, test_3=IS_QUICK)
    done = pytester.runpytest_subprocess(
        *("--timeout", "1", "-o", "asyncio_mode=auto", "-rA"), timeout=60
    )
    assert done.parseoutcomes() == {"failed": 2, "passed": 1}
    done.stdout.fnmatch_lines_random(["FAILED *swallows*", "FAILED *hangs*", "PASSED *is_quick"])
