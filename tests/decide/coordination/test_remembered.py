"""A coordinator that begins with half of a change begins with a state that is sound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from headgate.adapters.etcd.stored_elements import assembled, changed_elements, elements
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.connectors import connecting
from headgate.decide.coordination.connectors.connecting import Create, Delete
from headgate.decide.coordination.effects import Persist
from headgate.decide.coordination.invariants import check
from headgate.decide.coordination.remembered import fitting
from headgate.decide.lane.checkpoints import Reset
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.groups import Group, group_id
from headgate.model.stored import StoredReset, StoredState
from headgate.model.topology import Move, Node, Owner, Topic
from tests.decide.coordination.world import TIMING, World, ref

FLIGHTS = ref("flights")
RADAR = group_id("flights", "radar")


def history() -> list[StoredState]:
    """Everything that was kept while a cluster came up, moved, was reset and lost things again."""
    world = World()
    world.join("ingest", "i-1")
    gateway = world.join("gateway", "g-1")
    first = world.join("router", "r-1")
    lane = world.lane(*world.create("flights", 3))
    for consumer in ("c-1", "c-2"):
        world.say(
            gateway,
            to_coordinator.JoinGroup(
                topic="flights", group="radar", consumer=consumer, incarnation="1", keys=400
            ),
        )
    second = world.join("router", "r-2")
    world.join("ingest", "i-2")
    world.wait(12_000, alive=(gateway, first, second))
    world.say(lane, to_coordinator.Released(world.last(lane, from_coordinator.LetGo).owners))
    world.apply(world.cluster.reset(ref("flights", 1), Reset(3), world.now_ms))
    world.apply(world.cluster.drain("r-1", world.now_ms))
    world.create("trains", 2)
    origin = {"uri": "mongodb://db-1"}
    for name in ("orders", "users"):
        orders = Connector(name, "mongodb", (ConnectorRoute("*", "trains"),), origin)
        world.apply(world.cluster.operate_connector(Create(orders)))
    world.apply(world.cluster.operate_connector(connecting.Reset("orders", "now")))
    world.apply(world.cluster.operate_connector(Delete("orders")))
    world.say(second, to_coordinator.Goodbye())
    world.apply(world.cluster.delete_topic("flights"))
    world.say(gateway, to_coordinator.Goodbye())
    return [StoredState(boot=1), *(e.state for e in world.effects if isinstance(e, Persist))]


def every_part(before: StoredState, after: StoredState) -> Iterator[StoredState]:
    """What may be stored when storing it stopped anywhere."""
    found = dict[str, bytes | None](elements(before))
    for name, content in changed_elements(before, after).items():
        found[name] = content
        yield assembled({n: c for n, c in found.items() if c is not None})


def test_any_part_of_any_change_is_something_to_begin_with() -> None:
    states = history()
    assert any(s.moves for s in states)
    assert any(s.target_moves for s in states)
    assert any(s.resets for s in states)
    for before, after in pairwise(states):
        for partly in every_part(before, after):
            check(Cluster(partly, TIMING, "coordinator-1", 1_000))


def half_deletions() -> Iterator[tuple[StoredState, Cluster]]:
    """What was kept before flights were deleted, and who begins with some of what came then."""
    for before, after in pairwise(history()):
        if set(after.deleted) - set(before.deleted):
            for partly in every_part(before, after):
                yield before, Cluster(partly, TIMING, "coordinator-1", 1_000)


def test_half_a_deletion_is_one_or_none() -> None:
    """A topic that was merely absent would keep its records, for one of the same name."""
    for _, cluster in half_deletions():
        assert ("flights" in cluster.topics) is ("flights" not in cluster.deleted)


def test_half_a_deletion_is_above_whoever_had_the_logs() -> None:
    halves = [(before, c) for before, c in half_deletions() if "flights" in c.deleted]
    assert halves
    for before, cluster in halves:
        emptied = {owner.ref: owner.epoch - 1 for owner in cluster.topology().emptied}
        assert emptied == {o.ref: o.epoch for o in before.logs if o.ref.topic == "flights"}


def test_what_was_kept_whole_comes_back_as_it_was() -> None:
    for state in history():
        assert fitting(state) == state


ORDERS = Connector(
    "orders", "mongodb", (ConnectorRoute("*", "flights"),), {"uri": "mongodb://db-1"}, beginning=4
)
WHOLE = StoredState(
    boot=3,
    topics=(Topic("flights", 1),),
    nodes=(Node("i-1", "ingest"), Node("r-1", "router"), Node("r-2", "router")),
    logs=(Owner(FLIGHTS, "i-1", 1),),
    sources=(Owner(FLIGHTS, "r-1", 4),),
    moves=(Move(FLIGHTS, "r-1", "r-2"),),
    resets=(StoredReset(FLIGHTS, 7, is_released=True),),
    groups=(Group(RADAR, "flights", "radar", 1),),
    targets=(Owner(ref(RADAR), "c-1", 2),),
    target_moves=(Move(ref(RADAR), "c-1", "c-2"),),
    intakes=(Owner(ref("orders"), "i-1", 5),),
    connectors=(ORDERS,),
)


@pytest.mark.parametrize(
    ("torn", "fits"),
    [
        pytest.param({}, {}, id="whole"),
        pytest.param({"deleted": ("flights",)}, {"deleted": ()}, id="back, and still deleted"),
        pytest.param(
            {"topics": ()},
            {
                "logs": (Owner(FLIGHTS, "", 1),),
                "sources": (Owner(FLIGHTS, "", 4),),
                "moves": (),
                "resets": (),
                "groups": (),
                "targets": (Owner(ref(RADAR), "", 2),),
                "target_moves": (),
            },
            id="its topic is gone",
        ),
        pytest.param(
            {"topics": (), "deleted": ("flights",)},
            {
                "logs": (Owner(FLIGHTS, "", 2),),
                "sources": (Owner(FLIGHTS, "", 4),),
                "moves": (),
                "resets": (),
                "groups": (),
                "targets": (Owner(ref(RADAR), "", 2),),
                "target_moves": (),
            },
            id="its topic is deleted, and has yet to take an epoch",
        ),
        pytest.param(
            {"intakes": (), "above": 7},
            {"intakes": (Owner(ref("orders"), "", 7),)},
            id="a connector is about to be deleted",
        ),
        pytest.param(
            {"connectors": ()}, {"intakes": (), "above": 5}, id="a connector is about to be created"
        ),
        pytest.param(
            {"intakes": (Owner(ref("orders"), "i-9", 6),)},
            {"intakes": (Owner(ref("orders"), "", 6),)},
            id="its reader isn't known yet",
        ),
        pytest.param(
            {"nodes": (Node("i-1", "ingest"),)},
            {"sources": (Owner(FLIGHTS, "", 4),), "moves": ()},
            id="its owner isn't known yet",
        ),
        pytest.param(
            {"nodes": (Node("i-1", "ingest"), Node("r-1", "router"))},
            {"moves": ()},
            id="its recipient is gone",
        ),
        pytest.param(
            {"sources": ()},
            {"moves": (), "resets": (StoredReset(FLIGHTS, 7),)},
            id="its epoch wasn't kept",
        ),
        pytest.param(
            {"targets": (Owner(ref(RADAR), "c-2", 3),)}, {"target_moves": ()}, id="arrived already"
        ),
        pytest.param(
            {"learning": True, "topics": (), "nodes": (), "moves": (), "resets": ()},
            {},
            id="what a learner believes",
        ),
    ],
)
def test_what_belongs_to_nothing_is_left_out_and_no_epoch_forgotten(
    torn: dict[str, object], fits: dict[str, object]
) -> None:
    stored = msgspec.structs.replace(WHOLE, **torn)
    assert fitting(stored) == msgspec.structs.replace(stored, **fits)
    check(Cluster(stored, TIMING, "coordinator-1", 1_000))
