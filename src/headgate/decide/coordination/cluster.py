"""The coordinator's mind: sessions, topics and reports in, effects out.

Pure: no clock, no I/O, no log. The shell feeds it what happened together with the time (monotonic
milliseconds) and carries out the effects in order: what must be durable comes before what tells
anybody about it. What it knows is in state.py; each kind of decision has a module of its own.

Invariants:
- epochs, generations and revisions only grow;
- a router hears of a new epoch only after the checkpoint is fenced and every live gateway has
  adopted that epoch, so that nothing of a former owner can count any more;
- the adoption floor never passes the revision of a lane that may still be reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headgate.decide.checkpoints import Reset
from headgate.decide.coordination import (
    consuming,
    hints,
    membership,
    moving,
    resetting,
    sharing,
    subscribing,
    topology_changes,
    windows,
)
from headgate.decide.coordination.effects import (
    Effect,
    FenceCheckpoints,
    Hang,
    Persist,
    Send,
)
from headgate.decide.coordination.members import Member
from headgate.decide.coordination.ownership import NOBODY
from headgate.decide.coordination.publishing import Client
from headgate.decide.coordination.rates import Meter
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topic_rules import check_new_topic
from headgate.errors import InvalidRequest, NotFound, NotNow, UnknownTopic
from headgate.model import control
from headgate.model.control import Hello
from headgate.model.event import PartitionRef
from headgate.model.groups import is_target
from headgate.model.topology import Owner, Placement, Topic

ABSENCE_MS = 3_000
"""A longer time between two ticks means that the coordinator itself stood still."""
FENCE_AGAIN_MS = 1_000


@dataclass(slots=True)
class Cluster(State):
    _ticked_ms: int = field(init=False)

    def __post_init__(self) -> None:
        State.__post_init__(self)
        self._ticked_ms = self.started_ms

    # --- sessions ------------------------------------------------------------------------------

    def opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.learning.may_begin and self.timing.learn_for_ms and self._remembers(hello):
            self.learn(now_ms)
        if hello.generation > self.generation:
            # The one who gave that out is forgotten, so everybody must hear from us above it.
            self.out.publish(self.described(hello.generation + 1), to_all=True)
            effects += [Send(other, self.out.message) for other in self.sessions]
        foreign = hello.role == "lane" and not self.lanes.knows(hello)
        raised = self.registry.raise_above(hello.revision, foreign=foreign)
        effects.append(Send(session, self._welcome(hello)))
        if hello.role == "lane":
            effects += windows.lane_opened(self, session, hello, now_ms)
            if troubled := hints.in_trouble(self):
                effects.append(Send(session, control.TroubledGateways(troubled)))
        elif hello.role == "client":
            self.sessions[session] = ("client", hello.node_id)
            self.clients[session] = Client(now_ms, hello.generation)
            effects.append(Send(session, self.out.message))
        else:
            effects += membership.member_opened(self, session, hello, now_ms)
        if raised:
            effects += subscribing.spread_snapshot(self)
        return self._withheld(effects + subscribing.settle_floor(self))

    def _remembers(self, hello: Hello) -> bool:
        """True for a node whose topology another coordinator gave out: what it says is worth
        learning. A client has nothing to say, and may have fetched its topology from us."""
        known = self.members.get(hello.node_id)
        is_ours = known is not None and known.hello.incarnation == hello.incarnation
        return hello.generation > 0 and hello.role != "client" and not is_ours

    def _withheld(self, effects: list[Effect]) -> list[Effect]:
        """A coordinator that knows nothing yet tells of no topology: everybody has a better one."""
        if not self.learning.is_blank:
            return effects
        return [
            effect
            for effect in effects
            if not (isinstance(effect, Send) and isinstance(effect.message, control.PushTopology))
        ]

    def _welcome(self, hello: Hello) -> control.Welcome:
        known = self.members.get(hello.node_id)
        return control.Welcome(
            self.coordinator_id,
            self.timing.lease_ms,
            self.timing.check_in_ms,
            resumed=known is not None
            and known.hello.incarnation == hello.incarnation
            and hello.node_id not in self.registry.dropped,
            learning=self.learning.is_on and hello.generation > 0,
            url=self.url,
        )

    def closed(self, session: int, now_ms: int) -> list[Effect]:
        """The stream is over without a goodbye: the lease decides."""
        member = self.member_of(session)
        self.sessions.pop(session, None)
        self.clients.pop(session, None)
        if member is not None:
            member.session = None
            member.seen_ms = now_ms
        self.lanes.lose(session, now_ms=now_ms)
        return subscribing.settle_floor(self)

    def received(self, session: int, message: control.ToCoordinator, now_ms: int) -> list[Effect]:
        member, lane = self.member_of(session), self.lanes.by_session.get(session)
        for somebody in (member, lane, self.clients.get(session)):
            if somebody is not None:
                somebody.seen_ms = now_ms
        match message:
            case control.Goodbye():
                return self._withheld(membership.goodbye(self, session, now_ms))
            case control.AckTopology(generation, topics):
                return self._acknowledged(session, generation, topics)
            case control.AckSubscriptions(revision) if lane is not None:
                self.lanes.acknowledge(session, revision)
                return moving.started(self, session) + subscribing.settle_floor(self)
            case control.Released(owners) if lane is not None:
                released = moving.released(self, session, owners, now_ms)
                return released + resetting.released(self, owners)
            case control.LaneReport() if lane is not None:
                self.lanes.keep(session, {p.ref for p in message.partitions}, now_ms=now_ms)
                lane.load.read(message.cpu_s, now_ms)
                self.lane_totals.heard(lane.hello, message)
                return hints.reported(self, lane, message)
            case control.EpochTooLow(ref, epoch) if member is not None and is_target(ref):
                return sharing.overtaken(self, member.hello.node_id, ref, epoch)
            case control.EpochTooLow(ref, epoch) if member is not None:
                return self._log_overtaken(member, ref, epoch)
            case control.IngestReport(heads):
                self.heads.update(heads)
                for ref, head in heads:
                    self.growth.setdefault(ref, Meter()).read(head, now_ms)
            case _ if member is not None:
                return self._member_said(member, session, message, now_ms)
            case _:
                pass
        return []

    def _member_said(
        self, member: Member, session: int, message: control.ToCoordinator, now_ms: int
    ) -> list[Effect]:
        node_id = member.hello.node_id
        match message:
            case control.Register():
                return subscribing.register(self, node_id, session, message, now_ms)
            case control.Unregister():
                return subscribing.unregister(self, node_id, session, message)
            case control.RegistrationComplete():
                consuming.all_named(self, node_id, now_ms)
                return subscribing.registration_complete(self, node_id)
            case control.JoinGroup():
                return consuming.join(self, session, node_id, message, now_ms)
            case control.LeaveGroup():
                return consuming.leave(self, node_id, message, now_ms)
            case control.Released(owners):
                return sharing.released(self, owners, now_ms)
            case control.Recall(topology):
                return membership.recalled(self, member.hello.role, topology, now_ms)
            case control.GatewayReport() | control.RouterReport():
                was_starting = member.is_starting
                member.report = message
                if isinstance(message, control.GatewayReport):
                    self.registry.renew(node_id, now_ms)
                if was_starting and not member.is_starting:
                    moving.plan_soon(self, now_ms)
            case control.EndMyWindow(window, reason):
                self.window_ends.end(member.hello.incarnation, window, for_good=True)
                return windows.end_window(self, node_id, reason, hand_over=False)
            case _:
                pass
        return []

    def _acknowledged(self, session: int, generation: int, topics: tuple[str, ...]) -> list[Effect]:
        if (client := self.clients.get(session)) is not None:
            client.generation = max(client.generation, generation)
            client.topics = topics
        if (member := self.member_of(session)) is not None:
            member.generation = max(member.generation, generation)
            return topology_changes.assign_routers(self)
        return []

    def letters_revived(self, refs: Collection[PartitionRef]) -> list[Effect]:
        return hints.letters_revived(self, refs)

    # --- time ----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Effect]:
        """Ends leases, and windows that wait for a lane that doesn't report; plans when due."""
        self._forgive_own_absence(now_ms)
        effects = self._lose_silent(now_ms)
        if self.learning.is_complete(now_ms):
            effects += membership.end_learning(self)
        if not self.learning.is_on:
            effects += self._end_leases(now_ms)
            effects += subscribing.expire(self, now_ms)
            windows.watch_idle(self, now_ms)
            expired = self.lanes.unread(now_ms - self.timing.lease_ms)
            if expired:
                effects += self._retake(expired)
        for router in self.of_role("router"):
            effects += windows.end_crippled_window(self, router.hello.node_id, now_ms)
        effects += self._fence_again(now_ms)
        effects += moving.advance(self, now_ms)
        effects += resetting.advance(self, now_ms)
        effects += consuming.tick(self, now_ms)
        if now_ms >= self.plan_at_ms:
            effects += self._rebalance(now_ms)
        return effects + subscribing.settle_floor(self)

    def _rebalance(self, now_ms: int) -> list[Effect]:
        return moving.rebalance(self, now_ms) + sharing.rebalance(self, now_ms)

    def _lose_silent(self, now_ms: int) -> list[Effect]:
        """Lanes and clients that say nothing may be frozen, or cut off while their connection
        looks well."""
        silent = self.lanes.silent(now_ms - self.timing.lane_report_timeout_ms)
        for session in silent:
            self.lanes.lose(session, now_ms=now_ms)
        gone = [s for s, c in self.clients.items() if now_ms - c.seen_ms >= self.timing.lease_ms]
        for session in (*silent, *gone):
            self.sessions.pop(session, None)
            self.clients.pop(session, None)
        return [Hang(session) for session in (*silent, *gone)]

    def _end_leases(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for node_id, member in list(self.members.items()):
            if now_ms - member.seen_ms >= self.timing.lease_ms:
                effects += membership.member_gone(self, node_id, now_ms)
        if now_ms - self.started_ms >= self.timing.lease_ms:
            if self.expected:
                effects += membership.expected_gone(self)
            for gateway_id in self.registry.awaited - set(self.members):
                effects += subscribing.registry_lost(self, gateway_id)
        return effects

    def _retake(self, refs: list[PartitionRef]) -> list[Effect]:
        """Fence lanes that were silent for a whole lease, and let their router read anew.

        Likewise what its router didn't get to read: a store may hold it under an epoch that a
        coordinator without memory doesn't know of.
        """
        fenced = [
            self.sources.take(ref, owner.node_id)
            for ref in refs
            if (owner := self.sources.owners.get(ref)) is not None
        ]
        return topology_changes.changed(self, grown={o.node_id for o in fenced}, fenced=fenced)

    def _forgive_own_absence(self, now_ms: int) -> None:
        """A coordinator that was paused has heard nobody; that is nobody else's fault."""
        absent_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        if absent_ms < ABSENCE_MS:
            return
        self.started_ms += absent_ms
        if self.learning.until_ms is not None:
            self.learning.until_ms += absent_ms
        for member in self.members.values():
            member.seen_ms += absent_ms
        for client in self.clients.values():
            client.seen_ms += absent_ms
        self.lanes.forgive(absent_ms)
        self.registry.forgive(absent_ms)
        self.handoffs.forgive(absent_ms)
        self.resets.forgive(absent_ms)
        self.groups.forgive(absent_ms)

    # --- what the stores know better -----------------------------------------------------------

    def fenced(self, owners: Iterable[Owner]) -> list[Effect]:
        """The checkpoints are claimed: whoever got these partitions may hear of it.

        Before that it is kept that a position is where an operator wants it: a coordinator that
        didn't know would put it there again, back from where the new reader has brought it.
        """
        effects: list[Effect] = []
        for owner in owners:
            if self.unfenced.get(owner.ref) == owner:
                del self.unfenced[owner.ref]
                if self.resets.putting.pop(owner.ref, None) is not None:
                    effects = [Persist(self.to_store())]
        return effects + topology_changes.assign_routers(self)

    def _fence_again(self, now_ms: int) -> list[Effect]:
        """The store was away when these were to be claimed."""
        if not self.unfenced or now_ms < self.fence_at_ms:
            return []
        self.fence_at_ms = now_ms + FENCE_AGAIN_MS
        return [FenceCheckpoints(tuple(self.unfenced[ref] for ref in sorted(self.unfenced)))]

    def overtaken(self, ref: PartitionRef, epoch: int) -> list[Effect]:
        """The checkpoint of `ref` is held under a higher epoch than was given out: go above it."""
        current = self.sources.owners.get(ref)
        if current is None or current.epoch > epoch:
            return []
        owner = self.sources.raise_above(ref, epoch)
        return topology_changes.changed(self, grown={owner.node_id}, fenced=(owner,))

    def _log_overtaken(self, member: Member, ref: PartitionRef, epoch: int) -> list[Effect]:
        current = self.logs.owners.get(ref)
        if current is None or current.node_id != member.hello.node_id or current.epoch > epoch:
            return []
        self.logs.raise_above(ref, epoch)
        return topology_changes.changed(self)

    # --- topics --------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, placement: Placement) -> list[Effect]:
        check_new_topic(name, partitions, self.topics)
        self.check_decides()
        if not self.is_dropped(name):
            raise NotNow(f"the records of the former topic {name} are being dropped", name=name)
        self.topics[name] = Topic(name, partitions, placement)
        self.deleted.discard(name)
        self.learning.may_begin = False
        # Whoever still reads a former topic of this name doesn't count for this one, also when
        # nobody gets it yet: the coordinator may have died before it could fence the deletion.
        known = [ref for ref in self.topics[name].refs() if ref in self.sources.owners]
        fenced = [self.sources.take(ref, NOBODY) for ref in known]
        return moving.place_ownerless(self, fenced=fenced)

    def delete_topic(self, name: str) -> list[Effect]:
        self.check_decides()
        topic = self.topics.pop(name, None)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}", name=name)
        self.deleted.add(name)
        self.handoffs.end(topic.refs())
        readers = {o.node_id for o in self.sources.owned() if o.ref.topic == name}
        # A new epoch, though nobody gets it: a lane that still reads must not count for a topic
        # of the same name that comes later.
        fenced = tuple(self.sources.take(ref, NOBODY) for ref in topic.refs())
        for ref in topic.refs():
            self.logs.release(ref)
            self.heads.pop(ref, None)
            self.growth.pop(ref, None)
            self.resets.end(ref)
        change = self.registry.topic_gone(name)
        told = consuming.topic_gone(self, name)
        effects = topology_changes.changed(self, shrunk=readers, fenced=fenced)
        self.deleted_at[name] = self.generation
        return [*effects, *told, *subscribing.spread_change(self, change)]

    def check_decides(self) -> None:
        """Raises NotNow while the coordinator only learns."""
        if self.learning.is_on:
            raise NotNow("the coordinator is learning who owns what; try again in a minute")

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
            m.session is not None and self.has_adopted(m, known_at) for m in nodes
        )

    def logs_adopted(self, topic: Topic) -> bool:
        """True when every log partition of `topic` has an owner that knows it."""
        return all(
            (owner := self.logs.owners.get(ref)) is not None
            and (member := self.members.get(owner.node_id)) is not None
            and self.has_adopted(member, self.generation)
            for ref in topic.refs()
        )

    # --- operators -----------------------------------------------------------------------------

    def rebalance(self, now_ms: int) -> list[Effect]:
        self.check_decides()
        return self._rebalance(now_ms)

    def reset(self, ref: PartitionRef, reset: Reset, now_ms: int) -> list[Effect]:
        """Put the position of a source partition elsewhere, and read it from there."""
        self.check_decides()
        return resetting.begin(self, ref, reset, now_ms)

    def drain(self, node_id: str, now_ms: int, *, draining: bool = True) -> list[Effect]:
        """Let a node give everything away and get nothing, or end that."""
        member = self.members.get(node_id)
        if member is None:
            raise NotFound(f"there is no node {node_id}: see `headgate node list`", node=node_id)
        role = member.node().role
        if role not in ("ingest", "router"):
            raise InvalidRequest(
                f"a {role} owns no partitions; stop {node_id}, and its subscribers connect anew",
                node=node_id,
            )
        others = [m for m in self.of_role(role) if m is not member]
        if draining and all(m.hello.node_id in self.draining for m in others):
            raise InvalidRequest(
                f"{node_id} is the only {role} that isn't draining; start another one first",
                node=node_id,
            )
        if draining:
            self.draining.add(node_id)
        else:
            self.draining.discard(node_id)
        if self.learning.is_on:
            return [Persist(self.to_store())]
        return [Persist(self.to_store()), *moving.rebalance(self, now_ms)]
