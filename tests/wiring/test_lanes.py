"""What a lane's worker opens for a lane, it closes with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.errors import StorageFailed
from headgate.model.lanes import LaneSettings, LaneSpec, LogStore
from headgate.wiring import lanes
from headgate.wiring.stores import open_letters, open_log_reader
from tests.written_log import WrittenLog


def spec(folder: Path, log: LogStore = LogStore()) -> LaneSpec:  # noqa: B008  # frozen
    return LaneSpec(
        router_id="router-1",
        incarnation="a",
        lane=0,
        window=1,
        attempt=0,
        assignment=1,
        owns=(),
        coordinator="nowhere:0",
        data=str(folder / "none"),
        settings=LaneSettings(log=log),
    )


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

    monkeypatch.setattr(lanes, "open_log_reader", lambda *_, **_options: Log())
    monkeypatch.setattr(lanes, "open_checkpoints", lambda *_: Positions())
    monkeypatch.setattr(lanes, "open_letters", lambda *_, **_options: Letters())
    _, close = lanes.open_lane(spec(tmp_path), lanes.Shared())
    with pytest.raises(StorageFailed):
        await close()
    assert closed == ["log", "positions", "letters"]


async def test_a_lane_holds_few_connections_to_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are many lanes, and PostgreSQL takes a hundred connections by default."""
    asked: list[int] = []

    def noted(opened: Callable[..., Any]) -> Callable[..., Any]:
        def open_noted(*given: Any, connections: int) -> Any:
            asked.append(connections)
            return opened(*given, connections=connections)

        return open_noted

    monkeypatch.setattr(lanes, "open_log_reader", noted(open_log_reader))
    monkeypatch.setattr(lanes, "open_letters", noted(open_letters))
    store = LogStore("postgresql", "postgresql://nobody@nowhere/none")
    _, close = lanes.open_lane(spec(tmp_path, store), lanes.Shared())
    await close()
    assert sum(asked) + 1 <= 5  # and one that listens
