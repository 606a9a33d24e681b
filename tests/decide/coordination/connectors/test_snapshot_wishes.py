"""Snapshots of connectors, one decision at a time: who wants which, and when one is done."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.connectors.health import advice_of
from headgate.decide.coordination.connectors.connecting import (
    SNAPSHOTS_MAX,
    CancelSnapshots,
    Create,
    Reset,
    TakeSnapshot,
    Wish,
)
from headgate.errors import InvalidRequest, NotFound, TooLarge
from headgate.model.connector import Connector, ConnectorRoute, Snapshot, SnapshotReport
from headgate.model.control import to_coordinator
from tests.decide.coordination.connectors.test_connecting import ORDERS, Connected
from tests.decide.coordination.world import ref

ALL = TakeSnapshot("orders")


@pytest.fixture
def world() -> Connected:
    return Connected()


def epoch(world: Connected) -> int:
    return world.cluster.intakes.owners[ref("orders")].epoch


def said(world: Connected, snapshot: SnapshotReport) -> None:
    world.reports(begun=True, snapshot=snapshot)


def wanted(world: Connected) -> list[int]:
    return [one.id for one in world.orders.snapshots]


def test_a_snapshot_is_named_by_an_epoch_that_nobody_reads_under(world: Connected) -> None:
    before = epoch(world)
    world.wish(ALL)
    [snapshot] = world.orders.snapshots
    assert before < snapshot.id < epoch(world)
    assert (snapshot.collections, snapshot.compares) == ((), False)


def test_what_is_asked_for_already_is_asked_for_once(world: Connected) -> None:
    world.wish(ALL)
    before = repr(world.cluster)
    world.wish(ALL)
    assert repr(world.cluster) == before
    world.wish(TakeSnapshot("orders", ("items",)))
    assert [one.collections for one in world.orders.snapshots] == [(), ("items",)]


def test_a_creation_and_a_reset_may_want_one(world: Connected) -> None:
    made = Connector("users", "mongodb", (ConnectorRoute("*", "changes"),), ORDERS.settings)
    world.wish(Create(made, snapshot=True))
    users = world.cluster.connectors["users"]
    assert users.snapshots == (Snapshot(users.beginning),)
    assert not users.compares
    world.wish(ALL)
    world.wish(Reset("orders", "now", snapshot=True))
    assert world.orders.snapshots == (Snapshot(world.orders.beginning, compares=True),)
    assert world.orders.compares


def test_a_reset_elsewhere_lets_what_is_under_way_begin_anew(world: Connected) -> None:
    world.wish(ALL)
    before = world.orders.snapshots
    world.wish(Reset("orders", "now"))
    assert world.orders.snapshots == before


def test_a_reset_lets_what_is_to_be_compared_be_compared_with_its_own_beginning(
    world: Connected,
) -> None:
    """Markers of the new beginning divide the log, and the reader looks for no others."""
    world.wish(Reset("orders", "now", snapshot=True))
    world.wish(TakeSnapshot("orders", ("items",)))
    world.wish(Reset("orders", "position:000005"))
    assert world.orders.snapshots == (Snapshot(world.orders.beginning, compares=True),)
    assert world.orders.compares


def test_one_is_done_with_those_before_it_when_its_reader_says_so(world: Connected) -> None:
    world.wish(ALL)
    world.wish(TakeSnapshot("orders", ("items",)))
    first, second = wanted(world)
    said(world, SnapshotReport(id=first))
    assert wanted(world) == [first, second]
    said(world, SnapshotReport(id=second))
    assert wanted(world) == [second]
    said(world, SnapshotReport(id=second, done=True))
    assert wanted(world) == []
    assert world.shown().snapshots == []


def test_what_a_former_reader_says_ends_none(world: Connected) -> None:
    world.wish(ALL)
    [snapshot] = world.orders.snapshots
    report = SnapshotReport(id=snapshot.id, done=True)
    world.reports(epoch=epoch(world) - 2, snapshot=report)
    assert world.orders.snapshots == (snapshot,)


def test_all_are_ended_under_another_epoch(world: Connected) -> None:
    world.wish(ALL)
    before = epoch(world)
    world.wish(CancelSnapshots("orders"))
    assert world.orders.snapshots == ()
    assert epoch(world) > before
    again = repr(world.cluster)
    world.wish(CancelSnapshots("orders"))
    assert repr(world.cluster) == again


def test_one_of_a_connector_that_goes_above_a_forgotten_one_goes_with_it(
    world: Connected,
) -> None:
    """Else its beginning would have no marker where it compares."""
    world.wish(Reset("orders", "now", snapshot=True))
    own = epoch(world)
    world.say(world.ingest, to_coordinator.ConnectorTooLow("orders", own + 10, own))
    assert world.orders.beginning > own + 10
    assert world.orders.compares


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        (TakeSnapshot("users"), NotFound),
        (CancelSnapshots("users"), NotFound),
        (TakeSnapshot("orders", ("",)), InvalidRequest),
        (TakeSnapshot("orders", tuple(map(str, range(101)))), InvalidRequest),
    ],
    ids=["unknown", "nothing_to_end", "nameless", "too_many"],
)
def test_what_is_refused_changes_nothing(
    world: Connected, wish: Wish, error: type[Exception]
) -> None:
    before = repr(world.cluster)
    with pytest.raises(error):
        world.wish(wish)
    assert repr(world.cluster) == before


def test_there_are_only_so_many_at_a_time(world: Connected) -> None:
    for number in range(SNAPSHOTS_MAX):
        world.wish(TakeSnapshot("orders", (str(number),)))
    with pytest.raises(TooLarge, match="--cancel"):
        world.wish(ALL)
    world.wish(TakeSnapshot("orders", ("3",)))  # which is asked for already


def test_one_that_fails_is_shown_and_advised(world: Connected) -> None:
    world.wish(ALL)
    [snapshot] = world.orders.snapshots
    assert [one.state for one in world.shown().snapshots] == ["waiting"]
    said(world, SnapshotReport(id=snapshot.id, collection="items", rows=5, error="no: do that"))
    [shown] = world.shown().snapshots
    assert (shown.state, shown.reason, shown.rows) == ("failing", "no: do that", 5)
    assert advice_of(world.shown()) == (
        "warn",
        "running, but its snapshot doesn't go on: no",
        "do that",
    )
    said(world, SnapshotReport(id=snapshot.id, compares=True))
    assert [one.state for one in world.shown().snapshots] == ["comparing"]


def test_what_is_wanted_is_kept(world: Connected) -> None:
    world.wish(TakeSnapshot("orders", ("items",)))
    raw = msgspec.json.encode(world.orders)
    assert msgspec.json.decode(raw, type=Connector) == world.orders
