"""The members and what each of them owns, as one immutable value with a generation.

Invariant: a node applies a topology before it acknowledges its generation, and ignores older ones.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.connector import Connector
from headgate.model.event import PartitionRef
from headgate.model.groups import Group

Placement = Literal["keyed", "opportunistic"]
Role = Literal["coordinator", "ingest", "router", "gateway"]
RepartitionPhase = Literal["announced", "sealing", "fenced", "draining", "drained"]


class FormerVersion(msgspec.Struct, frozen=True, array_like=True):
    """How a topic was partitioned before: of its records, those of this version are, in each
    partition, behind the seq in `after` and up to that in `last`."""

    version: int
    after: tuple[int, ...]
    last: tuple[int, ...]


class Repartition(msgspec.Struct, frozen=True):
    """A topic on its way to another number of partitions, `to`; `since` is the generation in which
    it came to its `phase` (decide.coordination.topics.repartitions has the table)."""

    to: int
    phase: RepartitionPhase
    since: int


class Topic(msgspec.Struct, frozen=True):
    """`version` is the partitioning version that keyed produces are routed under. It begins, in
    each partition, behind the seq in `after`; empty is that of the first version, which begins with
    the log. `former` versions are kept, the oldest first, for as long as the log has something of
    them. Partitions from `original` on came later, each behind the seq in `begins`; a number stays,
    whether records are appended to it or not. (0: it has had one version only.)"""

    name: str
    partitions: int
    placement: Placement = "keyed"
    version: int = 1
    after: tuple[int, ...] = ()
    former: tuple[FormerVersion, ...] = ()
    original: int = 0
    begins: tuple[int, ...] = ()
    repartition: Repartition | None = None

    def refs(self) -> list[PartitionRef]:
        """Those that records are appended to."""
        return [PartitionRef(self.name, number) for number in range(self.partitions)]

    def all_refs(self) -> list[PartitionRef]:
        """Those that have or had records, or will: of every version there was, and of the one to
        come."""
        to_come = self.repartition.to if self.repartition is not None else 0
        most = max(self.partitions, to_come, self.original + len(self.begins))
        return [PartitionRef(self.name, number) for number in range(most)]


class Node(msgspec.Struct, frozen=True):
    """A member and where it can be reached: `url` over HTTP (of a gateway: by lanes), `ws_url` and
    `public_url` by subscribers, over WebSocket and HTTP. `incarnation` is the process that has said
    so: another one may answer at its address (empty from an older coordinator)."""

    id: str
    role: Role
    url: str = ""
    ws_url: str = ""
    pid: int = 0
    public_url: str = ""
    incarnation: str = ""


class Owner(msgspec.Struct, frozen=True):
    """The node that owns a partition, under an epoch; of a group's target it is the consumer."""

    ref: PartitionRef
    node_id: str
    epoch: int


class Move(msgspec.Struct, frozen=True):
    """A partition on its way from one node to another."""

    ref: PartitionRef
    from_id: str
    to_id: str


class GatewayRing(msgspec.Struct, frozen=True):
    """The gateways that subscribers are spread over by the hash of their ids, in order, and those
    of them that are at their bound: with these a subscriber is placed."""

    gateways: tuple[str, ...] = ()
    full: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """`logs` are log partitions at ingest nodes; `sources` are the same partitions at routers;
    `targets` are those of the consumer `groups` at their consumers.

    `deleted` names topics that were deleted, and `emptied` are their log partitions, which nobody
    owns, under the epochs that their deletion took: ingest nodes drop their records. A topic that
    is merely absent keeps its files, so that a coordinator without state can't destroy data.
    Without a `ring`, subscribers stay where they connect. `intakes` says which ingest node reads
    each of the `connectors`, under which epoch (with an empty owner: nobody at the moment); the ref
    there is partition 0 of the connector's name.
    """

    generation: int
    topics: tuple[Topic, ...] = ()
    nodes: tuple[Node, ...] = ()
    logs: tuple[Owner, ...] = ()
    sources: tuple[Owner, ...] = ()
    deleted: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    targets: tuple[Owner, ...] = ()
    ring: GatewayRing | None = None
    emptied: tuple[Owner, ...] = ()
    connectors: tuple[Connector, ...] = ()
    intakes: tuple[Owner, ...] = ()

    def topic(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)

    def node(self, node_id: str) -> Node | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def of_role(self, role: Role) -> list[Node]:
        return [node for node in self.nodes if node.role == role]
