"""Whose turn a request of an opportunistic topic is, as this node knows the topology, and since
when that is so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headgate.decide.produce import homes
from headgate.model.topology import Topic
from headgate.services.ingest.partitions import Partitions


@dataclass(frozen=True, slots=True)
class _Takers:
    """The owner of each partition, the addresses of these, and since when it is they."""

    owners: tuple[str, ...]
    urls: frozenset[str]
    since_s: float


class Homes:
    def __init__(self, partitions: Partitions, *, node_id: str) -> None:
        self._partitions = partitions
        self._node_id = node_id
        self._generation = 0
        self._own_url = ""
        self._takers: dict[str, _Takers] = {}

    def elsewhere(self, topic: Topic, first_id: str) -> str:
        """The address of the other node that takes requests which begin with `first_id`; empty when
        that is this one, or none is known."""
        url = homes.home(self._of(topic).urls, first_id)
        return "" if url == self._own_url else url

    def since_s(self, topic: Topic) -> float:
        """Since when every partition of `topic` has had the owner that it has."""
        return self._of(topic).since_s

    def _of(self, topic: Topic) -> _Takers:
        self.take_up()
        return self._takers[topic.name]

    def take_up(self) -> None:
        """Take the owners from the topology, if it is new."""
        topology = self._partitions.topology
        if topology.generation == self._generation:
            return
        self._generation = topology.generation
        urls = {node.id: node.url for node in topology.nodes}
        self._own_url = urls.get(self._node_id, "")
        owners = {owner.ref: owner.node_id for owner in topology.logs}
        known, now_s = self._takers, asyncio.get_running_loop().time()
        self._takers = {}
        for topic in topology.topics:
            names = tuple(owners.get(ref, "") for ref in topic.all_refs())
            before = known.get(topic.name)
            if before is not None and before.owners == names:
                now_known = before
            else:
                found = frozenset(urls.get(name, "") for name in names if name) - {""}
                now_known = _Takers(names, found, now_s)
            self._takers[topic.name] = now_known
