"""What a producer knows of where its events go, as one immutable value.

The topology of the coordinator makes it, a redirect of an owner mends one topic of it. Invariants:
a topology older than the one it was made from changes nothing and is not acknowledged; what is
routed under one `TopicRoute` always sends a key to the same node, so a producer that keeps one
request per node under way, and lets everything land before it takes up another `TopicRoute`, keeps
the order of every key. A topic whose route did not change keeps the very same object.

Never guesses: what isn't known goes to the public address, which forwards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headgate.decide.produce import homes
from headgate.decide.produce.placement import partition_of
from headgate.model.topology import Placement, Topology

PUBLIC_ADDRESS = ""
"""Stands for the public address where an owner's would be."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """`owners` has the address of each partition's owner, PUBLIC_ADDRESS where none is known."""

    placement: Placement
    version: int
    owners: tuple[str, ...]

    @property
    def partitions(self) -> int:
        return len(self.owners)


@dataclass(frozen=True, slots=True)
class RoutingCache:
    """`generation` 0 is the cold cache, which knows nothing.

    With a generation but no topics it is that of a standalone node: every topic has partition 0.
    """

    generation: int = 0
    topics: Mapping[str, TopicRoute] = field(default_factory=dict)

    @property
    def is_cold(self) -> bool:
        return self.generation == 0

    def addresses(self) -> frozenset[str]:
        owners = {url for route in self.topics.values() for url in route.owners}
        return frozenset(owners - {PUBLIC_ADDRESS})


@dataclass(frozen=True, slots=True)
class Applied:
    """The new cache, the addresses that own nothing any more, and the generation to acknowledge
    once both took effect (None: the topology was an old one)."""

    cache: RoutingCache
    departed: frozenset[str] = frozenset()
    acknowledge: int | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an event goes. `version` is what a keyed produce to its owner carries."""

    url: str = PUBLIC_ADDRESS
    partition: int | None = None
    version: int | None = None


def apply(cache: RoutingCache, topology: Topology) -> Applied:
    """Replace what is known by `topology`, unless that is older."""
    if topology.generation < cache.generation:
        return Applied(cache)
    if topology.generation == cache.generation:
        return Applied(cache, acknowledge=cache.generation)
    made = RoutingCache(topology.generation, _routes(cache, topology))
    return Applied(made, cache.addresses() - made.addresses(), topology.generation)


def _routes(cache: RoutingCache, topology: Topology) -> dict[str, TopicRoute]:
    if not topology.logs:
        return {}
    urls = {node.id: node.url for node in topology.nodes}
    owner_urls = {owner.ref: urls.get(owner.node_id, "") for owner in topology.logs}
    routes: dict[str, TopicRoute] = {}
    for topic in topology.topics:
        owners = tuple(owner_urls.get(ref, PUBLIC_ADDRESS) for ref in topic.refs())
        made = TopicRoute(topic.placement, topic.version, owners)
        known = cache.topics.get(topic.name)
        routes[topic.name] = known if known == made and known is not None else made
    return routes


def redirected(
    cache: RoutingCache, topic: str, *, version: int, owners: tuple[str, ...]
) -> Applied:
    """What an owner said about `topic`; nothing changes when it knows less than the cache."""
    known = cache.topics.get(topic)
    if not owners or (known is not None and version < known.version):
        return Applied(cache)
    made = TopicRoute("keyed", version, owners)
    if made == known:
        return Applied(cache)
    mended = replace(cache, topics={**cache.topics, topic: made})
    return Applied(mended, cache.addresses() - mended.addresses())


def route(
    cache: RoutingCache,
    topic: str,
    *,
    key: str,
    collection: str,
) -> Destination:
    """The target of one event; `key` is its routing key (see `placement.routing_key`), which is its
    id on an opportunistic topic."""
    known = cache.topics.get(topic)
    if known is None:
        standalone = not cache.is_cold and not cache.topics
        return Destination(partition=0 if standalone else None)
    if known.placement == "opportunistic":
        return Destination(homes.home(set(known.owners) - {PUBLIC_ADDRESS}, key) or PUBLIC_ADDRESS)
    partition = partition_of(key, collection=collection, count=known.partitions)
    url = known.owners[partition]
    return Destination(url, partition, None if url == PUBLIC_ADDRESS else known.version)
