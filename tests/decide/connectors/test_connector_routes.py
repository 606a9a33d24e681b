"""Which topics get what a connector reads."""

from __future__ import annotations

import pytest

from headgate.decide.connectors.plan import ROUTED_MAX, plan
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic

ROUTES = (ConnectorRoute("orders*", "orders"), ConnectorRoute("carts", "carts"))
CONNECTOR = Connector("shop", "mongodb", ROUTES, {}, beginning=1)
TOPICS = (Topic("orders", 2), Topic("carts", 1))
OF_ORDERS = [PartitionRef("orders", 0), PartitionRef("orders", 1)]
OF_CARTS = [PartitionRef("carts", 0)]


@pytest.mark.parametrize(
    ("collection", "to", "refs", "unrouted"),
    [
        ("orders", "orders_old", OF_ORDERS, 0),
        ("orders", "carts", OF_ORDERS + OF_CARTS, 0),
        ("orders", "elsewhere", OF_ORDERS, 0),
        ("tmp.agg_out.1", "carts", OF_CARTS, 0),
        ("tmp.agg_out.1", "elsewhere", [], 1),
    ],
)
def test_a_rename_goes_where_either_name_leads(
    collection: str, to: str, refs: list[PartitionRef], unrouted: int
) -> None:
    """Once into each partition: what the collection of the new name had is gone."""
    event = Event("r", b'{"to":"%s"}' % to.encode(), None, "rename", collection, None, "7")
    parts, left_out = plan(CONNECTOR, TOPICS, {}).split([event])
    assert sorted(parts) == sorted(refs)
    assert all(len(events) == 1 for events in parts.values())
    assert left_out == unrouted


def test_names_that_come_once_are_not_remembered_for_ever() -> None:
    planned = plan(CONNECTOR, TOPICS, {})
    for number in range(2 * ROUTED_MAX):
        assert planned.topic_of(f"orders{number}") == "orders"
    assert len(planned._routed) <= ROUTED_MAX


@pytest.mark.parametrize(
    ("pattern", "fits", "else_"),
    [
        ("log_*", "log_1", "xlog_1"),
        ("log_?", "log_1", "log_12"),
        ("log_[0-9]", "log_1", "log_a"),
        ("log_[!0-9]", "log_a", "log_1"),
        ("log_[[]", "log_[", "log_"),
        ("log_[0", "log_[0", "log_0"),
        ("Log", "Log", "log"),
    ],
)
def test_patterns_are_those_of_file_names(pattern: str, fits: str, else_: str) -> None:
    """As docs/connectors.md has it."""
    routes = (ConnectorRoute(pattern, "orders"),)
    planned = plan(Connector("shop", "mongodb", routes, {}, beginning=1), TOPICS[:1], {})
    assert planned.topic_of(fits) == "orders"
    assert planned.topic_of(else_) is None
