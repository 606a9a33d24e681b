"""Everything the coordinator knows, and the questions the decisions ask of it.

Only the modules beside this one change it, and only in the course of one event, most on a copy that
takes its place then (drafts.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.decide.coordination.connectors.heard import Heard
from headgate.decide.coordination.groups.groups import Groups
from headgate.decide.coordination.lanes.lane_totals import LaneTotals
from headgate.decide.coordination.lanes.lanes import Lanes
from headgate.decide.coordination.lanes.window_ends import WindowEnds
from headgate.decide.coordination.members.learning import Learning
from headgate.decide.coordination.members.members import Balance, Member, Timing
from headgate.decide.coordination.registry.quotas import Quotas
from headgate.decide.coordination.registry.registry import REVISIONS_PER_BOOT, Registry
from headgate.decide.coordination.remembered import fitting
from headgate.decide.coordination.sources.handoffs import Handoffs
from headgate.decide.coordination.sources.ownership import NOBODY, Ownership
from headgate.decide.coordination.sources.resets import Resets
from headgate.decide.coordination.topics import publishing
from headgate.decide.coordination.topics.publishing import Client, Publication
from headgate.decide.coordination.topics.repartitions import Repartitions
from headgate.decide.coordination.views.rates import Meter
from headgate.decide.planning.gateway_ring import ring_of
from headgate.model.access import ApiToken
from headgate.model.connector import Connector
from headgate.model.control.from_coordinator import PushTopology
from headgate.model.control.to_coordinator import SessionRole
from headgate.model.event import PartitionRef
from headgate.model.stored import KeptGateway, ReadAgain, StoredState
from headgate.model.topology import GatewayRing, Node, Owner, Role, Topic, Topology


@dataclass(slots=True)
class State:
    stored: StoredState
    timing: Timing
    coordinator_id: str
    started_ms: int
    balance: Balance = field(default_factory=Balance)
    quotas: Quotas = field(default_factory=Quotas)
    url: str = ""
    topics: dict[str, Topic] = field(init=False)
    deleted: set[str] = field(init=False)
    deleted_at: dict[str, int] = field(init=False)
    """Per deleted topic the generation by which its ingest nodes know."""
    swept: set[str] = field(default_factory=set)
    """The deleted topics of which nothing was left in the stores when their letters were swept."""
    members: dict[str, Member] = field(default_factory=dict)
    expected: dict[str, Node] = field(init=False)
    """Members from before a restart of the coordinator that haven't said hello again."""
    draining: set[str] = field(init=False)
    lapses: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By node, when its partitions went to others because its connection was gone (grace.py)."""
    clients: dict[int, Client] = field(default_factory=dict)
    sessions: dict[int, tuple[SessionRole, str]] = field(default_factory=dict)
    """Role and node id of every session that isn't a client's."""
    seen_roles: set[str] = field(default_factory=set)
    """Those of which a node was ever there."""
    lanes: Lanes = field(default_factory=Lanes)
    lane_totals: LaneTotals = field(default_factory=LaneTotals)
    window_ends: WindowEnds = field(default_factory=WindowEnds)
    heads: dict[PartitionRef, int] = field(default_factory=dict)
    earliest: dict[PartitionRef, int] = field(default_factory=dict)
    """The first record that the log still has, of topics that were repartitioned."""
    growth: dict[PartitionRef, Meter] = field(default_factory=dict)
    """How fast the heads grow."""
    settling: dict[PartitionRef, Meter] = field(default_factory=dict)
    """How fast the positions do."""
    logs: Ownership = field(init=False)
    sources: Ownership = field(init=False)
    handoffs: Handoffs = field(init=False)
    groups: Groups = field(init=False)
    """The consumer groups, with the targets that their consumers own."""
    connectors: dict[str, Connector] = field(init=False)
    intakes: Ownership = field(init=False)
    """Which ingest node reads each connector; there is a row for every one (intakes.py)."""
    heard: dict[str, Heard] = field(default_factory=dict)
    """What the readers of connectors said last."""
    tokens: dict[str, ApiToken] = field(init=False)
    tokens_revision: int = field(init=False)
    registry: Registry = field(init=False)
    learning: Learning = field(init=False)
    out: Publication = field(
        init=False, default_factory=lambda: Publication(PushTopology(Topology(0)))
    )
    unassigned: dict[str, int] = field(default_factory=dict)
    """Router whose assignment changed, with the generation its gateways must adopt first."""
    unfenced: dict[PartitionRef, Owner] = field(init=False)
    """Source partitions whose checkpoint isn't known to be claimed under their epoch yet."""
    unclaimed: dict[PartitionRef, str] = field(default_factory=dict)
    """The partitions of `unfenced` that couldn't be claimed when it was tried, and why: nothing
    waits for them, and no lane reads them."""
    again_from: dict[PartitionRef, int] = field(init=False)
    """Those of `unclaimed` that a lane may read on which can't be stopped or heard, each with where
    its log ended when that began: subscribers are told "subscribed" all the same, so whatever was
    settled after it is read again."""
    resets: Resets = field(init=False)
    """Where operators want positions to be."""
    repartitions: Repartitions = field(default_factory=Repartitions)
    """How far topics are that get another number of partitions."""
    fence_at_ms: int = 0
    """When to ask again for those."""
    plan_at_ms: int = field(init=False)

    def __post_init__(self) -> None:
        stored, now_ms = fitting(self.stored), self.started_ms
        self.expected = {node.id: node for node in stored.nodes}
        self.topics = {topic.name: topic for topic in stored.topics}
        self.deleted = set(stored.deleted)
        self.draining = set(stored.draining)
        self.logs = Ownership.of(stored.logs, above=stored.above)
        self.sources = Ownership.of(stored.sources, above=stored.above)
        self.handoffs = Handoffs.of(stored.moves, now_ms)
        self.resets = Resets.of(stored.resets, now_ms)
        owners = self.sources.owners
        self.again_from = {one.ref: one.after_seq for one in stored.again if one.ref in owners}
        awaited = (*self.resets.putting, *self.again_from)
        self.unfenced = {ref: owners[ref] for ref in awaited if ref in owners}
        self.groups = Groups.of(stored, now_ms)
        self.connectors = {one.name: one for one in stored.connectors}
        self.intakes = Ownership.of(stored.intakes, above=stored.above)
        self.tokens = {token.name: token for token in stored.tokens}
        self.tokens_revision = stored.tokens_revision
        self.registry = Registry(stored.boot, set(stored.gateways), self.quotas)
        self.registry.kept.update((k.gateway_id, k.incarnation) for k in stored.kept)
        # A store that has never seen a topic may have been lost, also if nodes have joined since.
        before = stored.topics, stored.deleted, stored.logs, stored.above, stored.connectors
        self.learning = Learning(may_begin=not any(before))
        if stored.learning:
            self.learn(now_ms)
        self.plan_at_ms = now_ms + self.timing.rebalance_ms
        generation = stored.boot * REVISIONS_PER_BOOT + 1
        self.deleted_at = dict.fromkeys(self.deleted, generation)
        self.out = Publication(PushTopology(self.described(generation)))
        # What nobody owns may be read all the same: by a lane that outlived its router.
        known = [ref for ref in self.refs() if ref in self.sources.owners]
        suspects = {*known, *(owner.ref for owner in self.sources.owned())}
        self.lanes.suspect_all(suspects, now_ms=now_ms)

    def learn(self, now_ms: int) -> None:
        """From now on, until it is over, believe what nodes say."""
        self.learning.begin(now_ms + self.timing.learn_for_ms)
        self.registry.lost = True

    # --- who is there --------------------------------------------------------------------------

    def member_of(self, session: int) -> Member | None:
        _, node_id = self.sessions.get(session, (None, ""))
        member = self.members.get(node_id)
        return member if member is not None and member.session == session else None

    def of_role(self, role: Role) -> list[Member]:
        return [m for _, m in sorted(self.members.items()) if m.hello.role == role]

    def sessions_of(self, role: SessionRole) -> list[int]:
        if role == "client":
            return list(self.clients)
        return [session for session, (of, _) in self.sessions.items() if of == role]

    def nodes(self) -> tuple[Node, ...]:
        known = {**self.expected, **{i: m.node() for i, m in self.members.items()}}
        return tuple(known[node_id] for node_id in sorted(known))

    def has_adopted(self, member: Member, generation: int) -> bool:
        return self.out.adopted(member.hello.role, member.generation) >= generation

    # --- what there is -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self.out.topology.generation

    def topology(self) -> Topology:
        return self.out.topology

    def described(self, generation: int) -> Topology:
        """Everything as it is now, as the topology of `generation`."""
        return Topology(
            generation,
            tuple(self.topics[name] for name in sorted(self.topics)),
            self.nodes(),
            self.logs.owned(),
            self.sources.owned(),
            tuple(sorted(self.deleted)),
            self.groups.all(),
            self.groups.targets.owned(),
            self.ring(),
            self.emptied(),
            tuple(self.connectors[name] for name in sorted(self.connectors)),
            # A coordinator that learns may know a connector's reader before it knows the connector.
            tuple(o for o in self.intakes.all() if o.ref.topic in self.connectors),
        )

    def emptied(self) -> tuple[Owner, ...]:
        """The log partitions of deleted topics, under the epochs that their deletion took."""
        return tuple(o for o in self.logs.of_node(NOBODY) if o.ref.topic in self.deleted)

    def ring(self) -> GatewayRing | None:
        """The gateways that subscribers are spread over, as they are now."""
        if not self.balance.places_subscribers:
            return None
        gateways = [node.id for node in self.nodes() if node.role == "gateway"]
        counts = {gateway_id: self.registry.count(gateway_id) for gateway_id in gateways}
        return ring_of(counts, self.topology().ring)

    def is_dropped(self, name: str) -> bool:
        """False while an ingest node may still hold records of a deleted topic of this name.

        A node that is down would otherwise come back to a new topic with the old one's records.
        """
        if name not in self.deleted:
            return True
        if any(node.role == "ingest" for node in self.expected.values()):
            return False
        nodes, known_at = self.of_role("ingest"), self.deleted_at[name]
        return bool(nodes) and all(
            m.session is not None and self.has_adopted(m, known_at) and name not in m.undropped
            for m in nodes
        )

    def logs_adopted(self, topic: Topic) -> bool:
        """True when every log partition of `topic` has an owner that knows it, and serves it."""
        return all(
            (owner := self.logs.owners.get(ref)) is not None
            and (member := self.members.get(owner.node_id)) is not None
            and self.has_adopted(member, self.generation)
            and ref not in member.unopened
            for ref in topic.refs()
        )

    def refs(self) -> list[PartitionRef]:
        """Every partition that has owners, or should."""
        return [ref for topic in self.topics.values() for ref in topic.all_refs()]

    def tables(self) -> tuple[Ownership, ...]:
        """All in which epochs are given out."""
        return self.logs, self.sources, self.groups.targets, self.intakes

    def adoption_floor(self, topic: str) -> int:
        """The oldest generation by which an ingest node or client routes `topic`; 0: none does."""
        nodes = [m.generation for m in self.of_role("ingest") if m.session is not None]
        return publishing.floor(topic, self.clients.values(), nodes, self.out)

    def to_store(self) -> StoredState:
        gateways = {*(m.hello.node_id for m in self.of_role("gateway")), *self.registry.awaited}
        return StoredState(
            boot=self.stored.boot,
            above=max(one.above for one in self.tables()),
            kept=tuple(KeptGateway(*one) for one in sorted(self.registry.kept.items())),
            topics=tuple(self.topics[name] for name in sorted(self.topics)),
            deleted=tuple(sorted(self.deleted)),
            logs=self.logs.all(),
            sources=self.sources.all(),
            gateways=tuple(sorted(gateways)),
            nodes=self.nodes(),
            moves=self.handoffs.moves(),
            draining=tuple(sorted(self.draining)),
            learning=self.learning.is_on,
            groups=self.groups.all(),
            targets=self.groups.targets.all(),
            target_moves=self.groups.handoffs.moves(),
            resets=self.resets.all(),
            again=tuple(ReadAgain(*one) for one in sorted(self.again_from.items())),
            intakes=self.intakes.all(),
            connectors=tuple(self.connectors[name] for name in sorted(self.connectors)),
            tokens=tuple(self.tokens[name] for name in sorted(self.tokens)),
            tokens_revision=self.tokens_revision,
        )
