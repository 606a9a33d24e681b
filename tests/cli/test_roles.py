"""How a role in its own process ends."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headgate.cli import roles


def test_the_first_signal_stops_and_the_second_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stopping = asyncio.Event()
    roles._stop(stopping, signal.SIGTERM)
    assert stopping.is_set()
    assert codes == []
    roles._stop(stopping, signal.SIGTERM)
    assert codes == [143]
