"""Every invariant is about something: a state that breaks it is found, and by that invariant."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.connectors.connecting import Create
from headgate.decide.coordination.groups.groups import Consumer
from headgate.decide.coordination.invariants import (
    ALWAYS,
    INVARIANTS,
    KEPT,
    SCALES,
    Contradiction,
    check,
    contradictions,
)
from headgate.decide.coordination.sources.ownership import Ownership
from headgate.decide.coordination.topics.publishing import Client
from headgate.decide.lane.checkpoints import Reset
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.control import to_coordinator
from headgate.model.groups import Group, group_id
from headgate.model.subscription import Subscription
from headgate.model.topology import Move, Owner, Topic
from tests.decide.coordination.world import World, ref

FLIGHTS = ref("flights")
RADAR = group_id("flights", "radar")


def busy() -> Cluster:
    """Everybody is there, and something of everything."""
    world = World()
    world.join("ingest", "ingest-1")
    world.join("router", "router-1")
    gateway = world.join("gateway", "gateway-1")
    world.join("client", "client-1")
    world.lane(*world.create("flights", 2))
    join = to_coordinator.JoinGroup(topic="flights", group="radar", consumer="c-1", incarnation="1")
    world.say(gateway, join)
    wanted = Subscription("s1", "gateway-1", "flights", tenant="t", ttl_ms=60_000)
    world.say(gateway, to_coordinator.Register(1, (wanted,)))
    routes, origin = (ConnectorRoute("*", "flights"),), {"uri": "mongodb://db-1"}
    orders = Connector("orders", "mongodb", routes, origin)
    world.apply(world.cluster.operate_connector(Create(orders)))
    return world.cluster


def another_session(cluster: Cluster) -> None:
    cluster.members["router-1"].session = 99


def known_twice(cluster: Cluster) -> None:
    cluster.expected["router-1"] = cluster.members["router-1"].node()


def session_of_nobody(cluster: Cluster) -> None:
    cluster.sessions[99] = ("gateway", "gateway-9")


def session_of_a_client_too(cluster: Cluster) -> None:
    cluster.clients[next(iter(cluster.sessions))] = Client(0)


def lane_without_session(cluster: Cluster) -> None:
    [session] = cluster.lanes.by_session
    del cluster.sessions[session]


def no_weight(cluster: Cluster) -> None:
    member = cluster.members["ingest-1"]
    member.hello = msgspec.structs.replace(member.hello, weight=0.0005)


def unknown_owner(cluster: Cluster) -> None:
    cluster.logs.take(FLIGHTS, "ingest-9")


def owner_of_no_topic(cluster: Cluster) -> None:
    cluster.sources.take(ref("trains"), "router-1")


def move_of_another(cluster: Cluster) -> None:
    cluster.handoffs.begin(Move(FLIGHTS, "router-8", "router-9"), 0)


def move_to_nobody(cluster: Cluster) -> None:
    cluster.handoffs.begin(Move(FLIGHTS, "router-1", "router-9"), 0)


def fence_of_the_future(cluster: Cluster) -> None:
    cluster.unfenced[FLIGHTS] = Owner(FLIGHTS, "router-1", 9)


def assignment_of_a_gateway(cluster: Cluster) -> None:
    cluster.unassigned["gateway-1"] = 1


def reset_of_nothing(cluster: Cluster) -> None:
    cluster.resets.begin(ref("flights", 7), Reset(1), 0)


def reset_without_a_fence(cluster: Cluster) -> None:
    cluster.resets.putting[FLIGHTS] = Reset(1)


def reader_under_an_old_epoch(cluster: Cluster) -> None:
    cluster.sources.take(FLIGHTS, "router-1")


def read_and_over(cluster: Cluster) -> None:
    cluster.lanes.ended_ms[FLIGHTS] = 0


def read_by_a_lane_that_is_gone(cluster: Cluster) -> None:
    cluster.lanes.by_session.clear()


def changed_in_silence(cluster: Cluster) -> None:
    cluster.topics["trains"] = Topic("trains", 1)


def topic_without_partitions(cluster: Cluster) -> None:
    cluster.topics["flights"] = Topic("flights", 0)


def there_and_deleted(cluster: Cluster) -> None:
    cluster.deleted.add("flights")


def group_of_no_topic(cluster: Cluster) -> None:
    other = group_id("trains", "radar")
    cluster.groups.by_id[other] = Group(other, "trains", "radar", 1)


def group_by_another_name(cluster: Cluster) -> None:
    cluster.groups.by_id["g"] = Group("g", "flights", "g", 1)


def consumer_of_no_group(cluster: Cluster) -> None:
    cluster.groups.consumers["g", "c"] = Consumer("g", "c", "1", "gateway-1")


def target_of_no_group(cluster: Cluster) -> None:
    cluster.groups.targets.take(ref(RADAR, 1_023), "c-1")


def target_that_left_before(cluster: Cluster) -> None:
    cluster.groups.handoffs.begin(Move(ref(RADAR), "c-2", "c-1"), 0)


def connector_of_nobody(cluster: Cluster) -> None:
    del cluster.intakes.owners[ref("orders")]


def connector_of_a_router(cluster: Cluster) -> None:
    cluster.intakes.take(ref("orders"), "router-1")


def connector_that_begins_in_the_future(cluster: Cluster) -> None:
    cluster.connectors["orders"] = msgspec.structs.replace(
        cluster.connectors["orders"], beginning=9
    )


def connector_without_routes(cluster: Cluster) -> None:
    cluster.connectors["orders"] = msgspec.structs.replace(cluster.connectors["orders"], routes=())


def floor_above_all(cluster: Cluster) -> None:
    cluster.registry.floor = cluster.registry.revision + 1


def lane_ahead_of_all(cluster: Cluster) -> None:
    [lane] = cluster.lanes.by_session.values()
    lane.adopted = cluster.registry.revision + 1


def subscriptions_of_a_router(cluster: Cluster) -> None:
    cluster.registry.upsert("router-1", [Subscription("s9", "router-1", "flights")], 0)


def stranger_that_is_kept(cluster: Cluster) -> None:
    cluster.registry.kept["gateway-9"] = "a"


def subscription_of_no_gateway(cluster: Cluster) -> None:
    cluster.registry.subscriptions["s9"] = Subscription("s9", "gateway-1", "flights")


def subscription_of_no_tenant(cluster: Cluster) -> None:
    cluster.registry._tenants.add("t")


def subscription_for_ever(cluster: Cluster) -> None:
    cluster.registry._lifetimes._begun_ms.clear()


CORRUPTIONS: dict[Callable[[Cluster], None], str] = {
    another_session: "members speak for themselves",
    known_twice: "members speak for themselves",
    session_of_nobody: "every session has one owner",
    session_of_a_client_too: "every session has one owner",
    lane_without_session: "lanes have sessions",
    no_weight: "a plan is possible",
    unknown_owner: "owners are known",
    owner_of_no_topic: "owners are known",
    move_of_another: "handoffs lead somewhere",
    move_to_nobody: "handoffs lead somewhere",
    fence_of_the_future: "fences are awaited by whom they concern",
    assignment_of_a_gateway: "fences are awaited by whom they concern",
    reset_of_nothing: "resets are of what there is",
    reset_without_a_fence: "resets are of what there is",
    reader_under_an_old_epoch: "one lane reads",
    read_and_over: "one lane reads",
    read_by_a_lane_that_is_gone: "one lane reads",
    changed_in_silence: "what is decided is out",
    topic_without_partitions: "topics are there or gone",
    there_and_deleted: "topics are there or gone",
    group_of_no_topic: "groups are of topics",
    group_by_another_name: "groups are of topics",
    consumer_of_no_group: "consumers are in groups",
    target_of_no_group: "targets are of groups",
    target_that_left_before: "targets are of groups",
    connector_of_nobody: "connectors are read once",
    connector_of_a_router: "connectors are read once",
    connector_that_begins_in_the_future: "connectors are read once",
    connector_without_routes: "connectors are read once",
    floor_above_all: "nobody adopts what isn't there",
    lane_ahead_of_all: "nobody adopts what isn't there",
    subscriptions_of_a_router: "gateways hold subscriptions",
    stranger_that_is_kept: "who is kept is waited for",
    subscription_of_no_gateway: "subscriptions are counted",
    subscription_of_no_tenant: "subscriptions are counted",
    subscription_for_ever: "subscriptions are counted",
}


def test_a_busy_state_contradicts_nothing() -> None:
    assert list(contradictions(busy())) == []


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_a_contradiction_is_found_and_named(corrupt: Callable[[Cluster], None]) -> None:
    cluster = busy()
    corrupt(cluster)
    found = [sentence.partition(": ")[0] for sentence in contradictions(cluster)]
    assert CORRUPTIONS[corrupt] in found
    with pytest.raises(Contradiction):
        check(cluster)


def test_every_invariant_is_shown_to_be_broken_by_something() -> None:
    names = [invariant.name for invariant in INVARIANTS]
    assert set(CORRUPTIONS.values()) == set(names)
    assert len(set(names)) == len(names)


def test_each_says_what_it_means_in_a_sentence() -> None:
    for invariant in INVARIANTS:
        assert invariant.says[0].isupper()
        assert invariant.says.endswith(".")


def test_what_is_checked_while_it_runs_is_part_of_what_is_checked_here() -> None:
    assert set(ALWAYS) < set(KEPT) < set(SCALES)


# --- what is guarded where it is written ----------------------------------------------------------


@pytest.mark.parametrize(
    "follows",
    [
        pytest.param(Owner(FLIGHTS, "a", 1), id="an epoch that falls"),
        pytest.param(Owner(FLIGHTS, "b", 2), id="another owner under the same epoch"),
        pytest.param(Owner(FLIGHTS, "", 1), id="nobody, under an epoch that falls"),
    ],
)
def test_epochs_only_grow(follows: Owner) -> None:
    table = Ownership.of([Owner(FLIGHTS, "a", 2)])
    with pytest.raises(AssertionError, match="can't follow"):
        table._put(follows)
    assert table.owners[FLIGHTS] == Owner(FLIGHTS, "a", 2)


def test_generations_only_grow() -> None:
    cluster = busy()
    with pytest.raises(AssertionError, match="only grow"):
        cluster.out.publish(cluster.topology())
