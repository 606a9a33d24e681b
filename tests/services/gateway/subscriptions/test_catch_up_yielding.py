"""Catching up lets everybody else at the gateway go first by the time that records take."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.feed.queue import Budget
from headgate.decide.filter.plan import Filter, compile_filter
from headgate.model.event import Record
from headgate.services.gateway.subscriptions.catch_up import CatchUp
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.tasks import Crew

COSTLY_S = 0.1


async def test_catching_up_gives_way_after_each_record_that_takes_long() -> None:
    machine = ScriptedMachine()
    plain = compile_filter("a == 1")

    def costly(document: dict[str, Any], given: tuple[Any, ...]) -> bool | None:
        machine.passes(COSTLY_S)
        assert plain.test is not None
        return plain.test(document, given)

    matches = Filter(plain.expression, costly, plain.constants)
    about = SimpleNamespace(matches=matches, subscription=SimpleNamespace(shard=None))
    records = [
        Record("t", 0, seq, 1, f"e{seq}", "k", "", "insert", b'{"a":1}', None, None, 0)
        for seq in range(1, 21)
    ]
    catch_up = CatchUp(
        cast("Any", None), budget=Budget(1_000_000), crew=cast("Crew", None), machine=machine
    )
    reading = asyncio.create_task(catch_up._matching(cast("LiveSubscription", about), records))
    longest_s, before_s = 0.0, machine.monotonic_s()
    while not reading.done():
        await asyncio.sleep(0)
        now_s = machine.monotonic_s()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    assert [seq for seq, _ in reading.result()] == list(range(1, 21))
    assert COSTLY_S <= longest_s < 2 * COSTLY_S
