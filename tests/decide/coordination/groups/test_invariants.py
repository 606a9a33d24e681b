"""Consumers, gateways and the coordinator fail in any order: a target has one owner that counts,
and once it is calm every target is with somebody who is there, evenly.

The books are the gateways' and the store's: what they were told and what they have claimed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect, EndSession, Persist, Send
from headgate.decide.coordination.invariants import check
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topic
from tests.decide.coordination.world import TIMING

TARGETS = 5
GROUP = group_id("flights", "radar")
CONSUMERS = ("a", "b", "c", "d")
GATEWAYS = ("gateway-1", "gateway-2")
CALM_MS = 2 * TIMING.lease_ms + TIMING.handoff_ms + 3 * TIMING.rebalance_ms


@dataclass
class Consumer:
    id: str
    incarnation: str
    group: Group | None = None
    owns: dict[PartitionRef, Owner] = field(default_factory=dict)


@dataclass
class Gateway:
    node_id: str
    incarnation: str
    session: int | None = None
    generation: int = 0
    consumers: dict[str, Consumer] = field(default_factory=dict)
    asked: list[Owner] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now_ms, self.numbers = 1_000, 0
        self.stored = StoredState(boot=1, topics=(Topic("flights", 1),))
        self.store: dict[PartitionRef, int] = {}
        self.highest: dict[PartitionRef, int] = {}
        self.gateways: dict[str, Gateway] = {}
        self.coordinator_starts()
        for node_id in GATEWAYS:
            self.gateway_starts(node_id)

    def coordinator_starts(self) -> None:
        self.cluster = Cluster(self.stored, TIMING, "coordinator", self.now_ms)
        for gateway in self.gateways.values():
            gateway.session = None

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- the wires -------------------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        check(self.cluster)
        for effect in effects:
            if isinstance(effect, Persist):
                self.stored = effect.state
            elif isinstance(effect, EndSession):
                self.hang(effect.session)
            elif isinstance(effect, Send):
                self.hear(effect.session, effect.message)

    def hang(self, session: int) -> None:
        for gateway in self.gateways.values():
            gateway.session = None if gateway.session == session else gateway.session

    def say(self, gateway: Gateway, message: to_coordinator.ToCoordinator) -> None:
        if gateway.session is not None:
            self.apply(self.cluster.received(gateway.session, message, self.now_ms))

    def hear(self, session: int, message: from_coordinator.FromCoordinator) -> None:
        gateway = next((g for g in self.gateways.values() if g.session == session), None)
        if gateway is None:
            return
        match message:
            case from_coordinator.PushTopology(topology):
                gateway.generation = topology.generation
            case from_coordinator.AssignTargets():
                self.assigned(gateway, message)
            case from_coordinator.RefuseConsumer(_, consumer_id, incarnation):
                consumer = gateway.consumers.get(consumer_id)
                if consumer is not None and consumer.incarnation == incarnation:
                    del gateway.consumers[consumer_id]
            case from_coordinator.LetGo(owners):
                gateway.asked += owners

    def assigned(self, gateway: Gateway, message: from_coordinator.AssignTargets) -> None:
        consumer = gateway.consumers.get(message.consumer)
        if consumer is None or consumer.incarnation != message.incarnation:
            return
        consumer.group = message.group
        consumer.owns = {owner.ref: owner for owner in message.owners}
        for owner in message.owners:
            if self.store.get(owner.ref, 0) > owner.epoch:
                del consumer.owns[owner.ref]
                told = to_coordinator.EpochTooLow(owner.ref, self.store[owner.ref], owner.epoch)
                self.say(gateway, told)
            else:
                self.store[owner.ref] = owner.epoch

    # --- what happens ----------------------------------------------------------------------------

    @rule(node_id=st.sampled_from(GATEWAYS))
    def gateway_starts(self, node_id: str) -> None:
        if node_id in self.gateways and self.gateways[node_id].session is not None:
            return
        self.gateways[node_id] = Gateway(node_id, str(self.number()))
        self.gateway_connects(node_id)

    @rule(node_id=st.sampled_from(GATEWAYS))
    def gateway_connects(self, node_id: str) -> None:
        gateway = self.gateways[node_id]
        if gateway.session is not None:
            return
        gateway.session = self.number()
        hello = to_coordinator.Hello(
            role="gateway",
            node_id=node_id,
            incarnation=gateway.incarnation,
            generation=gateway.generation,
        )
        gateway.asked.clear()
        self.apply(self.cluster.opened(gateway.session, hello, self.now_ms))
        for consumer in list(gateway.consumers.values()):
            self.join_message(gateway, consumer)
        self.say(gateway, to_coordinator.RegistrationComplete())

    @rule(node_id=st.sampled_from(GATEWAYS))
    def gateway_is_cut_off(self, node_id: str) -> None:
        gateway = self.gateways[node_id]
        if gateway.session is not None:
            session, gateway.session = gateway.session, None
            self.apply(self.cluster.closed(session, self.now_ms))

    @rule(node_id=st.sampled_from(GATEWAYS), consumer_id=st.sampled_from(CONSUMERS))
    def consumer_joins(self, node_id: str, consumer_id: str) -> None:
        gateway = self.gateways[node_id]
        if consumer_id in gateway.consumers:
            return
        consumer = Consumer(consumer_id, str(self.number()))
        gateway.consumers[consumer_id] = consumer
        self.join_message(gateway, consumer)

    @rule(from_=st.sampled_from(GATEWAYS), to=st.sampled_from(GATEWAYS), data=st.data())
    def consumer_moves(self, from_: str, to: str, data: st.DataObject) -> None:
        """The same process connects elsewhere; its former gateway hears of it later."""
        gateway = self.gateways[from_]
        if from_ == to or not gateway.consumers:
            return
        former = data.draw(st.sampled_from(sorted(gateway.consumers)))
        if former not in self.gateways[to].consumers:
            consumer = Consumer(former, gateway.consumers[former].incarnation)
            self.gateways[to].consumers[former] = consumer
            self.join_message(self.gateways[to], consumer)

    def join_message(self, gateway: Gateway, consumer: Consumer) -> None:
        message = to_coordinator.JoinGroup(
            topic="flights",
            group="radar",
            consumer=consumer.id,
            incarnation=consumer.incarnation,
            keys=100 * TARGETS,
            known=consumer.group,
            owns=tuple(consumer.owns.values()),
        )
        self.say(gateway, message)

    @rule(
        node_id=st.sampled_from(GATEWAYS),
        consumer_id=st.sampled_from(CONSUMERS),
        for_good=st.booleans(),
    )
    def consumer_goes(self, node_id: str, consumer_id: str, for_good: bool) -> None:
        gateway = self.gateways[node_id]
        consumer = gateway.consumers.pop(consumer_id, None)
        if consumer is not None:
            left = to_coordinator.LeaveGroup(GROUP, consumer_id, consumer.incarnation, for_good)
            self.say(gateway, left)

    @rule(node_id=st.sampled_from(GATEWAYS), some=st.booleans())
    def gateway_lets_go(self, node_id: str, some: bool) -> None:
        gateway = self.gateways[node_id]
        count = 1 if some else len(gateway.asked)
        released, gateway.asked = gateway.asked[:count], gateway.asked[count:]
        for consumer in gateway.consumers.values():
            for owner in released:
                if consumer.owns.get(owner.ref) == owner:
                    del consumer.owns[owner.ref]
        if released:
            self.say(gateway, to_coordinator.Released(tuple(released)))

    @rule(node_id=st.sampled_from(GATEWAYS), consumer_id=st.sampled_from(CONSUMERS))
    def gateway_has_no_room(self, node_id: str, consumer_id: str) -> None:
        gateway = self.gateways[node_id]
        consumer = gateway.consumers.get(consumer_id)
        if consumer is not None and consumer.owns:
            self.say(
                gateway, to_coordinator.NoRoom(max(consumer.owns.values(), key=lambda o: o.ref))
            )

    @rule(seconds=st.sampled_from((1, 3, 12, 35)))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1_000
            for gateway in self.gateways.values():
                self.say(gateway, to_coordinator.CheckIn())
            self.apply(self.cluster.tick(self.now_ms))

    @rule()
    def coordinator_restarts(self) -> None:
        self.stored = msgspec.structs.replace(self.stored, boot=self.stored.boot + 1)
        self.coordinator_starts()

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def a_target_has_one_owner_that_counts(self) -> None:
        holders = Counter(
            owner.ref
            for gateway in self.gateways.values()
            for consumer in gateway.consumers.values()
            for owner in consumer.owns.values()
            if self.store[owner.ref] == owner.epoch
        )
        assert all(count == 1 for count in holders.values()), holders

    @invariant()
    def epochs_only_grow(self) -> None:
        for owner in self.stored.targets:
            assert owner.epoch >= self.highest.get(owner.ref, 0)
            self.highest[owner.ref] = owner.epoch

    @rule()
    def calm(self) -> None:
        """Everybody is back, and obeys."""
        for node_id in GATEWAYS:
            self.gateway_connects(node_id)
        for _ in range(CALM_MS // 1_000):
            self.time_passes(1)
            for node_id in GATEWAYS:
                self.gateway_lets_go(node_id, some=False)
        there = {name for g in self.gateways.values() for name in g.consumers}
        if not there or GROUP not in self.cluster.groups.by_id:
            return
        owned = self.cluster.groups.targets.owned()
        assert len(owned) == TARGETS
        held = {
            owner
            for gateway in self.gateways.values()
            for consumer in gateway.consumers.values()
            for owner in consumer.owns.values()
        }
        assert set(owned) <= held, "an owner hasn't heard of what it owns"
        counts = Counter(dict.fromkeys(there, 0))
        counts.update(owner.node_id for owner in owned)
        assert set(counts) == there
        assert max(counts.values()) - min(counts.values()) <= 1, counts
        assert not self.cluster.groups.handoffs.by_ref


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
