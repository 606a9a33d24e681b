"""A trial: a plant is put into a copy of the sources, and its tests are run there.

Invariants: the working tree is never changed; the tests import the copy, although the environment
has Headgate installed from the working tree; a test counts as a finder only when it passes without
the plant; every run of tests has a bound, and none outlives a trial that is broken off.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.plants.planting import Plant

COPIED = ("src", "tests", "docs", "pyproject.toml")
TEST_LIMIT_S = 60.0
RUN_LIMIT_S = 150.0
END_S = 20.0
"""For tests that are told to end: they may have servers to stop."""
WHERE_FROM = "import headgate; print(headgate.__file__)"
TAIL_LINES = 15
PASSED, FAILED, UNENDED = 0, 1, -1
"""Exit codes of pytest; with any other the tests didn't run."""
PYTEST = (
    *(sys.executable, "-m", "pytest", "--quiet", "-rf", "--timeout", str(TEST_LIMIT_S)),
    *("-p", "no:cacheprovider"),
    *("-p", "no:schemathesis"),  # takes longer to load than a plant to be found
)


class TrialFailed(Exception):
    """Nothing can be said about the plants; the message says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a plant's tests say about it."""

    found_by: tuple[str, ...]
    missed_by: tuple[str, ...]
    took_s: float
    said: str
    """The end of what pytest said."""


class Trial:
    """A copy of the sources in which one plant after the other is tried."""

    def __init__(self, root: Path, copy: Path) -> None:
        self._copy = copy
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(
                    source, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
                )
            elif source.exists():
                shutil.copy(source, copy / name)
        self._check_imports()

    def check_healthy(self, plants: Sequence[Plant]) -> None:
        """Without any plant all their tests pass: one that fails anyway finds nothing."""
        tests = dict.fromkeys(test for plant in plants for test in plant.found_by)
        code, said = self._pytest(tests, limit_s=RUN_LIMIT_S * len(plants))
        if code != PASSED:
            raise TrialFailed(
                f"The tests must pass without a plant to show anything:\n{_end_of(said)}"
            )

    def verdict(self, plant: Plant) -> Verdict:
        """Plant it, and run the tests that should find it."""
        started_s = time.monotonic()
        with self._planted(plant):
            code, said = self._pytest(plant.found_by, limit_s=RUN_LIMIT_S)
        failed = said.splitlines() if code == FAILED else []
        found_by = tuple(
            test for test in plant.found_by if any(_names(line, test) for line in failed)
        )
        missed_by = tuple(test for test in plant.found_by if test not in found_by)
        return Verdict(found_by, missed_by, time.monotonic() - started_s, _end_of(said))

    @contextmanager
    def _planted(self, plant: Plant) -> Iterator[None]:
        originals: dict[str, str] = {}

        def text_of(path: str) -> str:
            return originals.setdefault(path, (self._copy / path).read_text())

        changed = plant.applied(text_of)
        try:
            for path, text in changed.items():
                self._write(path, text)
            yield
        finally:
            for path, text in originals.items():
                self._write(path, text)

    def _write(self, path: str, text: str) -> None:
        """Python takes a file of the same second and size for the one it has compiled."""
        file = self._copy / path
        file.write_text(text)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def _check_imports(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WHERE_FROM],
            cwd=self._copy,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        imported = done.stdout.strip() or "no headgate"
        if not Path(imported).is_relative_to(self._copy.resolve()):
            raise TrialFailed(
                f"The tests would import {imported} instead of the copy in {self._copy}; look at "
                f"what PYTHONPATH and .venv put first."
            )

    def _environment(self) -> dict[str, str]:
        """With the copy before everything that the environment has installed."""
        return {**os.environ, "PYTHONPATH": str(self._copy.resolve() / "src")}

    def _pytest(self, tests: Iterable[str], *, limit_s: float) -> tuple[int, str]:
        """Run tests in the copy: pytest's exit code, and what it said."""
        child = subprocess.Popen(
            [*PYTEST, *tests],
            cwd=self._copy,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches it once, from here
        )
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(child)
            return UNENDED, f"It did not end within {limit_s:g} s."
        except BaseException:
            _end(child)
            raise
        return child.returncode, said


def _names(line: str, test: str) -> bool:
    """Does a line of pytest's summary say that this test failed, with some parameters or none?"""
    rest = line.removeprefix(f"FAILED {test}")
    return rest != line and rest[:1] in ("", "[", " ")


def _end_of(said: str) -> str:
    return "\n".join(said.splitlines()[-TAIL_LINES:])


def _end(child: subprocess.Popen[str]) -> None:
    """Let it stop its servers (tests/conftest.py), then end it."""
    child.terminate()
    try:
        child.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
