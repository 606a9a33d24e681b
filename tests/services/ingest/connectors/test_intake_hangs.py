"""Stores that take long over what a connector hands in, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Taken
from tests.services.ingest.connectors.intake_stage import ONE, TWO, FlakyWriter, Stage, change
from tests.virtual_time import run_virtual

HALF_AN_HOUR_S = 1_800.0


class _Hanging:
    """A store that answers for nothing until it `goes_on`."""

    def __init__(self, writer: FlakyWriter) -> None:
        self.goes_on = asyncio.Event()
        self.held: dict[PartitionRef, int] = {}
        self.most_held = 0
        self._take_in = writer.take_in
        writer.take_in = self.take_in  # type: ignore[method-assign]

    async def take_in(
        self, ref: PartitionRef, mark: IntakeMark, events: Sequence[Event], **more: Any
    ) -> Taken:
        self.held[ref] = self.held.get(ref, 0) + 1
        self.most_held = max(self.most_held, self.held[ref])
        try:
            await self.goes_on.wait()
            return await self._take_in(ref, mark, events, **more)
        finally:
            self.held[ref] -= 1


def test_a_store_that_hangs_is_handed_one_batch_of_a_partition() -> None:
    """Its reader comes again and again, and so does the next one: nothing piles up meanwhile."""

    async def scenario() -> None:
        stage = Stage()
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        stores = [_Hanging(stage.writers[name]) for name in (ONE, TWO)]
        stage.history.commit(*(change(number, keys=50) for number in range(200)))
        await asyncio.sleep(HALF_AN_HOUR_S)
        stage.move_connector(TWO)
        await stage.publish()
        await asyncio.sleep(HALF_AN_HOUR_S)
        said = await stage.until_state("retrying")
        assert "hasn't answered" in said.error
        assert [store.most_held for store in stores] == [1, 1]
        for store in stores:
            store.goes_on.set()
        await stage.until(lambda: not stage.behind())
        stage.judge(stage.history.changes)
        await stage.stop()

    run_virtual(scenario())
