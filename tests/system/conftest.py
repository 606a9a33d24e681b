"""One `headgate up` for all tests that only use it; tests that break it start their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.system.harness import System


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("system") / "data") as running:
        yield running
        running.stops_whole(signal.SIGTERM)
