"""A cluster without processes: feeds events to the decisions, remembers what was sent to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.decide.coordination import invariants
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import (
    Effect,
    EndSession,
    FenceCheckpoints,
    Persist,
    Refuse,
    Send,
    Unclaimed,
)
from headgate.decide.coordination.members.members import Timing
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.message import Message
from headgate.model.control.to_coordinator import Hello, SessionRole
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredState
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner

M = TypeVar("M", bound=Message)

TIMING = Timing(lease_ms=30_000, check_in_ms=5_000, lane_report_timeout_ms=5_000)


@dataclass
class World:
    """`acks` makes every session acknowledge topologies at once, as live nodes do; `fences` makes
    the checkpoint store answer at once, but for those that are `damaged`, whose logs end there."""

    stored: StoredState = field(default_factory=lambda: StoredState(boot=1))
    acks: bool = True
    fences: bool = True
    damaged: dict[PartitionRef, int] = field(default_factory=dict)
    now_ms: int = 1_000
    effects: list[Effect] = field(default_factory=list)
    inbox: dict[int, list[from_coordinator.FromCoordinator]] = field(default_factory=dict)
    hung: set[int] = field(default_factory=set)
    next_session: int = 1

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.stored, TIMING, "coordinator-1", self.now_ms)

    # --- events ----------------------------------------------------------------------------------

    def join(self, role: SessionRole, node_id: str, incarnation: str = "a") -> int:
        return self.open(Hello(role=role, node_id=node_id, incarnation=incarnation))

    def lane(
        self,
        *owns: Owner,
        window: int = 1,
        attempt: int = 0,
        assignment: int | None = None,
        revision: int = 0,
        incarnation: str = "a",
        claimed: bool = True,
        proves: bool = True,
    ) -> int:
        """A lane that has claimed `owns` and proves it at the store, or has yet to."""
        router = self.cluster.members.get(owns[0].node_id)
        number = router.assignment if router is not None else 0
        session = self.open(
            Hello(
                role="lane",
                node_id=owns[0].node_id,
                incarnation=incarnation,
                window=window,
                attempt=attempt,
                assignment=number if assignment is None else assignment,
                owns=owns if claimed else (),
                wants=() if claimed else owns,
                revision=revision,
            )
        )
        if claimed and proves and session not in self.hung:
            self.say(session, to_coordinator.Claimed(owns))
        return session

    def open(self, hello: Hello) -> int:
        session, self.next_session = self.next_session, self.next_session + 1
        self.inbox[session] = []
        self.apply(self.cluster.opened(session, hello, self.now_ms))
        return session

    def say(self, session: int, message: to_coordinator.ToCoordinator) -> None:
        self.apply(self.cluster.received(session, message, self.now_ms))

    def drop(self, session: int) -> None:
        self.apply(self.cluster.closed(session, self.now_ms))

    def wait(self, ms: int, *, alive: tuple[int, ...] = (), frozen: tuple[int, ...] = ()) -> None:
        """Time passes in steps of a second, in which the nodes in `alive` check in, and every lane
        that isn't `frozen`."""
        for _ in range(0, ms, 1_000):
            self.now_ms += 1_000
            for session in (*alive, *self.cluster.lanes.by_session):
                if session not in frozen:
                    self.say(session, to_coordinator.CheckIn())
            self.apply(self.cluster.tick(self.now_ms))

    def subscribe(self, gateway: int, subscription_id: str, topic: str = "flights") -> int:
        """Registers and returns the revision that must be adopted."""
        member = self.cluster.member_of(gateway)
        assert member is not None
        subscription = Subscription(subscription_id, member.hello.node_id, topic)
        self.say(gateway, to_coordinator.Register(7, (subscription,)))
        return self.last(gateway, from_coordinator.Registered).revision

    def create(self, topic: str, partitions: int = 1) -> list[Owner]:
        """Creates a topic and returns who reads its partitions."""
        self.apply(self.cluster.create_topic(topic, partitions, "keyed"))
        return self.sources(topic)

    def sources(self, topic: str) -> list[Owner]:
        return [o for o in self.cluster.sources.owned() if o.ref.topic == topic]

    # --- observations ----------------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        """Carry out what was decided; raises why it was refused."""
        invariants.check(self.cluster)
        for effect in effects:
            if isinstance(effect, Refuse):
                assert effects == [effect], "refused, and done all the same"
                raise effect.error
            self.effects.append(effect)
            if isinstance(effect, Send):
                self.inbox.setdefault(effect.session, []).append(effect.message)
            elif isinstance(effect, EndSession):
                self.hung.add(effect.session)
        for effect in effects:
            if isinstance(effect, FenceCheckpoints) and self.fences:
                self.apply(self._claimed(effect.owners))
        if self.acks:
            for effect in effects:
                if isinstance(effect, Send) and isinstance(
                    effect.message, from_coordinator.PushTopology
                ):
                    generation = effect.message.topology.generation
                    self.say(effect.session, to_coordinator.AckTopology(generation))

    def _claimed(self, owners: Sequence[Owner]) -> list[Effect]:
        well = [owner for owner in owners if owner.ref not in self.damaged]
        unclaimed = [
            Unclaimed(owner, "it is no position", self.damaged[owner.ref])
            for owner in owners
            if owner.ref in self.damaged
        ]
        return self.cluster.fenced(well, unclaimed=unclaimed)

    def sent(self, session: int, kind: type[M]) -> list[M]:
        return [m for m in self.inbox[session] if isinstance(m, kind)]

    def last(self, session: int, kind: type[M]) -> M:
        return self.sent(session, kind)[-1]

    def floor(self, gateway: int) -> int:
        return max(
            (m.revision for m in self.sent(gateway, from_coordinator.AdoptionFloor)), default=0
        )

    def persisted(self) -> StoredState:
        return [e.state for e in self.effects if isinstance(e, Persist)][-1]

    def fenced(self) -> list[Owner]:
        return [o for e in self.effects if isinstance(e, FenceCheckpoints) for o in e.owners]


def ref(topic: str, partition: int = 0) -> PartitionRef:
    return PartitionRef(topic, partition)
