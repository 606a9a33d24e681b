"""Which partitions have lost how far a connector was in them, and which never had that."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headgate.decide.connectors.plan import plan
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.event import PartitionRef
from headgate.model.intake import IntakePosition
from headgate.model.topology import FormerVersion, Topic

ROUTES = (ConnectorRoute("orders", "orders"), ConnectorRoute("*", "rest"))
ORDERS, REST = Topic("orders", 1), Topic("rest", 2)
SPLIT = Topic(
    "orders",
    4,
    version=2,
    after=(9, 9, 0, 0),
    former=(FormerVersion(1, (0, 0), (9, 9)),),
    original=2,
    begins=(0, 0),
)
Stored = Mapping[tuple[str, int], dict[int, str]]
"""What partitions have, by version."""
COUNTS = {("orders", 1): 1, ("rest", 1): 2}
SPLIT_COUNTS = {("orders", 1): 2, ("orders", 2): 4, ("rest", 1): 2}


def bereft(stored: Stored, orders: Topic, *, begun: bool) -> set[tuple[str, int]]:
    counts = COUNTS if orders is ORDERS else SPLIT_COUNTS
    connector = Connector("shop", "mongodb", ROUTES, {}, beginning=1, begun=begun)
    found = {
        PartitionRef(*ref): [
            IntakePosition(version, counts[ref[0], version], 1, 1, position)
            for version, position in versions.items()
        ]
        for ref, versions in stored.items()
    }
    planned = plan(connector, (orders, REST), found)
    return {(ref.topic, ref.partition) for ref in planned.bereft}


OF_REST: Stored = {("rest", 0): {1: "7"}, ("rest", 1): {1: "7"}}


def test_a_topic_that_has_lost_all_its_positions_lacks_something() -> None:
    """Other topics' partitions say where the connector is, which may be ahead of where it was in
    this one: also where it has a single partition."""
    assert bereft(OF_REST, ORDERS, begun=True) == {("orders", 0)}


@pytest.mark.parametrize("pinned", [0, 1])
def test_what_was_lost_of_a_former_version_is_missing_in_the_next(pinned: int) -> None:
    first = {1: "5"} | dict.fromkeys(range(2, 2 + pinned), "5")
    stored = {("orders", 0): first, **OF_REST}
    all_of_it = {("orders", number) for number in range(4)}
    has = {("orders", number) for number in range(pinned)}
    assert bereft(stored, SPLIT, begun=True) == all_of_it - has


@pytest.mark.parametrize("pinned", range(5))
def test_a_repartition_takes_nothing_from_anybody(pinned: int) -> None:
    """However many partitions of the new version say where they begin when the reader ends."""
    stored: dict[tuple[str, int], dict[int, str]] = {
        ("orders", number): {2: "5"} if number < pinned else {} for number in range(4)
    }
    stored["orders", 0][1], stored["orders", 1][1] = "5", "6"
    stored.update(OF_REST)
    assert bereft(stored, SPLIT, begun=True) == set()


def test_one_that_has_not_begun_has_nothing_to_lose() -> None:
    assert bereft({("rest", 1): {1: "7"}}, ORDERS, begun=False) == set()


@pytest.mark.parametrize("stands_at", ["7", "9"], ids=["where they were", "behind that"])
def test_a_topic_made_anew_hears_of_a_new_beginning_like_the_others(stands_at: str) -> None:
    """It has no position of the former beginning, so it can't tell whether that was before it."""
    connector = Connector("shop", "mongodb", ROUTES, {}, beginning=5)
    former = [IntakePosition(1, 2, 5, 1, "7")]
    planned = plan(connector, (ORDERS, REST), dict.fromkeys(REST.refs(), former))
    lacking = {*ORDERS.refs(), *REST.refs()} if stands_at > "7" else set()
    assert planned.lacking(stands_at) == lacking


def test_a_first_beginning_leaves_nothing_out() -> None:
    connector = Connector("shop", "mongodb", ROUTES, {}, beginning=1)
    assert plan(connector, (ORDERS, REST), {}).lacking("9") == set()
