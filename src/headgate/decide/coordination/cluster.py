"""The coordinator's mind: sessions, topics and reports in, effects out.

Pure: no clock, no I/O, no log. The shell feeds it what happened together with the time (monotonic
milliseconds) and carries out the effects in order: what must be durable comes before what tells
anybody about it.

Invariants:
- epochs, generations and revisions only grow;
- a router hears of a new epoch only after the checkpoint is fenced and every live gateway has
  adopted that epoch, so that nothing of a former owner can count any more;
- the adoption floor never passes the revision of a lane that may still be reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Hang, Persist, Send
from headgate.decide.coordination.lanes import Lanes
from headgate.decide.coordination.members import Member, Timing
from headgate.decide.coordination.ownership import NOBODY, Ownership
from headgate.decide.coordination.registry import REVISIONS_PER_BOOT, Registry
from headgate.decide.coordination.topic_rules import check_new_topic
from headgate.decide.coordination.window_ends import WindowEnds
from headgate.errors import NotNow, UnknownTopic
from headgate.model import control
from headgate.model.control import Hello
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredState
from headgate.model.topology import Node, Owner, Placement, Topic, Topology

ABSENCE_MS = 3_000
"""A longer time between two ticks means that the coordinator itself stood still."""


@dataclass(slots=True)
class Cluster:
    stored: StoredState
    timing: Timing
    coordinator_id: str
    started_ms: int
    topics: dict[str, Topic] = field(init=False)
    deleted: set[str] = field(init=False)
    members: dict[str, Member] = field(default_factory=dict)
    expected: dict[str, Node] = field(init=False)
    """Members from before a restart of the coordinator that haven't said hello again."""
    lanes: Lanes = field(default_factory=Lanes)
    heads: dict[PartitionRef, int] = field(default_factory=dict)
    logs: Ownership = field(init=False)
    sources: Ownership = field(init=False)
    registry: Registry = field(init=False)
    generation: int = field(init=False)
    _deleted_at: dict[str, int] = field(init=False)
    """Per deleted topic the generation by which its ingest nodes know."""
    _sessions: dict[int, str | None] = field(default_factory=dict)
    """Member id per session; None for a lane or a client."""
    _unassigned: dict[str, int] = field(default_factory=dict)
    """Router whose assignment changed, with the generation its gateways must adopt first."""
    _window_ends: WindowEnds = field(default_factory=WindowEnds)
    _ticked_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._ticked_ms = self.started_ms
        self.expected = {node.id: node for node in self.stored.nodes}
        self.topics = {topic.name: topic for topic in self.stored.topics}
        self.deleted = set(self.stored.deleted)
        self.logs = Ownership.of(self.stored.logs)
        self.sources = Ownership.of(self.stored.sources)
        self.registry = Registry(self.stored.boot, set(self.stored.gateways))
        self.generation = self.stored.boot * REVISIONS_PER_BOOT + 1
        self._deleted_at = dict.fromkeys(self.deleted, self.generation)
        self.lanes.suspect((o.ref for o in self.sources.owned()), now_ms=self.started_ms)

    # --- sessions ------------------------------------------------------------------------------

    def opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        if hello.generation > self.generation:
            self.generation = hello.generation + 1
        raised = self.registry.raise_above(hello.revision)
        known = self.members.get(hello.node_id)
        welcome = control.Welcome(
            self.coordinator_id,
            self.timing.lease_ms,
            self.timing.check_in_ms,
            resumed=known is not None and known.hello.incarnation == hello.incarnation,
        )
        effects: list[Effect] = [Send(session, welcome)]
        if hello.role == "lane":
            effects += self._lane_opened(session, hello, now_ms)
        elif hello.role == "client":
            self._sessions[session] = None
            effects.append(Send(session, control.PushTopology(self.topology())))
        else:
            effects += self._member_opened(session, hello, now_ms)
        if raised and self.registry.complete:
            effects += self._to_lanes(self.registry.snapshot())
        return effects + self._settle_floor()

    def closed(self, session: int, now_ms: int) -> list[Effect]:
        """The stream is over without a goodbye: the lease decides."""
        member_id = self._sessions.pop(session, None)
        if member_id is not None:
            member = self.members[member_id]
            if member.session == session:
                member.session = None
                member.seen_ms = now_ms
        self.lanes.lose(session, now_ms=now_ms)
        return self._settle_floor()

    def received(self, session: int, message: control.ToCoordinator, now_ms: int) -> list[Effect]:
        member = self._member_of(session)
        if member is not None:
            member.seen_ms = now_ms
        elif (lane := self.lanes.by_session.get(session)) is not None:
            lane.seen_ms = now_ms
        match message:
            case control.Goodbye():
                return self._goodbye(session, now_ms)
            case control.AckTopology(generation) if member is not None:
                member.generation = max(member.generation, generation)
                return self._assign_routers()
            case control.AckSubscriptions(revision):
                lane = self.lanes.by_session.get(session)
                if lane is not None:
                    lane.adopted = max(lane.adopted, revision)
                return self._settle_floor()
            case control.Register(request_id, subscriptions) if member is not None:
                change, refused = self.registry.upsert(member.hello.node_id, subscriptions)
                answer = control.Registered(request_id, self.registry.revision, refused)
                return [Send(session, answer), *self._spread_change(change)]
            case control.Unregister(request_id, ids) if member is not None:
                change = self.registry.remove(member.hello.node_id, ids)
                answer = control.Registered(request_id, self.registry.revision)
                return [Send(session, answer), *self._spread_change(change)]
            case control.RegistrationComplete() if member is not None:
                return self._registration_complete(member.hello.node_id)
            case control.LaneReport():
                lane = self.lanes.by_session.get(session)
                if lane is not None:
                    lane.report = message
            case control.IngestReport(heads):
                self.heads.update(heads)
            case control.GatewayReport() | control.RouterReport() if member is not None:
                member.report = message
            case control.EndMyWindow(window, reason) if member is not None:
                self._window_ends.end(member.hello.incarnation, window, for_good=True)
                return self._end_window(member.hello.node_id, reason, hand_over=False)
            case _:
                pass
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        """Ends leases, and windows that wait for a lane that doesn't report."""
        self._forgive_own_absence(now_ms)
        effects: list[Effect] = []
        for session in self.lanes.silent(now_ms - self.timing.lane_report_timeout_ms):
            # It may be frozen, or cut off while its connection looks well.
            self.lanes.lose(session, now_ms=now_ms)
            self._sessions.pop(session, None)
            effects.append(Hang(session))
        for member_id, member in list(self.members.items()):
            if now_ms - member.seen_ms >= self.timing.lease_ms:
                effects += self._member_gone(member_id)
        for gateway_id in list(self.registry.awaited):
            if now_ms - self.started_ms >= self.timing.lease_ms:
                effects += self._registry_lost(gateway_id)
        if self.expected and now_ms - self.started_ms >= self.timing.lease_ms:
            self.expected.clear()
            effects += self._changed(())
        expired = [
            ref
            for ref, since_ms in self.lanes.lost_since_ms.items()
            if now_ms - since_ms >= self.timing.lease_ms
        ]
        if expired:
            effects += self._retake(expired)
        for router_id in self._routers():
            effects += self._end_crippled_window(router_id, now_ms)
        return effects + self._settle_floor()

    def _forgive_own_absence(self, now_ms: int) -> None:
        """A coordinator that was paused has heard nobody; that is nobody else's fault."""
        absent_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        if absent_ms < ABSENCE_MS:
            return
        self.started_ms += absent_ms
        for member in self.members.values():
            member.seen_ms += absent_ms
        self.lanes.forgive(absent_ms)

    # --- topics --------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, placement: Placement) -> list[Effect]:
        check_new_topic(name, partitions, self.topics)
        if not self.is_dropped(name):
            raise NotNow(f"the records of the former topic {name} are being dropped", name=name)
        self.topics[name] = Topic(name, partitions, placement)
        self.deleted.discard(name)
        return self._place_ownerless()

    def delete_topic(self, name: str) -> list[Effect]:
        topic = self.topics.pop(name, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}", name=name)
        self.deleted.add(name)
        # A new epoch, though nobody gets it: a lane that still reads must not count for a topic
        # of the same name that comes later.
        fenced = tuple(self.sources.take(ref, NOBODY) for ref in topic.refs())
        for ref in topic.refs():
            self.logs.release(ref)
            self.heads.pop(ref, None)
        self.lanes.cleared(ref for ref in self.lanes.lost_since_ms.copy() if ref.topic == name)
        change = self.registry.topic_gone(name)
        effects = self._changed(self._routers(), fenced=fenced)
        self._deleted_at[name] = self.generation
        return [*effects, *self._spread_change(change)]

    def is_dropped(self, name: str) -> bool:
        """False while an ingest node may still hold records of a deleted topic of this name.

        A node that is down would otherwise come back to a new topic with the old one's records.
        """
        if name not in self.deleted:
            return True
        nodes = [m for m in self.members.values() if m.hello.role == "ingest"]
        known_at = self._deleted_at[name]
        return bool(nodes) and all(m.session and m.generation >= known_at for m in nodes)

    def topology(self) -> Topology:
        return Topology(
            self.generation,
            tuple(self.topics[name] for name in sorted(self.topics)),
            self._nodes(),
            self.logs.owned(),
            self.sources.owned(),
            tuple(sorted(self.deleted)),
        )

    def logs_adopted(self, topic: Topic) -> bool:
        """True when every log partition of `topic` has an owner that knows it."""
        return all(
            (owner := self.logs.owners.get(ref)) is not None
            and (member := self.members.get(owner.node_id)) is not None
            and member.generation >= self.generation
            for ref in topic.refs()
        )

    # --- members -------------------------------------------------------------------------------

    def _member_opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        known = self.members.get(hello.node_id)
        if known is not None and known.hello.incarnation != hello.incarnation:
            silent_ms = now_ms - known.seen_ms
            if known.session is not None and silent_ms < 2 * self.timing.check_in_ms:
                reason = f"another {known.hello.role} named {hello.node_id} is connected"
                return [Send(session, control.Refused(reason)), Hang(session)]
        if known is None:
            restarted = not self._resumes(hello)
        else:
            restarted = known.hello.incarnation != hello.incarnation
        effects: list[Effect] = []
        if known is not None and known.session is not None:
            self._sessions.pop(known.session, None)
            effects.append(Hang(known.session))
        if known is not None and restarted:
            self._window_ends.forget(known.hello.incarnation)
        member = Member(hello, session, now_ms, generation=hello.generation)
        if not restarted:
            member.assignment = known.assignment if known is not None else hello.assignment
        self.members[hello.node_id] = member
        self.expected.pop(hello.node_id, None)
        self._sessions[session] = hello.node_id
        if restarted:
            return effects + self._member_started(hello)
        if known is None:
            effects += self._changed(())
        else:
            effects.append(Send(session, control.PushTopology(self.topology())))
        if hello.role == "gateway":
            self.registry.gateway_returns(hello.node_id)
            effects.append(Send(session, control.AdoptionFloor(self.registry.floor)))
        if hello.role == "router" and hello.node_id not in self._unassigned:
            effects.append(Send(session, self._assignment(member)))
        return effects

    def _resumes(self, hello: Hello) -> bool:
        """True for a node that this coordinator, new itself, finds as the store describes it."""
        table = {"ingest": self.logs, "router": self.sources}.get(hello.role)
        stored = table.of_node(hello.node_id) if table is not None else []
        return bool(stored) and set(stored) == set(hello.owns)

    def _member_started(self, hello: Hello) -> list[Effect]:
        """A process of this id that was not here before: nothing of its former self counts."""
        fenced: tuple[Owner, ...] = ()
        if hello.role == "ingest":
            for owner in self.logs.of_node(hello.node_id):
                self.logs.take(owner.ref, hello.node_id)
        elif hello.role == "router":
            owned = [owner.ref for owner in self.sources.of_node(hello.node_id)]
            fenced = tuple(self.sources.take(ref, hello.node_id) for ref in owned)
            self.lanes.cleared(owned)
        elif hello.role == "gateway":
            self.registry.gateway_returns(hello.node_id)
        return [*self._place_ownerless(fenced, {hello.node_id}), *self._floor_to_gateways()]

    def _goodbye(self, session: int, now_ms: int) -> list[Effect]:
        if self.lanes.end(session, now_ms=now_ms) is not None:
            self._sessions.pop(session, None)
            return self._settle_floor()
        member_id = self._sessions.pop(session, None)
        if member_id is None:
            return []
        self.members[member_id].seen_ms = now_ms
        return [*self._member_gone(member_id), *self._settle_floor()]

    def _member_gone(self, member_id: str) -> list[Effect]:
        member = self.members.pop(member_id)
        hang: list[Effect] = []
        if member.session is not None:
            self._sessions.pop(member.session, None)
            hang.append(Hang(member.session))
        return [*self._without(member_id, member), *hang]

    def _without(self, member_id: str, member: Member) -> list[Effect]:
        """What it takes to go on without a member."""
        if member.hello.role == "gateway":
            return [*self._registry_lost(member_id), *self._changed(())]
        if member.hello.role == "router":
            refs = [owner.ref for owner in self.sources.of_node(member_id)]
            for ref in refs:
                self.sources.release(ref)
            self._unassigned.pop(member_id, None)
            self._window_ends.forget(member.hello.incarnation)
            others = self.sources.spread(refs, self._routers())
            self.lanes.cleared(owner.ref for owner in others)
            return self._place_ownerless(tuple(others))
        return self._changed(())

    def _registry_lost(self, gateway_id: str) -> list[Effect]:
        """The gateway is gone for good: its subscriptions end, and nobody waits for it."""
        was_complete = self.registry.complete
        change = self.registry.gateway_gone(gateway_id)
        if self.registry.complete and not was_complete:
            return [Persist(self._state()), *self._to_lanes(self.registry.snapshot())]
        return [Persist(self._state()), *self._spread_change(change), *self._assign_routers()]

    def _registration_complete(self, gateway_id: str) -> list[Effect]:
        was_complete = self.registry.complete
        change = self.registry.registration_complete(gateway_id)
        if self.registry.complete and not was_complete:
            return [*self._to_lanes(self.registry.snapshot()), *self._settle_floor()]
        return self._spread_change(change)

    # --- ownership -----------------------------------------------------------------------------

    def _place_ownerless(
        self, fenced: tuple[Owner, ...] = (), started: Iterable[str] = ()
    ) -> list[Effect]:
        refs = [ref for topic in self.topics.values() for ref in topic.refs()]
        self.logs.spread(refs, self._of_role("ingest"))
        taken = (*fenced, *self.sources.spread(refs, self._routers()))
        self.lanes.cleared(owner.ref for owner in taken)
        return self._changed({*started, *(owner.node_id for owner in taken)}, fenced=taken)

    def _retake(self, refs: Iterable[PartitionRef]) -> list[Effect]:
        """Fence lanes that were silent for a whole lease, and let their router read anew."""
        fenced = [
            self.sources.take(ref, owner.node_id)
            for ref in refs
            if (owner := self.sources.owners.get(ref)) is not None
        ]
        self.lanes.cleared(refs)
        return self._changed({o.node_id for o in fenced}, fenced=tuple(fenced))

    def _changed(self, routers: Iterable[str], *, fenced: tuple[Owner, ...] = ()) -> list[Effect]:
        """The topology is another one now: keep it, tell everybody, then assign anew."""
        self.generation += 1
        for router_id in routers:
            member = self.members.get(router_id)
            if member is not None and member.hello.role == "router":
                member.assignment += 1
                self._unassigned[router_id] = self.generation
        push = control.PushTopology(self.topology())
        effects: list[Effect] = [Persist(self._state())]
        if fenced:
            effects.append(FenceCheckpoints(fenced))
        effects += [Send(session, push) for session in self._sessions]
        return effects + self._assign_routers()

    def _assign_routers(self) -> list[Effect]:
        """Assign where every live gateway has adopted the epochs; their lanes' window ends."""
        effects: list[Effect] = []
        adopted = min(
            (m.generation for m in self.members.values() if m.hello.role == "gateway"),
            default=self.generation,
        )
        for router_id, generation in list(self._unassigned.items()):
            member = self.members.get(router_id)
            if adopted < generation or member is None or member.session is None:
                continue
            del self._unassigned[router_id]
            effects.append(Send(member.session, self._assignment(member)))
            effects += self._end_window(router_id, "the assignment changed")
        return effects

    def _assignment(self, member: Member) -> control.Assign:
        sources = tuple(self.sources.of_node(member.hello.node_id))
        return control.Assign(member.assignment, sources)

    # --- lanes ---------------------------------------------------------------------------------

    def _lane_opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        for owner in hello.owns:
            current = self.sources.owners.get(owner.ref)
            if current is None or current.epoch > owner.epoch or current.node_id != owner.node_id:
                reason = f"{owner.ref} is no longer read under epoch {owner.epoch}"
                return [Send(session, control.Refused(reason)), Hang(session)]
        if self.lanes.is_overtaken(hello):
            reason = f"a newer lane reads what window {hello.window} did"
            return [Send(session, control.Refused(reason)), Hang(session)]
        self._sessions[session] = None
        fresh = hello.revision == 0
        # A lane that starts reads nothing before it has applied the snapshot, so it counts as
        # having adopted it; one that reconnects goes on with what it had.
        adopted = self.registry.revision if fresh else hello.revision
        effects: list[Effect] = []
        for other in self.lanes.start(session, hello, adopted=adopted, now_ms=now_ms):
            reason = f"window {hello.window}, attempt {hello.attempt} has taken over"
            effects += [Send(other, control.Refused(reason)), Hang(other)]
        effects.append(Send(session, control.PushTopology(self.topology())))
        if self.registry.complete:
            effects.append(Send(session, self.registry.snapshot()))
        router = self.members.get(hello.node_id)
        stale_plan = router is not None and hello.assignment < router.assignment
        if stale_plan and hello.node_id not in self._unassigned:
            effects += self._end_window(hello.node_id, "the assignment changed")
        elif self._window_ends.is_over(hello):
            hand_over = not self._window_ends.is_over_for_good(hello)
            effects += self._end_window(
                hello.node_id, "the window ended early", hand_over=hand_over
            )
        return effects

    def _end_window(self, router_id: str, reason: str, *, hand_over: bool = True) -> list[Effect]:
        effects: list[Effect] = []
        for session, lane in self.lanes.of_router(router_id):
            self._window_ends.end(lane.hello.incarnation, lane.hello.window)
            if not (lane.told_to_end and hand_over):
                lane.told_to_end = True
                effects.append(Send(session, control.EndWindow(reason, hand_over)))
        router = self.members.get(router_id)
        if effects and router is not None and router.session is not None:
            # So that it can expect the receipts.
            effects.append(Send(router.session, control.EndWindow(reason, hand_over)))
        return effects

    def _end_crippled_window(self, router_id: str, now_ms: int) -> list[Effect]:
        """A window in which a partition has had no lane for too long makes room for the next."""
        lanes = self.lanes.of_router(router_id)
        patience_ms = self.timing.lane_report_timeout_ms
        started_ms = min((lane.started_ms for _, lane in lanes), default=now_ms)
        if now_ms - started_ms < patience_ms:
            return []
        for owner in self.sources.of_node(router_id):
            alone_ms = max(
                started_ms,
                self.lanes.lost_since_ms.get(owner.ref, 0),
                self.lanes.ended_ms.get(owner.ref, 0),
            )
            if not self.lanes.is_running(owner.ref) and now_ms - alone_ms >= patience_ms:
                return self._end_window(router_id, f"no lane reads {owner.ref}")
        return []

    # --- pushes --------------------------------------------------------------------------------

    def _spread_change(self, change: control.SubscriptionChanges | None) -> list[Effect]:
        if change is None or not self.registry.complete:
            return self._settle_floor()
        return [*self._to_lanes(change), *self._settle_floor()]

    def _to_lanes(
        self, message: control.SubscriptionChanges | control.SubscriptionSnapshot
    ) -> list[Effect]:
        return [Send(session, message) for session in self.lanes.by_session]

    def _settle_floor(self) -> list[Effect]:
        adopted = [lane.adopted for lane in self.lanes.by_session.values()]
        if not self.registry.advance_floor(adopted, holds=bool(self.lanes.lost_since_ms)):
            return []
        return self._floor_to_gateways()

    def _floor_to_gateways(self) -> list[Effect]:
        floor = control.AdoptionFloor(self.registry.floor)
        return [
            Send(m.session, floor)
            for m in self.members.values()
            if m.hello.role == "gateway" and m.session is not None
        ]

    # --- state ---------------------------------------------------------------------------------

    def _state(self) -> StoredState:
        gateways = {*self._of_role("gateway"), *self.registry.awaited}
        return StoredState(
            boot=self.stored.boot,
            topics=tuple(self.topics[name] for name in sorted(self.topics)),
            deleted=tuple(sorted(self.deleted)),
            logs=self.logs.all(),
            sources=self.sources.all(),
            gateways=tuple(sorted(gateways)),
            nodes=self._nodes(),
        )

    def _nodes(self) -> tuple[Node, ...]:
        known = {**self.expected, **{i: m.node() for i, m in self.members.items()}}
        return tuple(known[node_id] for node_id in sorted(known))

    def _member_of(self, session: int) -> Member | None:
        member_id = self._sessions.get(session)
        return self.members.get(member_id) if member_id is not None else None

    def _of_role(self, role: str) -> list[str]:
        return sorted(i for i, m in self.members.items() if m.hello.role == role)

    def _routers(self) -> list[str]:
        return self._of_role("router")
