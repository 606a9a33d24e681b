"""Whatever happens in whatever order, epochs grow and nobody is told "subscribed" too early."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.model import control
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner
from tests.decide.coordination.world import World

TOPICS = ("flights", "trains")
ROUTERS = ("router-1", "router-2")
GATEWAYS = ("gateway-1", "gateway-2")


class CoordinatorMachine(RuleBasedStateMachine):
    """Keeps its own, naive books: which lanes really read, and what each has really adopted."""

    @initialize()
    def start(self) -> None:
        self.world = World()
        self.world.join("ingest", "ingest-1")
        self.sessions: dict[str, int] = {}
        self.incarnations = dict.fromkeys((*ROUTERS, *GATEWAYS), 0)
        self.adopted: dict[int, int] = {}
        """Revision per lane that reads, connected or cut off, until it ends or is fenced."""
        self.owns: dict[int, tuple[Owner, ...]] = {}
        self.epochs: dict[PartitionRef, int] = {}
        self.attempts = 0
        for node_id in (ROUTERS[0], GATEWAYS[0]):
            self.connect(node_id)
        self.world.create("flights", 1)
        self.router_runs_its_lanes(ROUTERS[0])

    def connect(self, node_id: str) -> None:
        role = "router" if node_id in ROUTERS else "gateway"
        session = self.world.join(role, node_id, str(self.incarnations[node_id]))  # type: ignore[arg-type]
        if session not in self.world.hung:
            self.sessions[node_id] = session

    @rule(node_id=st.sampled_from((*ROUTERS, *GATEWAYS)))
    def node_joins(self, node_id: str) -> None:
        if node_id not in self.sessions:
            self.connect(node_id)

    @rule(node_id=st.sampled_from((*ROUTERS, *GATEWAYS)))
    def node_is_restarted(self, node_id: str) -> None:
        if node_id in self.sessions:
            self.world.drop(self.sessions.pop(node_id))
            self.incarnations[node_id] += 1
            self.connect(node_id)

    @rule(node_id=st.sampled_from((*ROUTERS, *GATEWAYS)))
    def node_is_cut_off(self, node_id: str) -> None:
        if node_id in self.sessions:
            self.world.drop(self.sessions.pop(node_id))

    @rule(node_id=st.sampled_from((*ROUTERS, *GATEWAYS)))
    def node_leaves(self, node_id: str) -> None:
        if node_id in self.sessions:
            self.world.say(self.sessions.pop(node_id), control.Goodbye())
            self.incarnations[node_id] += 1

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 3))
    def topic_is_created(self, topic: str, partitions: int) -> None:
        if topic not in self.world.cluster.topics and self.world.cluster.is_dropped(topic):
            self.world.create(topic, partitions)

    @rule(topic=st.sampled_from(TOPICS))
    def topic_is_deleted(self, topic: str) -> None:
        if topic in self.world.cluster.topics:
            self.world.apply(self.world.cluster.delete_topic(topic))

    @rule(router_id=st.sampled_from(ROUTERS))
    def a_window_starts(self, router_id: str) -> None:
        self.router_runs_its_lanes(router_id)

    def router_runs_its_lanes(self, router_id: str) -> None:
        """As Spark does it: a lane starts when the former one of its partitions has died."""
        if router_id not in self.sessions:
            return
        assigned = self.world.sent(self.sessions[router_id], control.Assign)
        for owner in assigned[-1].sources if assigned else ():
            for session, owns in list(self.owns.items()):
                if any(o.ref == owner.ref for o in owns):
                    self.lane_dies(session)
            self.attempts += 1
            session = self.world.lane(
                owner,
                attempt=self.attempts,
                incarnation=str(self.incarnations[router_id]),
                assignment=assigned[-1].number,
            )
            snapshots = self.world.sent(session, control.SubscriptionSnapshot)
            if snapshots:
                self.owns[session] = (owner,)
                self.adopted[session] = snapshots[-1].revision

    def lane_dies(self, session: int) -> None:
        del self.owns[session], self.adopted[session]
        if session not in self.world.hung:
            self.world.drop(session)

    @rule(data=st.data())
    def a_lane_adopts(self, data: st.DataObject) -> None:
        if self.owns:
            session = data.draw(st.sampled_from(sorted(self.owns)))
            changes = self.world.sent(session, control.SubscriptionChanges)
            if changes:
                self.adopted[session] = max(self.adopted[session], changes[-1].revision)
                self.world.say(session, control.AckSubscriptions(self.adopted[session]))

    @rule(data=st.data())
    def a_lane_ends(self, data: st.DataObject) -> None:
        if self.owns:
            session = data.draw(st.sampled_from(sorted(self.owns)))
            self.world.say(session, control.Goodbye())
            del self.owns[session], self.adopted[session]

    @rule(data=st.data())
    def a_lane_is_cut_off_but_goes_on_reading(self, data: st.DataObject) -> None:
        if self.owns:
            self.world.drop(data.draw(st.sampled_from(sorted(self.owns))))

    @rule(gateway_id=st.sampled_from(GATEWAYS), number=st.integers(0, 5))
    def somebody_subscribes(self, gateway_id: str, number: int) -> None:
        if gateway_id in self.sessions:
            self.world.subscribe(self.sessions[gateway_id], f"{gateway_id}-{number}")

    @rule(ms=st.sampled_from((1_000, 6_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        self.world.wait(ms, alive=tuple(self.sessions.values()))

    def may_count(self, session: int) -> bool:
        """A lane whose epoch is history is refused by checkpoints and gateways alike."""
        return all(
            self.world.cluster.sources.owners[o.ref].epoch == o.epoch for o in self.owns[session]
        )

    @invariant()
    def no_subscriber_is_told_too_early(self) -> None:
        floor = self.world.cluster.registry.floor
        for session, adopted in self.adopted.items():
            if self.may_count(session) and self.owns[session][0].ref.topic in (
                self.world.cluster.topics
            ):
                assert adopted >= floor

    @invariant()
    def epochs_only_grow(self) -> None:
        for owner in self.world.cluster.sources.all():
            assert owner.epoch >= self.epochs.get(owner.ref, 0)
            self.epochs[owner.ref] = owner.epoch

    @invariant()
    def two_owners_never_share_an_epoch(self) -> None:
        told: dict[tuple[PartitionRef, int], str] = {}
        for effect_session, messages in self.world.inbox.items():
            for message in messages:
                if isinstance(message, control.Assign):
                    for owner in message.sources:
                        key = (owner.ref, owner.epoch)
                        assert told.setdefault(key, owner.node_id) == owner.node_id, effect_session


TestCoordinatorInvariants = CoordinatorMachine.TestCase
TestCoordinatorInvariants.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None
)
