"""What an operator is told about partitions that change hands."""

from __future__ import annotations

import pytest

from headgate.cli.moves import NodeChange, Transfer, grouped, happened, left, owned, shares
from headgate.model.api import MoveStatus, PlannedMove, Status
from tests.cli.operated import partition, status, topic


def move(number: int, from_id: str = "r-1", to_id: str = "r-2") -> PlannedMove:
    return PlannedMove("source", "flights", number, from_id, to_id)


LOG_MOVE = PlannedMove("log", "flights", 0, "i-1", "i-2")
RELEASING = MoveStatus("flights", 0, "r-1", "r-2", "releasing")
STARTING = MoveStatus("flights", 0, "r-1", "r-2", "starting")


def flights(*routers: str | None, **fields: object) -> Status:
    details = [partition(number, router=router) for number, router in enumerate(routers)]
    return status(topic("flights", *details), **fields)


def test_moves_between_the_same_nodes_are_one_group() -> None:
    assert grouped([move(1), LOG_MOVE, move(0, "r-2", "r-1"), move(3)]) == [
        Transfer("log", "i-1", "i-2", (("flights", 0),)),
        Transfer("source", "r-1", "r-2", (("flights", 1), ("flights", 3))),
        Transfer("source", "r-2", "r-1", (("flights", 0),)),
    ]


@pytest.mark.parametrize(
    ("now", "moves", "after"),
    [
        pytest.param(flights("r-1", "r-1"), [], (2, 0), id="nothing planned"),
        pytest.param(flights("r-1", "r-1"), [move(1)], (1, 1), id="planned"),
        pytest.param(
            flights("r-1", "r-1", moves=[RELEASING]), [], (1, 1), id="still with the donor"
        ),
        pytest.param(
            flights("r-2", "r-1", moves=[STARTING]), [], (1, 1), id="counted with the recipient"
        ),
        pytest.param(flights("r-1", "r-1"), [LOG_MOVE], (2, 0), id="of the other kind"),
    ],
)
def test_shares_count_what_is_planned_and_what_is_on_its_way(
    now: Status, moves: list[PlannedMove], after: tuple[int, int]
) -> None:
    routers = [share for share in shares(now, moves) if share.role == "router"]
    assert [share.after for share in routers] == list(after)
    assert sum(share.before for share in routers) == 2


def test_only_nodes_that_own_partitions_have_shares() -> None:
    assert shares(flights("r-1"), []) == [
        NodeChange("ingest", "i-1", 1, 1),
        NodeChange("router", "r-1", 1, 1),
        NodeChange("router", "r-2", 0, 0),
    ]


@pytest.mark.parametrize(
    ("now", "moves", "count"),
    [
        pytest.param(flights("r-1", moves=[RELEASING]), [move(0)], 1, id="releasing"),
        pytest.param(flights("r-2", moves=[STARTING]), [move(0)], 1, id="starting"),
        pytest.param(flights("r-2"), [move(0)], 0, id="arrived"),
        pytest.param(flights("r-3"), [move(0)], 0, id="sent on by a later plan"),
        pytest.param(flights(None), [move(0)], 1, id="with nobody"),
        pytest.param(status(), [move(0)], 0, id="topic deleted"),
        pytest.param(flights("r-1"), [LOG_MOVE], 0, id="log partitions move at once"),
    ],
)
def test_a_move_is_left_until_it_has_come_to_an_end(
    now: Status, moves: list[PlannedMove], count: int
) -> None:
    assert left(now, moves) == count


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        pytest.param(flights("r-1"), flights("r-1"), [], id="nothing"),
        pytest.param(flights("r-1"), flights("r-1", moves=[RELEASING]), [move(0)], id="on its way"),
        pytest.param(flights("r-1"), flights("r-2"), [move(0)], id="gone already"),
        pytest.param(flights("r-2"), flights("r-1"), [move(0, "r-2", "r-1")], id="come back"),
        pytest.param(flights("r-2"), flights("r-3"), [], id="between others"),
        pytest.param(status(), flights("r-1"), [], id="a new topic"),
    ],
)
def test_what_happened_to_a_node_is_seen_by_two_looks(
    before: Status, after: Status, moves: list[PlannedMove]
) -> None:
    assert happened(before, after, "r-1") == moves


def test_a_log_partition_that_changed_hands_is_seen_too() -> None:
    before = status(topic("flights", partition(0, owner="i-1")))
    after = status(topic("flights", partition(0, owner="i-2")))
    assert happened(before, after, "i-1") == [LOG_MOVE]


def test_a_node_owns_partitions_also_while_nobody_has_heard_of_it() -> None:
    now = status(topic("flights", partition(0), partition(1, router="r-2")), nodes=[])
    assert [owned(now, node_id) for node_id in ("i-1", "r-1", "r-2", "r-3")] == [2, 1, 1, 0]
