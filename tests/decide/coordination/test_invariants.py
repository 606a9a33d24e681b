"""Whatever happens in whatever order: one owner counts, nobody is told too early, and once it is
calm everything runs.

The books are the simulation's: what lanes, gateways and stores really have, not what the
coordinator thinks they have. What must hold at every effect is checked there.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.decide.lane.checkpoints import Reset
from headgate.errors import HeadgateError
from headgate.model.event import PartitionRef
from tests.decide.coordination.peers import Gateway, Ingest, Lane, Peer, Router
from tests.decide.coordination.simulation import TIMING, Simulation

TOPICS = ("flights", "trains")
ROUTERS = ("router-1", "router-2", "router-3")
INGEST = ("ingest-1", "ingest-2")
GATEWAYS = ("gateway-1", "gateway-2")
NODES = (*ROUTERS, *INGEST, *GATEWAYS)
OWNERLESS_MS = TIMING.lease_ms + 2 * TIMING.check_in_ms + TIMING.handoff_ms
CALM_S = (TIMING.learn_for_ms + OWNERLESS_MS) // 1_000
"""By then the longest learning is over, every lease has ended, every move was given its time."""
PLANS_S = 2 * TIMING.rebalance_ms // 1_000

some_node = st.sampled_from(NODES)
some_router = st.sampled_from(ROUTERS)
some_gateway = st.sampled_from(GATEWAYS)


class CoordinatorMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.sim = Simulation()
        self.processes = 0
        self.resets = 0
        self.deleted: set[str] = set()
        """Every topic that ever was."""
        self.wanted: dict[PartitionRef, Reset] = {}
        """The last reset of each partition that was promised."""
        self.ownerless_since_ms: dict[PartitionRef, int] = {}
        for node_id in ("ingest-1", "gateway-1", "router-1", "router-2"):
            self.node_starts(node_id)
        self.topic_is_created("flights", 3)
        self.sim.calm(3)

    # --- processes and streams -------------------------------------------------------------------

    @rule(node_id=some_node)
    def node_starts(self, node_id: str) -> None:
        """Refused where the id is taken."""
        self.processes += 1
        name = {"node_id": node_id, "incarnation": str(self.processes)}
        peer: Peer
        if node_id in ROUTERS:
            peer = Router(**name)  # type: ignore[arg-type]
        elif node_id in INGEST:
            stored = {"store": self.sim.log_epochs, "records": self.sim.log_records}
            peer = Ingest(**name, **stored)  # type: ignore[arg-type]
        else:
            peer = Gateway(**name)  # type: ignore[arg-type]
        self.sim.start(peer)

    @rule(node_id=some_node, again=st.booleans())
    def node_is_killed(self, node_id: str, again: bool) -> None:
        if node_id in self.sim.nodes:
            self.sim.kill(self.sim.nodes[node_id])
            if again:
                self.node_starts(node_id)

    @rule(node_id=some_node)
    def node_is_cut_off(self, node_id: str) -> None:
        if node_id in self.sim.nodes:
            self.sim.disconnect(self.sim.nodes[node_id])

    @rule(node_id=some_node)
    def node_comes_back(self, node_id: str) -> None:
        if node_id in self.sim.nodes:
            self.sim.connect(self.sim.nodes[node_id])

    @rule(node_id=some_node)
    def node_leaves(self, node_id: str) -> None:
        if node_id in self.sim.nodes:
            self.sim.leave(self.sim.nodes[node_id])

    @rule(node_id=some_node, frozen=st.booleans())
    def node_freezes_or_thaws(self, node_id: str, frozen: bool) -> None:
        if node_id in self.sim.nodes:
            self.sim.nodes[node_id].frozen = frozen
            if not frozen:
                self.sim.nodes[node_id].catch_up()

    @rule(gateway_id=some_gateway, late=st.booleans())
    def gateway_adopts_late_or_at_once(self, gateway_id: str, late: bool) -> None:
        gateway = self.sim.nodes.get(gateway_id)
        if gateway is not None:
            gateway.late = late
            gateway.catch_up()

    @rule(gateway_id=some_gateway, number=st.integers(0, 3), ttl_s=st.sampled_from((0, 5, 20)))
    def somebody_subscribes(self, gateway_id: str, number: int, ttl_s: int) -> None:
        gateway = self.sim.nodes.get(gateway_id)
        if isinstance(gateway, Gateway) and gateway.session is not None and not gateway.frozen:
            gateway.ttl_ms[f"{gateway_id}-{number}"] = ttl_s * 1_000
            gateway.subscribe(f"{gateway_id}-{number}")

    @rule(gateway_id=some_gateway, renews=st.booleans())
    def gateway_renews_or_not(self, gateway_id: str, renews: bool) -> None:
        gateway = self.sim.nodes.get(gateway_id)
        if isinstance(gateway, Gateway):
            gateway.renews = renews

    @rule(node_id=st.sampled_from(INGEST))
    def producers_write(self, node_id: str) -> None:
        node = self.sim.nodes.get(node_id)
        if isinstance(node, Ingest):
            node.append()

    # --- lanes -----------------------------------------------------------------------------------

    @rule(router_id=some_router, lanes=st.integers(1, 2), hesitates=st.booleans())
    def a_window_opens(self, router_id: str, lanes: int, hesitates: bool) -> None:
        router = self.sim.nodes.get(router_id)
        if isinstance(router, Router):
            self.sim.open_window(router, lanes=lanes, hesitates=hesitates)

    def some_lane(self, data: st.DataObject) -> Lane | None:
        if not self.sim.lanes:
            return None
        return self.sim.lanes[data.draw(st.integers(0, len(self.sim.lanes) - 1))]

    @rule(data=st.data())
    def a_lane_claims_at_last(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            lane.hesitates = False
            lane.claim()

    @rule(data=st.data())
    def a_lane_lets_go(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            lane.let_go()

    @rule(data=st.data())
    def a_lane_saves(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.save(lane)

    @rule(data=st.data(), late=st.booleans())
    def a_lane_adopts_late_or_at_once(self, data: st.DataObject, late: bool) -> None:
        if (lane := self.some_lane(data)) is not None:
            lane.late = late
            lane.catch_up()

    @rule(data=st.data())
    def a_lane_is_cut_off_and_goes_on_reading(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.disconnect(lane)

    @rule(data=st.data())
    def a_lane_comes_back(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            self.sim.connect(lane)

    @rule(data=st.data())
    def a_lane_freezes(self, data: st.DataObject) -> None:
        if (lane := self.some_lane(data)) is not None:
            lane.frozen = True

    @rule(data=st.data(), on_purpose=st.booleans())
    def a_lane_ends(self, data: st.DataObject, on_purpose: bool) -> None:
        if (lane := self.some_lane(data)) is not None:
            if on_purpose:
                lane.end()
            self.sim.kill(lane)

    # --- operators -------------------------------------------------------------------------------

    def ask(self, request: Callable[[], None]) -> None:
        """Operators may be refused, and that changes nothing."""
        try:
            request()
        except HeadgateError:
            pass

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def topic_is_created(self, topic: str, partitions: int) -> None:
        cluster = self.sim.cluster
        if cluster.is_dropped(topic) and topic not in cluster.topics:
            self.ask(lambda: self.sim.ask(lambda: cluster.create_topic(topic, partitions, "keyed")))
            found = [ref for ref in self.sim.log_records if ref.topic == topic]
            assert not found or self.sim.has_forgotten, f"{found} have records of a former topic"

    @rule(topic=st.sampled_from(TOPICS))
    def topic_is_deleted(self, topic: str) -> None:
        self.ask(lambda: self.sim.ask(lambda: self.sim.cluster.delete_topic(topic)))
        if topic not in self.sim.cluster.topics:
            self.wanted = {ref: one for ref, one in self.wanted.items() if ref.topic != topic}

    @rule(partition=st.integers(0, 2))
    def position_is_reset(self, partition: int) -> None:
        sim, ref = self.sim, PartitionRef("flights", partition)
        self.resets += 1
        reset = Reset(self.resets)

        def wanted() -> None:
            struck = sim.faults.struck
            sim.ask(lambda: sim.cluster.reset(ref, reset, sim.now_ms))
            kept = {(one.ref, one.settled) for one in sim.durable.resets}
            if sim.faults.struck == struck or (ref, reset.settled) in kept:
                self.wanted[ref] = reset

        self.ask(wanted)

    @rule()
    def rebalance(self) -> None:
        sim = self.sim
        self.ask(lambda: sim.ask(lambda: sim.cluster.rebalance(sim.now_ms)))

    @rule(node_id=some_node, draining=st.booleans())
    def node_is_drained_or_not(self, node_id: str, draining: bool) -> None:
        sim = self.sim
        self.ask(lambda: sim.ask(lambda: sim.cluster.drain(node_id, sim.now_ms, draining=draining)))

    # --- the coordinator and time ----------------------------------------------------------------

    @rule(back=st.booleans())
    def coordinator_restarts(self, back: bool) -> None:
        self.sim.restart()
        self.after_restart(back=back)

    @rule()
    def coordinator_dies_between_the_next_two_effects(self) -> None:
        self.sim.dies_after_persist = True

    @rule(lines=st.integers(1, 2_000))
    def coordinator_fails_within_a_decision(self, lines: int) -> None:
        """After that many more lines; the one before it was the last that counts."""
        self.sim.faults.left = lines

    @rule(node_id=some_node, back=st.booleans())
    def coordinator_restarts_with_nothing(self, node_id: str, back: bool) -> None:
        """Somebody who remembers comes first; a cluster in which nobody does is another one."""
        witness = self.sim.nodes.get(node_id)
        if witness is None or not witness.topology.topics or witness.frozen:
            return
        self.sim.restart(with_nothing=True)
        self.wanted.clear()
        self.sim.connect(witness)
        self.after_restart(back=back)

    def after_restart(self, *, back: bool) -> None:
        self.ownerless_since_ms.clear()
        if back:
            for peer in [*self.sim.nodes.values(), *self.sim.lanes]:
                if peer.session is None:
                    self.sim.connect(peer)

    @rule(seconds=st.sampled_from((1, 6, 21, 31)))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.sim.wait(1)
            self.nothing_stays_without_an_owner()

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def no_subscriber_is_told_too_early(self) -> None:
        floor = self.sim.cluster.registry.floor
        for ref in self.sim.cluster.refs():
            for lane in self.sim.readers(ref):
                assert lane.revision >= floor, f"{lane} settles {ref} below {floor}"

    @invariant()
    def whoever_was_told_subscribed_is_matched(self) -> None:
        """For as long as its gateway has reason to believe it: it holds a stream, and has heard
        all that came over it."""
        for gateway in self.sim.nodes.values():
            if not isinstance(gateway, Gateway) or gateway.session is None or gateway.waiting:
                continue
            told = {name for name in gateway.subscriptions if gateway.has_subscribed(name)}
            for ref in self.sim.cluster.refs():
                for lane in self.sim.readers(ref):
                    missing = told - lane.subscriptions if ref.topic == "flights" else set()
                    assert not missing, f"{lane} settles {ref} without {missing}"

    @invariant()
    def two_processes_never_read_under_the_newest_epoch(self) -> None:
        newest: dict[PartitionRef, int] = {}
        for ref, epoch in self.sim.assigned:
            newest[ref] = max(epoch, newest.get(ref, 0))
        for ref, epoch in newest.items():
            processes = {
                (lane.node_id, lane.incarnation)
                for lane in self.sim.lanes
                if ref in lane.holds and lane.holds[ref].epoch == epoch
            }
            assert len(processes) <= 1, f"{ref} under epoch {epoch}: {processes}"

    @invariant()
    def what_is_deleted_stays_deleted_until_it_is_back(self) -> None:
        """No ingest node that is late with a deletion casts a doubt on a later one."""
        kept = self.sim.durable
        self.deleted.update(kept.deleted)
        missing = self.deleted.difference(kept.deleted, (topic.name for topic in kept.topics))
        assert not missing or self.sim.has_forgotten, f"{missing} are merely absent"

    def nothing_stays_without_an_owner(self) -> None:
        """For longer than it takes, while somebody is there who could have it."""
        sim = self.sim
        healthy = any(
            isinstance(n, Router) and n.session is not None and not n.frozen
            for n in sim.nodes.values()
        )
        if not healthy or sim.cluster.learning.is_on:
            self.ownerless_since_ms.clear()
            return
        for ref in sim.cluster.refs():
            owner = sim.cluster.sources.owners.get(ref)
            if owner is not None and isinstance(sim.nodes.get(owner.node_id), Router):
                self.ownerless_since_ms.pop(ref, None)
            else:
                since_ms = self.ownerless_since_ms.setdefault(ref, sim.now_ms)
                assert sim.now_ms - since_ms <= OWNERLESS_MS, f"{ref} has {owner}"

    def teardown(self) -> None:
        """After any history, everything runs once it is calm, and stays as it is."""
        if not hasattr(self, "sim"):
            return
        self.sim.dies_after_persist = False
        self.sim.faults.left = None
        for _ in range(CALM_S):
            self.sim.calm(1)
            self.no_subscriber_is_told_too_early()
            if not list(self.sim.unrest()):
                break
        assert list(self.sim.unrest()) == []
        for ref, reset in self.wanted.items():
            assert self.sim.put.get(ref, [None])[-1] == reset, f"{ref} was never put to {reset}"
        owners = self.sim.cluster.sources.owned()
        self.sim.calm(PLANS_S)
        assert list(self.sim.unrest()) == []
        assert self.sim.cluster.sources.owned() == owners


TestCoordinatorInvariants = CoordinatorMachine.TestCase
TestCoordinatorInvariants.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
