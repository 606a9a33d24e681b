"""A wall clock that jumps makes nothing old, and that is said."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.services.lived_clock import LivedClock
from tests.virtual_time import run_virtual

HOUR_S = 3_600


class Jumping(ScriptedMachine):
    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.parametrize(
    ("jumps_s", "said_s"),
    [
        pytest.param([0, 0], [], id="a clock that runs"),
        pytest.param([30, 50], [], id="one that is set right now and then"),
        pytest.param([HOUR_S, HOUR_S], [HOUR_S], id="a jump is said once"),
        pytest.param([HOUR_S, 3 * HOUR_S], [HOUR_S, 3 * HOUR_S], id="two are said both"),
        pytest.param([HOUR_S, 0, HOUR_S], [HOUR_S, HOUR_S], id="also after it came back"),
        pytest.param([-HOUR_S], [], id="one that falls back makes nothing young that matters"),
    ],
)
def test_a_jump_ages_nothing_and_is_said(jumps_s: list[int], said_s: list[int]) -> None:
    async def lived() -> list[int]:
        machine = Jumping(begins_ms=10**12, clock=asyncio.get_running_loop().time)
        clock, began_ms = LivedClock(machine), machine.wall_ms()
        with capture_logs() as logs:
            for ahead_s in jumps_s:
                await asyncio.sleep(60)
                machine.ahead_ms = ahead_s * 1_000
                lived_ms = machine.wall_ms() - machine.ahead_ms - began_ms
                assert clock.now_ms() - began_ms == lived_ms + min(machine.ahead_ms, 0)
        return [one["ahead_s"] for one in logs]

    assert run_virtual(lived()) == said_s
