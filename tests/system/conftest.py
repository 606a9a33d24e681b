"""One `headgate up` for all tests that only use it; tests that break it start their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.system.harness import System

SETTINGS = {"HEADGATE_PUBLIC__ORIGINS": "http://127.0.0.1:8000"}
"""As the tutorial starts it."""


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("system") / "data", SETTINGS) as running:
        yield running
        running.stops_whole(signal.SIGTERM)
