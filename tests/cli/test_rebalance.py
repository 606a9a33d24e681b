"""`headgate rebalance` against a server: the plan first, then the moves."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headgate.model.api import MoveStatus, PlannedMove, Status
from tests.cli.command import headgate
from tests.cli.operated import OperatedServer, partition, status, topic

PLAN = [PlannedMove("source", "flights", number, "r-1", "r-2") for number in (2, 3)]


def owned_by(*routers: str, moving: tuple[int, ...] = ()) -> Status:
    details = [partition(number, router=router) for number, router in enumerate(routers)]
    moves = [MoveStatus("flights", number, "r-1", "r-2", "starting") for number in moving]
    return status(topic("flights", *details), moves=moves)


@pytest.fixture
def uneven(operated: OperatedServer) -> OperatedServer:
    """A server where two of r-1's four partitions should be r-2's."""
    operated.now = owned_by("r-1", "r-1", "r-1", "r-1")
    operated.plans = [PLAN]

    def begin() -> None:
        operated.plans = [[]]
        operated.now = owned_by("r-1", "r-1", "r-2", "r-2", moving=(2, 3))
        operated.then = [
            owned_by("r-1", "r-1", "r-2", "r-2", moving=(3,)),
            owned_by("r-1", "r-1", "r-2", "r-2"),
        ]

    operated.on_change = begin
    return operated


async def test_the_plan_is_shown_and_carried_out(uneven: OperatedServer) -> None:
    result = await headgate("rebalance", url=uneven.url)
    assert (result.code, result.err) == (0, "")
    assert result.shows("source r-1 -> r-2 2 flights:2-3")
    assert result.shows("ingest i-1 4 4 -")
    assert result.shows("router r-1 4 2 -2")
    assert result.shows("router r-2 0 2 +2")
    assert uneven.calls == ["rebalance"]


async def test_a_dry_run_shows_the_same_and_moves_nothing(uneven: OperatedServer) -> None:
    dry = await headgate("rebalance", "--dry-run", "--wait", url=uneven.url)
    assert uneven.calls == []
    assert dry.code == 0
    assert dry.out == (await headgate("rebalance", url=uneven.url)).out


async def test_waiting_follows_the_moves_in_lines(uneven: OperatedServer) -> None:
    result = await headgate("rebalance", "--wait", url=uneven.url)
    assert result.code == 0
    assert result.err.splitlines() == [
        "moved 1 of 2 partitions",
        "moved 2 of 2 partitions",
        "all moves are done",
    ]


@pytest.mark.parametrize("flags", [(), ("--wait",), ("--dry-run",)], ids=["plain", "wait", "dry"])
async def test_nothing_to_move_is_said(operated: OperatedServer, flags: tuple[str, ...]) -> None:
    operated.now = owned_by("r-1", "r-2")
    result = await headgate("rebalance", *flags, url=operated.url)
    assert (result.code, result.out, result.err) == (
        0,
        "nothing to move: every node has its share\n",
        "",
    )
    assert operated.calls == []


async def test_what_is_on_its_way_already_is_said_and_waited_for(operated: OperatedServer) -> None:
    operated.now = owned_by("r-2", "r-1", moving=(0,))
    operated.then = [operated.now, owned_by("r-2", "r-1")]
    result = await headgate("rebalance", "--wait", url=operated.url)
    assert result.code == 0
    assert result.err.splitlines() == [
        "1 partition on the way already: see `headgate status`",
        "moved 1 of 1 partition",
        "all moves are done",
    ]


async def test_moves_that_take_too_long_are_an_error(uneven: OperatedServer) -> None:
    uneven.on_change = lambda: setattr(uneven, "now", owned_by("r-1", "r-2", moving=(0,)))
    uneven.plans = [PLAN[:1]]
    uneven.now = owned_by("r-1", "r-2", "r-1", moving=(0,))
    result = await headgate("rebalance", "--wait", "--timeout", "10ms", url=uneven.url)
    assert result.code == 1
    assert "still to move after 0.01 s" in result.err


async def test_json_is_one_object_whatever_was_waited_for(uneven: OperatedServer) -> None:
    dry = await headgate("rebalance", "--dry-run", "--json", url=uneven.url)
    found = cast("dict[str, Any]", dry.json)
    assert found["dry_run"] is True
    assert [(m["kind"], m["partition"], m["from"], m["to"]) for m in found["moves"]] == [
        ("source", 2, "r-1", "r-2"),
        ("source", 3, "r-1", "r-2"),
    ]
    done = await headgate("rebalance", "--wait", "--json", url=uneven.url)
    assert done.json == {**found, "dry_run": False}


async def test_a_plan_that_changed_in_between_is_said(uneven: OperatedServer) -> None:
    uneven.plans = [PLAN, PLAN[:1]]
    result = await headgate("rebalance", url=uneven.url)
    assert result.err == "the plan has changed since: it moves 1 partition\n"
