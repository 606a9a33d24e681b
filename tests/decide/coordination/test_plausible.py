"""Whatever somebody says: it is refused with a reason, or harms nobody.

Numbers that can't be counted to, names of nobody, groups and topologies that contradict themselves,
and what belongs to another role come from everybody, in any order, among nodes that do their work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.control_stream import encode
from headgate.decide.coordination.connectors.connecting import Create
from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.plausible import NUMBERS_END
from headgate.model.access import ApiToken, Grant
from headgate.model.connector import Connector, ConnectorReport, ConnectorRoute
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayLink,
    GatewayReport,
    IngestReport,
    LaneReport,
    PartitionReport,
    RouterReport,
)
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.event import PartitionRef
from headgate.model.groups import MAX_TARGETS, Group, group_id
from headgate.model.stored import StoredState
from headgate.model.subscription import Subscription
from headgate.model.topology import Node, Owner, Topic, Topology
from tests.decide.coordination.world import World, ref

LARGEST = (1 << 64) - 1
"""What a stream can carry."""
RADAR = group_id("flights", "radar")
INGEST, ROUTER, GATEWAY, LANE = 1, 2, 3, 4
"""Their sessions."""


def hello(role: SessionRole = "ingest", **said: Any) -> Hello:
    return Hello(**{"role": role, "node_id": "node-9", "incarnation": "9", **said})


ORDERS = Connector(
    "orders", "mongodb", (ConnectorRoute("*", "flights"),), {"uri": "mongodb://db-1"}
)


def populated() -> World:
    world = World()
    for role in ("ingest", "router", "gateway"):
        world.join(role, f"{role}-1")
    world.lane(*world.create("flights", 2))
    world.apply(world.cluster.operate_connector(Create(ORDERS)))
    return world


def forgetful() -> World:
    """Everybody has a past that the coordinator doesn't know."""
    world = World(StoredState())
    for role in ("ingest", "router", "gateway"):
        world.open(hello(role, node_id=f"{role}-1", generation=9))
    return world


# --- hellos ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [
        pytest.param({"weight": 0.0005}, "ingest.weight to a number from 0.001", id="too light"),
        pytest.param({"weight": 0.0}, "weight 0", id="no weight"),
        pytest.param({"weight": -1.0}, "weight -1", id="less than none"),
        pytest.param({"weight": 1_001.0}, "weight 1001", id="too heavy"),
        pytest.param({"weight": float("nan")}, "weight nan", id="no number"),
        pytest.param({"weight": float("inf")}, "weight inf", id="without end"),
        pytest.param({"node_id": ""}, "needs a name", id="nobody"),
        pytest.param({"node_id": "n" * 1_000}, "needs a name", id="a long name"),
        pytest.param({"generation": LARGEST}, "counts further", id="a generation of no use"),
        pytest.param({"generation": -1}, "counts further", id="a generation before all"),
        pytest.param({"revision": NUMBERS_END}, "counts further", id="a revision of no use"),
        pytest.param({"role": "router", "assignment": LARGEST}, "counts further", id="assignment"),
        pytest.param(
            {"owns": (Owner(ref("flights"), "ingest-1", 1),)},
            "flights:0 is said to belong to ingest-1 by node-9",
            id="what another owns",
        ),
        pytest.param(
            {"owns": (Owner(ref("flights"), "", 1),)}, "belong to nobody", id="what nobody owns"
        ),
        pytest.param(
            {"owns": (Owner(ref("flights", -1), "node-9", 1),)},
            "there can't be flights:-1",
            id="no such partition",
        ),
        pytest.param(
            {"owns": (Owner(ref("flights"), "node-9", LARGEST),)}, "under epoch", id="an epoch"
        ),
        pytest.param(
            {"owns": (Owner(ref("flights"), "node-9", 1), Owner(ref("flights"), "node-9", 2))},
            "names a partition twice",
            id="one partition twice",
        ),
        pytest.param(
            {"intakes": (Owner(ref("orders", 1), "node-9", 1),)},
            "orders:1 is no connector",
            id="a part of a connector",
        ),
        pytest.param(
            {"intakes": (Owner(ref("orders"), "ingest-1", 2),)},
            "is said to belong to ingest-1 by node-9",
            id="what another reads",
        ),
        pytest.param(
            {"role": "gateway", "intakes": (Owner(ref("orders"), "node-9", 2),)},
            "a gateway reads no connectors",
            id="a gateway that reads",
        ),
        pytest.param({"node_id": "router-1"}, "is the name of a router", id="another's name"),
        pytest.param(
            {"node_id": "ingest-1", "generation": 1 << 40},
            "another ingest named ingest-1 is connected",
            id="an impostor with a great past",
        ),
        pytest.param(
            {"role": "lane", "owns": (Owner(ref("trains"), "node-9", 7),), "revision": 1 << 40},
            "nothing of what window 0 reads",
            id="a lane of another world",
        ),
    ],
)
def test_who_cannot_be_is_told_why_and_changes_nothing(
    nonsense: dict[str, Any], reason: str
) -> None:
    world = populated()
    before = repr(world.cluster)
    effects = world.cluster.opened(99, hello(**nonsense), world.now_ms)
    [told, _] = effects
    assert isinstance(told, Send)
    assert told.session == 99
    assert isinstance(told.message, from_coordinator.Refused)
    assert reason in told.message.reason
    assert repr(world.cluster) == before


def test_who_is_refused_does_not_begin_to_teach_a_coordinator_without_memory() -> None:
    world = World(StoredState())
    world.open(hello(weight=0.0, generation=7))
    assert not world.cluster.learning.is_on
    world.open(hello(generation=7))
    assert world.cluster.learning.is_on


def test_a_lane_is_believed_by_a_coordinator_without_memory() -> None:
    """Also when it is the first to come."""
    world = World(StoredState())
    owner = Owner(ref("flights"), "router-1", 3)
    lane = world.open(hello("lane", node_id="router-1", owns=(owner,), generation=7, revision=4))
    assert world.cluster.learning.is_on
    assert world.cluster.sources.owners == {owner.ref: owner}
    assert not world.sent(lane, from_coordinator.Refused)


# --- messages -------------------------------------------------------------------------------------

TWICE = Topic("flights", 1)


def reported(name: str = "orders", **said: Any) -> ConnectorReport:
    return ConnectorReport(name=name, epoch=2, state="running", **said)


@pytest.mark.parametrize(
    ("role", "message", "reason"),
    [
        pytest.param(
            "ingest",
            to_coordinator.Register(1, (Subscription("s", "ingest-1", "flights"),)),
            "Register isn't what a node of role ingest says",
            id="who has no subscribers",
        ),
        pytest.param("client", IngestReport(((ref("flights"), 5),)), "IngestReport", id="a client"),
        pytest.param("gateway", RouterReport("starting", 1, 0.0), "RouterReport", id="a gateway"),
        pytest.param(
            "client", to_coordinator.Recall(Topology(1)), "Recall isn't", id="a client's memory"
        ),
        pytest.param(
            "lane", to_coordinator.Recall(Topology(1)), "Recall isn't", id="a lane's memory"
        ),
        pytest.param(
            "gateway",
            to_coordinator.EpochTooLow(ref("flights"), 3),
            "a gateway has nothing to do with flights:0",
            id="a gateway about a log partition",
        ),
        pytest.param(
            "ingest",
            to_coordinator.EpochTooLow(ref(RADAR), 3),
            "an ingest node has nothing to do with",
            id="an ingest node about a target",
        ),
        pytest.param(
            "gateway",
            to_coordinator.AckTopology(1, sealed=(to_coordinator.Sealed(ref("flights"), 1, 9),)),
            "a gateway opens, seals and drops no log partitions",
            id="a gateway that seals",
        ),
        pytest.param(
            "router",
            to_coordinator.AckTopology(1, undropped=("flights",)),
            "a router opens, seals and drops no log partitions",
            id="a router that drops",
        ),
        pytest.param(
            "ingest",
            to_coordinator.EpochTooLow(ref("flights"), LARGEST),
            "beyond what anybody can count to",
            id="an epoch without end",
        ),
        pytest.param(
            "ingest",
            to_coordinator.ConnectorTooLow("orders", LARGEST, 2),
            "beyond what anybody can count to",
            id="an epoch of a connector without end",
        ),
        pytest.param(
            "ingest",
            ConnectorReports((reported(taken=LARGEST),)),
            "counts further than anybody can",
            id="more changes than there can be",
        ),
        pytest.param(
            "ingest",
            ConnectorReports((reported(name="a/b"),)),
            "is no connector",
            id="no name of a connector",
        ),
        pytest.param("router", ConnectorReports(()), "ConnectorReports", id="who reads nothing"),
    ],
)
def test_what_nobody_can_mean_ends_the_stream_with_a_reason(
    role: SessionRole, message: to_coordinator.ToCoordinator, reason: str
) -> None:
    world = populated()
    session = world.join(role, f"{role}-2")
    before = repr(world.cluster)
    effects = world.cluster.received(session, message, world.now_ms + 1)
    assert reason in _refused(effects)
    assert repr(world.cluster) == before


def _refused(effects: list[Effect]) -> str:
    return "".join(
        effect.message.reason
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, from_coordinator.Refused)
    )


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        pytest.param(Topology(LARGEST), "beyond what anybody", id="without end"),
        pytest.param(Topology(9, (Topic("a/b", 1),)), "is not allowed", id="no name of a topic"),
        pytest.param(Topology(9, (Topic("a", 1 << 40),)), "1 to 1024", id="a huge topic"),
        pytest.param(Topology(9, (Topic("a", -1),)), "1 to 1024", id="less than nothing"),
        pytest.param(Topology(9, (TWICE, TWICE)), "twice", id="a topic twice"),
        pytest.param(Topology(9, nodes=(Node("", "router"),)), "without a name", id="nobody"),
        pytest.param(
            Topology(9, nodes=(Node("a", "router"), Node("a", "ingest"))), "twice", id="two nodes"
        ),
        pytest.param(
            Topology(9, sources=(Owner(ref("flights"), "", 1),)), "belong to nobody", id="no owner"
        ),
        pytest.param(
            Topology(9, deleted=("flights",), emptied=(Owner(ref("flights"), "i", 1),)),
            "it has an owner",
            id="left by a topic, and owned",
        ),
        pytest.param(
            Topology(9, emptied=(Owner(ref("flights"), "", 1),)),
            "it has an owner",
            id="not deleted",
        ),
        pytest.param(
            Topology(9, deleted=("flights",), emptied=(Owner(ref("flights"), "", LARGEST),)),
            "can't be flights:0 under epoch",
            id="a deletion without end",
        ),
        pytest.param(
            Topology(9, deleted=("a/b",), emptied=(Owner(ref("a/b"), "", 1),)),
            "is not allowed",
            id="a deletion of what can't be a topic",
        ),
        pytest.param(
            Topology(9, groups=(Group(RADAR, "flights", "radar", 1 << 40),)),
            f"1 to {MAX_TARGETS} targets",
            id="a huge group",
        ),
        pytest.param(
            Topology(9, groups=(Group("g", "flights", "radar", 1),)), "is called g", id="a name"
        ),
        pytest.param(
            Topology(9, targets=(Owner(ref("flights"), "c", 1),)), "of no group", id="no target"
        ),
        pytest.param(
            Topology(9, connectors=(ORDERS, ORDERS)), "a connector twice", id="a connector twice"
        ),
        pytest.param(
            Topology(9, connectors=(Connector("a/b", "mongodb", ORDERS.routes, {}),)),
            "is no connector",
            id="no name of a connector",
        ),
        pytest.param(
            Topology(9, connectors=(Connector("orders", "mongodb", (), {}),)),
            "without a route",
            id="a connector that leads nowhere",
        ),
        pytest.param(
            Topology(9, intakes=(Owner(ref("orders"), "ingest-1", LARGEST),)),
            "under epoch",
            id="an epoch of a connector",
        ),
    ],
)
def test_a_memory_that_contradicts_itself_is_not_taken_up(memory: Topology, reason: str) -> None:
    world = World(StoredState())
    session = world.open(hello(generation=9))
    before = repr(world.cluster)
    effects = world.cluster.received(session, to_coordinator.Recall(memory), world.now_ms)
    assert reason in _refused(effects)
    assert repr(world.cluster) == before


def digest(number: int = 1) -> str:
    return f"{number:064x}"


@pytest.mark.parametrize(
    ("tokens", "revision", "reason"),
    [
        pytest.param((), LARGEST, "which can't be", id="a revision without end"),
        pytest.param((), -1, "which can't be", id="a revision before the first"),
        pytest.param(
            (ApiToken("a", digest(1)), ApiToken("a", digest(2))), 1, "a token twice", id="twice"
        ),
        pytest.param(
            (ApiToken("a", digest()), ApiToken("b", digest())), 1, "two names", id="two names"
        ),
        pytest.param((ApiToken("a/b", digest()),), 1, "is no token", id="no name"),
        pytest.param((ApiToken("a", "hg_itself"),), 1, "is no token", id="no digest"),
        pytest.param((ApiToken("a", digest(), expires_ms=LARGEST),), 1, "is no token", id="no end"),
        pytest.param(
            (ApiToken("a", digest(), (Grant("read"),)),), 1, "can't be granted", id="no grant"
        ),
        pytest.param(
            (ApiToken("a", digest(), (Grant("subscribe", where="x =="),)),),
            1,
            "can't be granted",
            id="no filter",
        ),
    ],
)
def test_tokens_that_nobody_can_have_been_told_are_not_taken_up(
    tokens: tuple[ApiToken, ...], revision: int, reason: str
) -> None:
    world = World(StoredState())
    session = world.open(hello(generation=9))
    before = repr(world.cluster)
    recalled = to_coordinator.Recall(Topology(9), tokens, revision)
    effects = world.cluster.received(session, recalled, world.now_ms)
    assert reason in _refused(effects)
    assert repr(world.cluster) == before


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(
            {"known": Group("@group/flights/other", "flights", "other", 1)},
            "called @group/flights/other",
            id="known in another group",
        ),
        pytest.param({"known": Group("g", "flights", "radar", 1)}, "is called g", id="no group"),
        pytest.param(
            {"known": Group(RADAR, "flights", "radar", 1 << 40)}, "targets", id="a huge group"
        ),
        pytest.param(
            {"owns": (Owner(ref(RADAR), "c-1", 1),)}, "no target of group", id="of no group"
        ),
        pytest.param(
            {
                "known": Group(RADAR, "flights", "radar", 2),
                "owns": (Owner(ref(RADAR, 2), "c-1", 1),),
            },
            "@group/flights/radar:2 is no target",
            id="a target too many",
        ),
        pytest.param(
            {
                "known": Group(RADAR, "flights", "radar", 2),
                "owns": (Owner(ref(RADAR), "c-2", 1),),
            },
            "belong to c-2 by c-1",
            id="another's target",
        ),
    ],
)
@pytest.mark.parametrize("memory", [True, False], ids=["remembers", "forgot everything"])
def test_a_consumer_that_cannot_be_is_refused_alone(
    memory: bool, said: dict[str, Any], reason: str
) -> None:
    world = populated() if memory else forgetful()
    message = to_coordinator.JoinGroup(
        **{"topic": "flights", "group": "radar", "consumer": "c-1", "incarnation": "1", **said}
    )
    before = repr(world.cluster)
    world.say(GATEWAY, message)
    assert reason in world.last(GATEWAY, from_coordinator.RefuseConsumer).reason
    assert repr(world.cluster) == before
    assert not world.sent(GATEWAY, from_coordinator.Refused)


def test_what_was_never_published_counts_as_adopted_by_nobody() -> None:
    """A client may have fetched the topology of another coordinator from a gateway."""
    world = World(acks=False)
    gateway, router = world.join("gateway", "gateway-1"), world.join("router", "router-1")
    world.create("flights")
    world.say(gateway, to_coordinator.AckTopology(LARGEST))
    assert all(not a.sources for a in world.sent(router, from_coordinator.Assign))
    world.say(gateway, to_coordinator.AckTopology(world.cluster.generation))
    assert world.last(router, from_coordinator.Assign).sources


def test_a_lane_that_is_ahead_of_the_registry_does_not_raise_the_floor() -> None:
    world = populated()
    [lane] = world.cluster.lanes.by_session
    world.say(lane, to_coordinator.AckSubscriptions(LARGEST))
    assert world.cluster.registry.floor <= world.cluster.registry.revision


# --- anything at all ------------------------------------------------------------------------------

T = TypeVar("T")
ODDS = 10
CONSUMERS = ("c-1", "c-2")


def mostly(usual: Iterable[T], *odd: T) -> st.SearchStrategy[T]:
    """Something usual, or now and then something odd: most of what is odd is refused at once."""
    return st.integers(1, ODDS).flatmap(
        lambda n: st.sampled_from(odd if n == ODDS else tuple(usual))
    )


numbers = mostly((0, 1, 1, 2, 2, 3), -1, 1 << 40, NUMBERS_END - 1, NUMBERS_END, LARGEST)
names = mostly(("ingest-1", "router-1", "gateway-1", "node-9"), "", "x" * 300)
topics = mostly(("flights", "flights", "trains"), "", RADAR, "@group/")
refs = st.builds(PartitionRef, topics, mostly((0, 1, 2), -1, 1_023, 1 << 40))
targets = st.builds(PartitionRef, mostly((RADAR,), "flights"), mostly((0, 1, 2), -1, 1 << 40))


def owned_by(node_ids: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Owner, ...]]:
    owners = st.builds(Owner, st.one_of(refs, refs, targets), node_ids, numbers)
    return st.lists(owners, max_size=3).map(tuple)


many = owned_by(names)
groups = st.builds(
    Group,
    mostly((RADAR,), "g"),
    mostly(("flights",), "trains"),
    mostly(("radar",), "other"),
    mostly((1, 3), -1, 0, MAX_TARGETS, 1 << 40),
)
connectors = st.builds(
    Connector,
    mostly(("orders", "users"), "", "a/b"),
    st.just("mongodb"),
    mostly((ORDERS.routes,), ()),
    st.just({"uri": "mongodb://db-1"}),
    beginning=numbers,
    begun=st.booleans(),
)


def intakes_of(node_ids: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Owner, ...]]:
    of = st.builds(PartitionRef, mostly(("orders", "users"), "", "a/b"), mostly((0,), 1, -1))
    return st.lists(st.builds(Owner, of, node_ids, numbers), max_size=2).map(tuple)


topologies = st.builds(
    Topology,
    numbers,
    st.lists(st.builds(Topic, topics, mostly((1, 3), -1, 0, 1 << 40)), max_size=2).map(tuple),
    st.lists(
        st.builds(Node, names, st.sampled_from(("ingest", "router", "gateway"))), max_size=3
    ).map(tuple),
    many,
    many,
    st.lists(topics, max_size=1).map(tuple),
    st.lists(groups, max_size=2).map(tuple),
    st.lists(st.builds(Owner, targets, names, numbers), max_size=2).map(tuple),
    emptied=owned_by(mostly(("",), "router-1")),
    connectors=st.lists(connectors, max_size=2).map(tuple),
    intakes=intakes_of(mostly(("ingest-1", "", "node-9"), "router-1")),
)
subscriptions = st.builds(
    Subscription,
    st.sampled_from(("s1", "s2", "")),
    names,
    topics,
    ttl_ms=numbers,
    shard=st.none() | st.tuples(numbers, numbers),
    tenant=st.sampled_from(("", "t")),
)
hellos = names.flatmap(
    lambda node_id: st.builds(
        Hello,
        role=st.sampled_from(("ingest", "router", "gateway", "lane", "client")),
        node_id=st.just(node_id),
        incarnation=st.sampled_from(("a", "b")),
        window=numbers,
        attempt=numbers,
        assignment=numbers,
        owns=owned_by(mostly((node_id,), "", "router-1")),
        generation=numbers,
        revision=numbers,
        weight=mostly((1.0, 5.0), 0.0, 0.0005, float("nan"), 1e300),
        intakes=intakes_of(mostly((node_id,), "", "router-1")),
    )
)


def from_(session: int, *kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What somebody has to say, mostly by that one."""
    return st.tuples(mostly((session,), *range(1, 13)), st.one_of(*kinds))


somebody_speaks = st.one_of(
    from_(
        INGEST,
        st.builds(to_coordinator.CheckIn),
        st.builds(to_coordinator.Goodbye),
        st.builds(to_coordinator.AckTopology, numbers, st.lists(topics, max_size=2).map(tuple)),
        st.builds(to_coordinator.Recall, topologies),
        st.builds(to_coordinator.EpochTooLow, refs, numbers, numbers),
        st.builds(
            to_coordinator.ConnectorTooLow, mostly(("orders",), "users", ""), numbers, numbers
        ),
        st.builds(
            ConnectorReports,
            st.lists(
                st.builds(
                    ConnectorReport,
                    name=mostly(("orders",), "users", ""),
                    epoch=numbers,
                    state=st.sampled_from(("running", "stopped", "history-lost")),
                    begun=st.booleans(),
                    taken=numbers,
                    lag_ms=st.none() | numbers,
                ),
                max_size=2,
            ).map(tuple),
        ),
        st.builds(IngestReport, st.lists(st.tuples(refs, numbers), max_size=2).map(tuple)),
    ),
    from_(
        ROUTER,
        st.builds(to_coordinator.Recall, topologies),
        st.builds(RouterReport, mostly(("starting", "ready"), "?"), numbers, st.just(0.0)),
        st.builds(to_coordinator.EndMyWindow, numbers, st.just("why not")),
    ),
    from_(
        GATEWAY,
        st.builds(to_coordinator.Register, numbers, st.lists(subscriptions, max_size=3).map(tuple)),
        st.builds(to_coordinator.Unregister, numbers, st.just(("s1", "s3"))),
        st.builds(to_coordinator.RegistrationComplete),
        st.builds(GatewayReport, numbers, numbers, numbers),
        st.builds(to_coordinator.EpochTooLow, targets, numbers, numbers),
    ),
    from_(
        GATEWAY,
        st.builds(
            to_coordinator.JoinGroup,
            topic=mostly(("flights",), "trains", ""),
            group=mostly(("radar",), "other", "a/b"),
            consumer=mostly(CONSUMERS, ""),
            incarnation=mostly(("1",), "2"),
            keys=mostly((300,), -1, LARGEST),
            known=st.none() | groups,
            owns=st.lists(
                st.builds(Owner, targets, mostly(CONSUMERS, ""), numbers), max_size=2
            ).map(tuple),
        ),
        st.builds(
            to_coordinator.LeaveGroup,
            mostly((RADAR,), "g"),
            mostly(CONSUMERS, ""),
            mostly(("1",), "2"),
            st.booleans(),
        ),
        st.builds(to_coordinator.Released, many),
    ),
    from_(
        LANE,
        st.builds(to_coordinator.AckSubscriptions, numbers),
        st.builds(to_coordinator.Released, many),
        st.builds(
            LaneReport,
            partitions=st.lists(
                st.builds(PartitionReport, refs, numbers, numbers, numbers), max_size=2
            ).map(tuple),
            read=numbers,
            matched=numbers,
            delivered=numbers,
            filter_errors=numbers,
            cpu_s=mostly((0.0,), float("nan"), 1e300),
            links=st.lists(st.builds(GatewayLink, names, numbers), max_size=2).map(tuple),
        ),
    ),
)
steps = st.one_of(
    hellos,
    somebody_speaks,
    somebody_speaks,
    mostly((1_000, 6_000), 31_000),
    st.integers(INGEST, 12).map(str),
)
"""Somebody comes, somebody says something, time passes, or a stream breaks."""


@pytest.mark.parametrize("memory", [True, False], ids=["remembers", "forgot everything"])
@settings(max_examples=40, deadline=None)
@given(said=st.lists(steps, max_size=20))
def test_anybody_may_say_anything(memory: bool, said: list[Any]) -> None:
    """What is told and kept afterwards can be written down, and the next state is sound."""
    world = populated() if memory else forgetful()
    for step in said:
        if isinstance(step, Hello):
            world.open(step)
        elif isinstance(step, int):
            world.wait(step)
        elif isinstance(step, str):
            world.drop(int(step))
        else:
            world.say(*step)
    if world.cluster.learning.is_on:
        world.wait(61_000)
    world.create("ships", 3)
    for effect in world.effects:
        if isinstance(effect, Send):
            encode(effect.message)
        elif isinstance(effect, Persist):
            json.loads(msgspec.json.encode(effect.state))
