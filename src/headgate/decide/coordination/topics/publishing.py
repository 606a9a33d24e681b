"""Which topology is out, who must hear of a change, and who has adopted it.

Everybody gets the whole topology, but only when the part that its role acts on has changed. The
generation moves with every change; a member that acknowledged the last one that concerned its role
has adopted all that came since.

Invariant: generations only grow, and nobody counts as having adopted what it wasn't sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headgate.model.control.from_coordinator import PushTopology
from headgate.model.control.to_coordinator import SessionRole
from headgate.model.topology import Role, Topic, Topology

ROLES: tuple[SessionRole, ...] = ("ingest", "router", "gateway", "lane", "client")


@dataclass(slots=True)
class Publication:
    """`message` is pushed to every member; one value for all, so that it is encoded once."""

    message: PushTopology
    _content: dict[SessionRole, object] = field(init=False)
    _changed_at: dict[SessionRole, int] = field(init=False)

    def __post_init__(self) -> None:
        topology = self.message.topology
        self._content = {role: _content(role, topology) for role in ROLES}
        self._changed_at = dict.fromkeys(ROLES, topology.generation)

    @property
    def topology(self) -> Topology:
        return self.message.topology

    def publish(self, topology: Topology, *, to_all: bool = False) -> Collection[SessionRole]:
        """Replace what is out by a newer generation; returns the roles that must hear of it."""
        assert topology.generation > self.topology.generation, "generations only grow"
        self.message = PushTopology(topology)
        concerned = []
        for role in ROLES:
            content = _content(role, topology)
            if to_all or content != self._content[role]:
                self._content[role] = content
                self._changed_at[role] = topology.generation
                concerned.append(role)
        return concerned

    def adopted(self, role: SessionRole, acknowledged: int) -> int:
        """The newest generation whose content a member that acknowledged that one has."""
        if acknowledged >= self._changed_at[role]:
            return self.topology.generation
        return acknowledged


def _content(role: SessionRole, topology: Topology) -> object:
    """The part of a topology that makes a difference to `role`."""
    match role:
        case "client":
            return _routed(topology), topology.logs, _addresses(topology, "ingest")
        case "ingest":
            own = topology.topics, topology.logs, _addresses(topology, "ingest"), topology.emptied
            return own, topology.connectors, topology.intakes
        case "gateway":
            known = topology.topics, topology.sources, _addresses(topology, "ingest")
            return known, topology.ring, _doors(topology)
        case "lane":
            return _processes(topology), topology.ring, _repartitioned(topology)
        case "router":
            # A router's partitions come with its assignment. There are few routers, so they hear of
            # all the rest too, and remember it for a coordinator that has lost its own memory.
            everything = topology.topics, topology.nodes, topology.logs, topology.sources
            gone = topology.deleted, topology.emptied
            shared = topology.groups, topology.targets
            return everything, gone, shared, topology.connectors, topology.intakes


def _routed(topology: Topology) -> tuple[tuple[str, int, str, int], ...]:
    """What produces are routed by."""
    topics = topology.topics
    return tuple((one.name, one.partitions, one.placement, one.version) for one in topics)


def _repartitioned(topology: Topology) -> tuple[Topic, ...]:
    """The topics of which a lane must know in which order their partitions are read."""
    return tuple(one for one in topology.topics if one.former or one.repartition is not None)


def _addresses(topology: Topology, role: Role) -> tuple[tuple[str, str], ...]:
    return tuple((node.id, node.url) for node in topology.of_role(role))


def _processes(topology: Topology) -> tuple[tuple[str, str, str], ...]:
    """Which process of each gateway takes deliveries, and where."""
    gateways = topology.of_role("gateway")
    return tuple((node.id, node.url, node.incarnation) for node in gateways)


def _doors(topology: Topology) -> tuple[tuple[str, str, str], ...]:
    """Where gateways send subscribers to, where they do."""
    if topology.ring is None:
        return ()
    gateways = topology.of_role("gateway")
    return tuple((node.id, node.ws_url, node.public_url) for node in gateways)


@dataclass(slots=True)
class Client:
    """A producer's stream: the generation that it has acknowledged, and the topics that it routes
    by it.

    A producer that comes back may route any topic (None) by its former generation, until it says
    more.
    """

    seen_ms: int
    generation: int = 0
    topics: tuple[str, ...] | None = None

    def routes(self, topic: str) -> bool:
        """Does it send to `topic`, as far as anybody knows?"""
        return bool(self.generation) and (self.topics is None or topic in self.topics)


def floor(topic: str, clients: Iterable[Client], nodes: Iterable[int], out: Publication) -> int:
    """The oldest generation by which an ingest node or client routes `topic`; 0 when none has
    acknowledged one.

    `nodes` are the acknowledged generations of the live ingest nodes, which all route every topic.
    """
    adopted = [out.adopted("ingest", generation) for generation in nodes]
    adopted += [
        out.adopted("client", client.generation) for client in clients if client.routes(topic)
    ]
    return min(adopted, default=0)
