"""Where a producer's events go: topologies, redirects, and the way of each event."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.produce.passing_on import by_request
from headgate.decide.produce.placement import partition_of
from headgate.decide.produce.routing_cache import (
    Applied,
    Destination,
    RoutingCache,
    TopicRoute,
    apply,
    redirected,
    route,
)
from headgate.model.event import PartitionRef
from headgate.model.topology import Node, Owner, Placement, Topic, Topology


def topology(
    generation: int,
    owners: Sequence[str],
    *,
    version: int = 1,
    placement: Placement = "keyed",
    topic: str = "t",
) -> Topology:
    """One topic; `owners` are the ids of its partitions' owners, whose address is http://ID."""
    return Topology(
        generation,
        (Topic(topic, len(owners), placement, version),),
        tuple(Node(node_id, "ingest", f"http://{node_id}") for node_id in sorted(set(owners))),
        tuple(Owner(PartitionRef(topic, n), node_id, 1) for n, node_id in enumerate(owners)),
    )


def target(cache: RoutingCache, key: str) -> Destination:
    return route(cache, "t", key=key, collection="c")


# --- topologies ----------------------------------------------------------------------------------


def test_a_topology_names_the_owner_of_every_partition() -> None:
    applied = apply(RoutingCache(), topology(7, ["a", "b", "a"], version=3))
    assert applied.acknowledge == 7
    assert applied.cache.topics == {
        "t": TopicRoute("keyed", 3, ("http://a", "http://b", "http://a"))
    }


def test_an_older_topology_changes_nothing_and_is_not_acknowledged() -> None:
    cache = apply(RoutingCache(), topology(7, ["a"])).cache
    assert apply(cache, topology(6, ["b"])) == Applied(cache)


def test_the_same_generation_is_acknowledged_again_and_changes_nothing() -> None:
    cache = apply(RoutingCache(), topology(7, ["a"])).cache
    applied = apply(cache, topology(7, ["a"]))
    assert (applied.cache is cache, applied.acknowledge) == (True, 7)


def test_who_owns_nothing_any_more_has_departed() -> None:
    cache = apply(RoutingCache(), topology(1, ["a", "b"])).cache
    assert apply(cache, topology(2, ["b", "c"])).departed == {"http://a"}


def test_a_topic_whose_route_is_the_same_keeps_the_same_object() -> None:
    cache = apply(RoutingCache(), topology(1, ["a", "b"])).cache
    assert apply(cache, topology(2, ["a", "b"])).cache.topics["t"] is cache.topics["t"]


def test_a_partition_whose_owner_is_not_known_goes_through_the_public_address() -> None:
    known = topology(1, ["a"])
    nobody = Topology(1, known.topics, (), known.logs)
    assert target(apply(RoutingCache(), nobody).cache, "k") == Destination("", 0, None)


# --- redirects -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "owners", "changes"),
    [
        (3, ("http://a", "http://b"), True),
        (2, ("http://b",), True),
        (2, ("http://a",), False),
        (1, ("http://b",), False),
        (3, (), False),
    ],
    ids=["newer version", "moved", "nothing new", "knows less", "says nothing"],
)
def test_a_redirect_mends_the_topic_unless_it_knows_less(
    version: int, owners: tuple[str, ...], changes: bool
) -> None:
    cache = apply(RoutingCache(), topology(5, ["a"], version=2)).cache
    applied = redirected(cache, "t", version=version, owners=owners)
    assert (applied.cache is not cache) == changes
    if changes:
        assert applied.cache.topics["t"] == TopicRoute("keyed", version, owners)
        assert applied.cache.generation == 5
        assert applied.acknowledge is None


# --- the way of an event -------------------------------------------------------------------------


def test_a_cold_cache_sends_everything_to_the_public_address() -> None:
    assert target(RoutingCache(), "k") == Destination("", None, None)


def test_standalone_means_partition_0_through_the_public_address() -> None:
    cache = apply(RoutingCache(), Topology(3)).cache
    assert target(cache, "k") == Destination("", 0, None)


def test_a_topic_that_is_not_known_yet_goes_through_the_public_address() -> None:
    cache = apply(RoutingCache(), topology(1, ["a"], topic="other")).cache
    assert target(cache, "k") == Destination("", None, None)


def test_opportunistic_events_go_where_a_gateway_would_send_them() -> None:
    urls = ["http://a", "http://b", "http://c"]
    cache = apply(
        RoutingCache(), topology(1, ["b", "a", "c", "b"], placement="opportunistic")
    ).cache
    for number in range(50):
        body = b'{"events":[{"document":{},"event_id":"e%d"}]}' % number
        assert target(cache, f"e{number}") == Destination(by_request(urls, body, 0)[0], None, None)


def test_opportunistic_events_without_an_owner_go_through_the_public_address() -> None:
    cache = apply(
        RoutingCache(),
        Topology(
            1, (Topic("t", 1, "opportunistic"),), (), (Owner(PartitionRef("t", 0), "gone", 1),)
        ),
    ).cache
    assert target(cache, "k") == Destination("", None, None)


nodes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)
topologies = st.builds(
    topology, st.integers(1, 8), nodes, version=st.integers(1, 4), placement=st.just("keyed")
)


@given(st.lists(topologies, max_size=8), st.text(max_size=5))
def test_any_order_of_pushes_ends_at_the_newest(pushes: list[Topology], key: str) -> None:
    cache = RoutingCache()
    newest: Topology | None = None
    for push in pushes:
        applied = apply(cache, push)
        is_news = newest is None or push.generation > newest.generation
        if is_news:
            newest = push
        assert newest is not None
        assert applied.departed == cache.addresses() - applied.cache.addresses()
        assert (applied.acknowledge is None) == (push.generation < newest.generation)
        assert applied.cache.generation >= cache.generation
        cache = applied.cache
    if newest is not None:
        number = partition_of(key, collection="c", count=newest.topics[0].partitions)
        owner = next(one.node_id for one in newest.logs if one.ref.partition == number)
        assert target(cache, key) == Destination(
            f"http://{owner}", number, newest.topics[0].version
        )
