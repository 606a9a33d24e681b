"""The coordinator's mind: sessions, topics and reports in, effects out.

No clock, no I/O, no chance, no log. The shell feeds it what happened together with the time
(monotonic milliseconds) and carries out the effects in order: what must be durable comes before
what tells anybody about it. What it knows is in state.py; each kind of decision has a module of its
own.

Every event is refused before it changes anything (`Refuse`, or `Refused` to a node), or decided
whole, on a copy that takes the place of this state (drafts.py). What is merely heard (`NOTED`), and
what only concerns a client, is noted in place. A decision never raises but by a fault of this
program: then the coordinator begins a new term with what is stored (services' Term), also because
the subscriptions aren't copied.

Invariants:
- epochs, generations and revisions only grow;
- a router hears of a new epoch only after the checkpoint is fenced and every live gateway has
  adopted that epoch, so that nothing of a former owner can count any more;
- the adoption floor never passes the revision of a lane that may still be reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headgate.decide.coordination import plausible
from headgate.decide.coordination.connectors import connecting, intakes
from headgate.decide.coordination.drafts import checked, whole
from headgate.decide.coordination.effects import (
    Effect,
    EndSession,
    Persist,
    Refuse,
    Send,
    Unclaimed,
)
from headgate.decide.coordination.groups import consuming, regrouping, sharing
from headgate.decide.coordination.lanes import hints, windows
from headgate.decide.coordination.members import grace, membership, tokens
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.registry import subscribing
from headgate.decide.coordination.sources import moving, resetting
from headgate.decide.coordination.sources.ownership import NOBODY
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import operating, repartitioning, topology_changes
from headgate.decide.coordination.topics.publishing import Client
from headgate.decide.coordination.views.rates import Meter
from headgate.decide.lane.checkpoints import Reset
from headgate.model.access import ApiToken
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import (
    ConnectorReports,
    GatewayReport,
    IngestReport,
    LaneReport,
    RouterReport,
)
from headgate.model.control.to_coordinator import Hello
from headgate.model.event import PartitionRef
from headgate.model.groups import is_target
from headgate.model.topology import Owner, Placement

ABSENCE_MS = 3_000
"""A longer time between two ticks means that the coordinator itself stood still."""
FENCE_AGAIN_MS = 1_000
NOTED = (
    to_coordinator.AckSubscriptions,
    ConnectorReports,
    GatewayReport,
    IngestReport,
    LaneReport,
    to_coordinator.MayClaim,
    to_coordinator.Register,
    to_coordinator.RegistrationComplete,
    RouterReport,
    to_coordinator.StillInHand,
    to_coordinator.Unregister,
)
"""What is heard all the time and changes the row of the member that says it, or the
subscriptions."""


@dataclass(slots=True)
class Cluster(State):
    _ticked_ms: int = field(init=False)

    def __post_init__(self) -> None:
        State.__post_init__(self)
        self._ticked_ms = self.started_ms

    # --- sessions ------------------------------------------------------------------------------

    def opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        if hello.role == "client":  # they come by the ten thousand
            return checked(self, self._opened(session, hello, now_ms))
        return self._opened_whole(session, hello, now_ms)

    def _opened(self, session: int, hello: Hello, now_ms: int) -> list[Effect]:
        learns = self.learning.is_on or self._begins_to_learn(hello)
        if reason := self._refusal(hello, now_ms, learns=learns):
            return [Send(session, from_coordinator.Refused(reason)), EndSession(session)]
        effects: list[Effect] = []
        if learns and not self.learning.is_on:
            self.learn(now_ms)
        if hello.generation > self.generation:
            # The coordinator that gave that out is forgotten, so every member must hear a higher
            # one from us.
            self.out.publish(self.described(hello.generation + 1), to_all=True)
            everybody = (*self.sessions, *self.clients)
            effects += [Send(other, self.out.message) for other in everybody]
        foreign = hello.role == "lane" and not self.lanes.knows(hello)
        raised = self.registry.raise_above(hello.revision, foreign=foreign)
        self.seen_roles.add(hello.role)
        effects.append(Send(session, self._welcome(hello)))
        if hello.role == "lane":
            effects += windows.lane_opened(self, session, hello, now_ms)
            if troubled := hints.in_trouble(self):
                effects.append(Send(session, from_coordinator.TroubledGateways(troubled)))
        elif hello.role == "client":
            self.clients[session] = Client(now_ms, hello.generation)
            effects.append(Send(session, self.out.message))
        else:
            effects += membership.member_opened(self, session, hello, now_ms)
        if raised:
            effects += subscribing.spread_snapshot(self)
        return self._withheld(effects + subscribing.settle_floor(self))

    _opened_whole = whole(_opened)

    def _refusal(self, hello: Hello, now_ms: int, *, learns: bool) -> str:
        """Why the process can't be the node that `hello` says; empty when it can."""
        if reason := plausible.hello_refusal(self, hello):
            return reason
        if hello.role == "lane":
            return windows.refusal(self, hello, learns=learns)
        return "" if hello.role == "client" else membership.refusal(self, hello, now_ms)

    def _begins_to_learn(self, hello: Hello) -> bool:
        """True for a node whose topology another coordinator gave out, where nothing is known: what
        it says is worth learning. A client has nothing to say, and may have its topology from us.
        """
        if not self.learning.may_begin or not self.timing.learn_for_ms:
            return False
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
            if not (
                isinstance(effect, Send)
                and isinstance(effect.message, from_coordinator.PushTopology)
            )
        ]

    def _welcome(self, hello: Hello) -> from_coordinator.Welcome:
        return from_coordinator.Welcome(
            self.coordinator_id,
            self.timing.lease_ms,
            self.timing.check_in_ms,
            resumed=self.registry.has_kept(hello.node_id, hello.incarnation),
            learning=self.learning.is_on and hello.generation > 0,
            url=self.url,
            tokens=tuple(self.tokens.values()) if hello.role in tokens.TOLD else (),
            tokens_revision=self.tokens_revision if hello.role in tokens.TOLD else 0,
        )

    def closed(self, session: int, now_ms: int) -> list[Effect]:
        """The stream is over without a goodbye: the grace decides, or the lease."""
        return [] if self.clients.pop(session, None) else self._closed(session, now_ms)

    @whole
    def _closed(self, session: int, now_ms: int) -> list[Effect]:
        member = self.member_of(session)
        self.sessions.pop(session, None)
        if member is not None:
            member.session = None
            member.seen_ms = member.gone_ms = now_ms
        self.lanes.lose(session, now_ms=now_ms)
        return subscribing.settle_floor(self)

    def received(
        self, session: int, message: to_coordinator.ToCoordinator, now_ms: int
    ) -> list[Effect]:
        role = "client" if session in self.clients else self.sessions.get(session, (None, ""))[0]
        if role is None:
            return []  # it was refused, replaced or cut off, and is about to hear of it
        if reason := plausible.message_refusal(self, role, message):
            return [Send(session, from_coordinator.Refused(reason)), EndSession(session)]
        if isinstance(message, to_coordinator.CheckIn) or role == "client":
            return self._heard(session, message, now_ms)  # no invariant is about that
        is_row = isinstance(message, to_coordinator.AckTopology) and not self._awaits_adoption
        if (isinstance(message, NOTED) or is_row) and not self._has_consequences(message):
            return checked(self, self._heard(session, message, now_ms))
        return self._heard_whole(session, message, now_ms)

    def _has_consequences(self, message: to_coordinator.ToCoordinator) -> bool:
        """Whether what is merely heard otherwise changes more than a row this time."""
        match message:
            case LaneReport(unclaimed=unclaimed):
                return bool(unclaimed)
            case ConnectorReports(reports):
                return intakes.is_news(self, reports)
            case _:
                return False

    def _heard(
        self, session: int, message: to_coordinator.ToCoordinator, now_ms: int
    ) -> list[Effect]:
        member, lane = self.member_of(session), self.lanes.by_session.get(session)
        for somebody in (member, lane, self.clients.get(session)):
            if somebody is not None:
                somebody.seen_ms = now_ms
        match message:
            case to_coordinator.Goodbye(returns):
                said = membership.goodbye(self, session, now_ms, returns=returns)
                return self._withheld(said)
            case to_coordinator.AckTopology():
                return self._acknowledged(session, message, now_ms)
            case to_coordinator.AckSubscriptions(revision) if lane is not None:
                if revision > self.registry.revision:
                    return []  # of another coordinator
                self.lanes.acknowledge(session, revision)
                return moving.started(self, session) + subscribing.settle_floor(self)
            case to_coordinator.MayClaim() | to_coordinator.Claimed() if lane is not None:
                return self._claiming(session, message, now_ms)
            case to_coordinator.Released(owners) if lane is not None:
                released = moving.released(self, session, owners, now_ms)
                return released + resetting.released(self, owners)
            case LaneReport() if lane is not None:
                return self._lane_reported(session, message, now_ms)
            case to_coordinator.EpochTooLow(ref, epoch, own) if member is not None and is_target(
                ref
            ):
                return sharing.overtaken(self, member.hello.node_id, ref, epoch, own=own)
            case to_coordinator.EpochTooLow(ref, epoch) if member is not None:
                return self._log_overtaken(member, ref, epoch)
            case IngestReport(heads, earliest):
                self.heads.update(heads)
                self.earliest.update(earliest)
                for ref, head in heads:
                    self.growth.setdefault(ref, Meter()).read(head, now_ms)
            case _ if member is not None:
                return self._member_said(member, session, message, now_ms)
            case _:
                pass
        return []

    _heard_whole = whole(_heard)

    def _lane_reported(self, session: int, report: LaneReport, now_ms: int) -> list[Effect]:
        lane = self.lanes.by_session[session]
        self.lanes.keep(session, {p.ref for p in report.partitions}, now_ms=now_ms)
        lane.load.read(report.cpu_s, now_ms)
        self.lane_totals.heard(lane.hello, report)
        for one in report.partitions:
            self.settling.setdefault(one.ref, Meter()).read(one.settled, now_ms)
        return hints.reported(self, lane, report) + self._unclaimable(report.unclaimed)

    def _claiming(
        self, session: int, message: to_coordinator.MayClaim | to_coordinator.Claimed, now_ms: int
    ) -> list[Effect]:
        if isinstance(message, to_coordinator.MayClaim):
            return [Send(session, from_coordinator.ClaimNow(message.number))]
        owners, asked_ms = message.owners, message.asked_ms
        claimed = windows.lane_claimed(self, session, owners, asked_ms, now_ms)
        return claimed + moving.started(self, session) + subscribing.settle_floor(self)

    def _member_said(
        self, member: Member, session: int, message: to_coordinator.ToCoordinator, now_ms: int
    ) -> list[Effect]:
        node_id = member.hello.node_id
        match message:
            case to_coordinator.Register():
                return subscribing.register(self, node_id, session, message, now_ms)
            case to_coordinator.Unregister():
                return subscribing.unregister(self, node_id, session, message)
            case to_coordinator.RegistrationComplete():
                consuming.all_named(self, node_id, now_ms)
                return subscribing.registration_complete(self, member.hello)
            case to_coordinator.JoinGroup():
                return consuming.join(self, session, node_id, message, now_ms)
            case to_coordinator.LeaveGroup():
                return consuming.leave(self, node_id, message, now_ms)
            case to_coordinator.Released(owners):
                return sharing.released(self, owners, now_ms)
            case to_coordinator.StillInHand(owner):
                sharing.still_in_hand(self, owner, now_ms)
            case to_coordinator.NoRoom(owner):
                return sharing.declined(self, node_id, owner, now_ms)
            case ConnectorReports() | to_coordinator.ConnectorTooLow():
                return intakes.told(self, node_id, message, now_ms)
            case to_coordinator.Recall(topology, known, revision):
                recalled = tokens.recalled(self, known, revision)
                role = member.hello.role
                return recalled + membership.recalled(self, role, topology, now_ms)
            case GatewayReport() | RouterReport():
                was_starting = member.is_starting
                member.report = message
                if isinstance(message, GatewayReport):
                    self.registry.renew(node_id, now_ms)
                if was_starting and not member.is_starting:
                    moving.plan_soon(self, now_ms)
                return windows.all_read(self, node_id)
            case to_coordinator.EndMyWindow(window, reason):
                self.window_ends.end(member.hello.incarnation, window, for_good=True)
                return windows.end_window(self, node_id, reason, hand_over=False)
            case _:
                pass
        return []

    @property
    def _awaits_adoption(self) -> bool:
        """Whether anything waits for members to apply a topology."""
        return bool(self.unassigned) or repartitioning.is_under_way(self)

    def _acknowledged(
        self, session: int, message: to_coordinator.AckTopology, now_ms: int
    ) -> list[Effect]:
        generation = message.generation
        if generation > self.generation:
            return []  # of another coordinator: a client may have fetched it from a gateway
        if (client := self.clients.get(session)) is not None:
            client.generation = max(client.generation, generation)
            client.topics = message.topics
        if (member := self.member_of(session)) is not None:
            member.generation = max(member.generation, generation)
            member.undropped = frozenset(message.undropped)
            member.unopened = frozenset(message.unopened)
            repartitioning.sealed(self, generation, message.sealed, now_ms)
            assigned = topology_changes.assign_routers(self)
            return assigned + repartitioning.advance(self, now_ms)
        return []

    def letters_revived(self, refs: Collection[PartitionRef]) -> list[Effect]:
        return hints.letters_revived(self, refs)

    # --- time ----------------------------------------------------------------------------------

    @whole
    def tick(self, now_ms: int) -> list[Effect]:
        """Ends leases, and windows that wait for a lane that doesn't report; plans when due."""
        self._forgive_own_absence(now_ms)
        effects = self._lose_silent(now_ms)
        if self.learning.is_complete(now_ms):
            effects += membership.end_learning(self)
        if not self.learning.is_on:
            effects += self._end_leases(now_ms)
            effects += grace.tick(self, now_ms)
            effects += subscribing.expire(self, now_ms)
            windows.watch_idle(self, now_ms)
            expired = self.lanes.unread(now_ms - self.timing.lease_ms)
            if expired:
                effects += self._retake(expired)
        for router in self.of_role("router"):
            effects += windows.end_crippled_window(self, router.hello.node_id, now_ms)
        effects += windows.ask_for_proof(self, now_ms)
        effects += self._fence_again(now_ms)
        effects += moving.advance(self, now_ms)
        effects += resetting.advance(self, now_ms)
        effects += repartitioning.advance(self, now_ms)
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
        return [EndSession(session) for session in (*silent, *gone)]

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
        if absent_ms > self.timing.grace_ms // 2:
            # A member that came back meanwhile may still wait to be heard.
            for member in self.members.values():
                if member.gone_ms is not None:
                    member.gone_ms = min(now_ms, member.gone_ms + absent_ms)
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
        self.repartitions.forgive(absent_ms)
        self.groups.forgive(absent_ms)

    # --- what the stores know better -----------------------------------------------------------

    @whole
    def fenced(
        self,
        owners: Iterable[Owner],
        *,
        overtaken: Iterable[tuple[PartitionRef, int]] = (),
        unclaimed: Iterable[Unclaimed] = (),
        put_back: Collection[PartitionRef] = (),
    ) -> list[Effect]:
        """The checkpoints are claimed: the routers that got these partitions may hear of it. Those
        in `overtaken` are held under a higher epoch, those in `unclaimed` can't be claimed. Those
        in `put_back` an operator has put back, and with them what groups have processed of them.

        Before that it is kept that a position is where an operator wants it, or where nobody misses
        anything: a coordinator that didn't know would put it there again, back from where the new
        reader has brought it. And before a subscriber is told "subscribed" while a lane may read on
        that doesn't know it, it is kept from where that partition is to be read again.
        """
        effects = [e for ref, epoch in overtaken for e in self._overtaken(ref, epoch)]
        is_news = False
        for owner in owners:
            if self.unfenced.get(owner.ref) == owner:
                del self.unfenced[owner.ref]
                is_news |= self.resets.putting.pop(owner.ref, None) is not None
                is_news |= self.again_from.pop(owner.ref, None) is not None
                if self.unclaimed.pop(owner.ref, None) is not None:
                    topology_changes.claimed_at_last(self, owner)
        for one in unclaimed:
            ref = one.owner.ref
            if self.unfenced.get(ref) == one.owner:
                self.unclaimed[ref] = one.why
                if one.head is not None and ref not in self.again_from:
                    self.again_from[ref], is_news = one.head, True
        effects += [Persist(self.to_store())] if is_news else []
        # Also where the partition has another epoch by now: of the groups nobody else knows.
        effects += sharing.renew(self, {ref.topic for ref in put_back})
        return effects + topology_changes.assign_routers(self) + subscribing.settle_floor(self)

    def _unclaimable(self, owners: Iterable[Owner]) -> list[Effect]:
        """A lane can't claim the positions of these. Where no lane is known to read them, they get
        a new epoch, so that nobody waits for a lane that isn't known: from now on the coordinator
        itself asks for the claim."""
        refs = [
            owner.ref
            for owner in owners
            if self.sources.owners.get(owner.ref) == owner
            and self.lanes.is_in_doubt(owner.ref)
            and owner.ref not in self.unfenced
        ]
        return self._retake(refs) if refs and not self.learning.is_on else []

    def _fence_again(self, now_ms: int) -> list[Effect]:
        """The store was away when these were to be claimed."""
        if not self.unfenced or now_ms < self.fence_at_ms:
            return []
        self.fence_at_ms = now_ms + FENCE_AGAIN_MS
        return [topology_changes.fence(self, [self.unfenced[ref] for ref in sorted(self.unfenced)])]

    def _overtaken(self, ref: PartitionRef, epoch: int) -> list[Effect]:
        """The checkpoint of `ref` is held under a higher epoch than was given out: go above it."""
        current = self.sources.owners.get(ref)
        if current is None or current.epoch > epoch:
            return []
        owner = self.sources.raise_above(ref, epoch)
        return topology_changes.changed(self, grown={owner.node_id}, fenced=(owner,))

    def _log_overtaken(self, member: Member, ref: PartitionRef, epoch: int) -> list[Effect]:
        """The log of `ref` is held under a higher epoch than was given out, to its owner or for the
        deletion of its topic: go above it."""
        current = self.logs.owners.get(ref)
        if current is None or current.epoch > epoch:
            return []
        if current.node_id == NOBODY and ref.topic in self.deleted:
            if current.epoch == epoch:
                return []  # somebody has dropped its records
            operating.doubt_deletions(self, {ref.topic})
        elif current.node_id != member.hello.node_id:
            return []
        self.logs.raise_above(ref, epoch)
        return topology_changes.changed(self)

    # --- operators -----------------------------------------------------------------------------

    @whole
    def create_topic(self, name: str, partitions: int, placement: Placement) -> list[Effect]:
        error = operating.creation_refusal(self, name, partitions, placement)
        if error is not None:
            return [Refuse(error)]
        return operating.create_topic(self, name, partitions, placement)

    @whole
    def delete_topic(self, name: str) -> list[Effect]:
        if (error := operating.deletion_refusal(self, name)) is not None:
            return [Refuse(error)]
        return operating.delete_topic(self, name)

    @whole
    def letters_swept(self, names: Collection[str]) -> list[Effect]:
        """Of these deleted topics."""
        return [] if self.learning.is_on else operating.letters_swept(self, names)

    @whole
    def repartition(self, name: str, to: int, now_ms: int) -> list[Effect]:
        """Bring a topic to `to` partitions while everything goes on."""
        error = operating.learning_refusal(self) or repartitioning.refusal(self, name, to)
        if error is not None:
            return [Refuse(error)]
        return repartitioning.begin(self, name, to, now_ms)

    @whole
    def rebalance(self, now_ms: int) -> list[Effect]:
        if (error := operating.learning_refusal(self)) is not None:
            return [Refuse(error)]
        return self._rebalance(now_ms)

    @whole
    def reset(self, ref: PartitionRef, reset: Reset, now_ms: int) -> list[Effect]:
        """Put the position of a source partition elsewhere, and read it from there."""
        error = operating.learning_refusal(self) or resetting.refusal(self, ref, reset)
        if error is not None:
            return [Refuse(error)]
        return resetting.begin(self, ref, reset, now_ms)

    @whole
    def regroup(self, group_id: str, wanted: Collection[int]) -> list[Effect]:
        """The positions of a group are noted to go elsewhere, in as many partitions as were
        `wanted`: the consumers that own its targets claim them anew."""
        error = operating.learning_refusal(self) or regrouping.refusal(self, group_id, wanted)
        return [Refuse(error)] if error is not None else sharing.renew_group(self, group_id)

    @whole
    def drain(self, node_id: str, now_ms: int, *, draining: bool = True) -> list[Effect]:
        """Let a node give everything away and get nothing, or end that."""
        if (error := operating.drain_refusal(self, node_id, draining=draining)) is not None:
            return [Refuse(error)]
        return operating.drain(self, node_id, now_ms, draining=draining)

    @whole
    def restart(self, node_id: str) -> list[Effect]:
        """Let a node stop and begin anew; it keeps what it has meanwhile."""
        if (error := operating.restart_refusal(self, node_id)) is not None:
            return [Refuse(error)]
        return operating.restart(self, node_id)

    @whole
    def operate_connector(self, wish: connecting.Wish) -> list[Effect]:
        if (error := connecting.refusal(self, wish)) is not None:
            return [Refuse(error)]
        return connecting.done(self, wish)

    @whole
    def create_token(self, token: ApiToken, *, first: bool = False) -> list[Effect]:
        """Let in who says it; `first`: only where nobody may make tokens yet."""
        learning = operating.learning_refusal(self)
        error = learning or tokens.creation_refusal(self, token, first=first)
        if error is not None:
            return [Refuse(error)]
        return tokens.put(self, token)

    @whole
    def revoke_token(self, name: str) -> list[Effect]:
        learning = operating.learning_refusal(self)
        if (error := learning or tokens.revocation_refusal(self, name)) is not None:
            return [Refuse(error)]
        return tokens.revoke(self, name)
