"""What a lane's worker opens for a lane, it closes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.errors import StorageFailed
from headgate.model.lanes import LaneSettings, LaneSpec
from headgate.wiring import lanes
from tests.written_log import WrittenLog


async def test_a_store_that_fails_to_close_keeps_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Log(WrittenLog):
        async def close(self) -> None:
            closed.append("log")
            raise StorageFailed("away")

    class Positions(MemoryCheckpointStore):
        async def close(self) -> None:
            closed.append("positions")

    class Letters(MemoryLetterStore):
        async def close(self) -> None:
            closed.append("letters")

    monkeypatch.setattr(lanes, "open_log_reader", lambda *_: Log())
    monkeypatch.setattr(lanes, "open_checkpoints", lambda *_: Positions())
    monkeypatch.setattr(lanes, "open_letters", lambda *_: Letters())
    spec = LaneSpec(
        router_id="router-1",
        incarnation="a",
        lane=0,
        window=1,
        attempt=0,
        assignment=1,
        owns=(),
        coordinator="nowhere:0",
        data=str(tmp_path / "none"),
        settings=LaneSettings(),
    )
    _, close = lanes.open_lane(spec, lanes.Shared())
    with pytest.raises(StorageFailed):
        await close()
    assert closed == ["log", "positions", "letters"]
