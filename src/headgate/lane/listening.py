"""A lane's side of its stream to the coordinator: what it says, and how it acts upon each message.

Invariant: whatever is heard is acted upon in the order in which it came; what takes time (a proof,
a hand-off) goes on beside that, in the lane's crew.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.lane.course import Course
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Holding
from headgate.lane.life import Hold, StandingEvent, Window
from headgate.lane.positions.handing_off import HandingOff
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.subscriptions.adopted import Adopted
from headgate.lane.subscriptions.hearing import Hearing
from headgate.lane.surroundings import Surroundings
from headgate.lane.telling import Telling
from headgate.lane.tenure import Tenure
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.lanes import LaneSpec
from headgate.model.topology import Owner, Topology
from headgate.ports.control import ControlSession
from headgate.ports.machine import Machine
from headgate.tasks import Crew


class Listening:
    """A hand-off runs in the lane's `crew`."""

    def __init__(
        self,
        spec: LaneSpec,
        *,
        course: Course,
        holding: Holding,
        hearing: Hearing,
        adopted: Adopted,
        surroundings: Surroundings,
        handing_off: HandingOff,
        tenure: Tenure,
        dispatcher: Dispatcher,
        telling: Telling,
        crew: Crew,
        machine: Machine,
    ) -> None:
        self._spec = spec
        self._course = course
        self._holding = holding
        self._hearing = hearing
        self._adopted = adopted
        self._surroundings = surroundings
        self._handing_off = handing_off
        self._tenure = tenure
        self._dispatcher = dispatcher
        self._telling = telling
        self._crew = crew
        self._machine = machine

    def hello(self) -> to_coordinator.Hello:
        spec, course = self._spec, self._course
        self._adopted.said_hello()
        self._hearing.greets()
        return to_coordinator.Hello(
            role="lane",
            node_id=spec.router_id,
            incarnation=spec.incarnation,
            pid=self._machine.pid(),
            lane=spec.lane,
            window=spec.window,
            attempt=spec.attempt,
            assignment=spec.assignment,
            owns=self._holding.owned(),
            wants=() if course.has_begun or course.hold.state is Hold.RESTING else spec.owns,
            generation=self._surroundings.topology.generation,
            revision=self._adopted.revision,
            tells=True,
        )

    async def listen(self, session: ControlSession) -> None:
        async for message in session.messages():
            match message:
                case from_coordinator.Welcome():
                    await self._welcomed(session)
                case from_coordinator.PushTopology(topology):
                    if topology.generation > self._surroundings.topology.generation:
                        self._apply(topology)
                case (
                    from_coordinator.SubscriptionSnapshot() | from_coordinator.SubscriptionChanges()
                ):
                    if self._adopted.hear(message):
                        await self._acknowledge(session)
                case from_coordinator.EndWindow(reason, hand_over):
                    if hand_over:
                        self._course.hand_over(reason)
                    else:
                        self._course.end(reason)
                case from_coordinator.LetGo(owners, settle):
                    self._let_go(session, owners, settle=settle)
                case from_coordinator.Prove(asked_ms):
                    self._tenure.start_proof(session, asked_ms)
                case from_coordinator.ClaimNow(number):
                    self._hearing.answered(number)
                case from_coordinator.AskEvidence():
                    await session.send(self._telling.answer(message))
                case from_coordinator.Refused(reason):
                    self._tenure.refused(reason)
                case _:
                    self._hint(message)

    def _hint(self, message: from_coordinator.FromCoordinator) -> None:
        """What it would find out by itself, too, only later."""
        match message:
            case from_coordinator.TroubledGateways(gateway_ids):
                self._dispatcher.hint(gateway_ids)
            case from_coordinator.LettersRevived():
                self._dispatcher.look_for_letters()
            case _:
                pass

    async def adopt(self, session: ControlSession) -> None:
        while True:
            if await self._adopted.adopt(self._holding.read_so_far):
                await self._acknowledge(session)

    async def _welcomed(self, session: ControlSession) -> None:
        if self._course.has_begun:
            self._tenure.start_proof(session)
        if released := self._handing_off.released:
            # The coordinator may not have heard it the first time.
            await session.send(to_coordinator.Released(tuple(released)))
        if self._course.window.state is Window.OVERDUE:
            self._course.hand_over("time")

    def _let_go(self, session: ControlSession, owners: Sequence[Owner], *, settle: bool) -> None:
        mine = self._handing_off.asked_for(owners)
        if settle:
            self._crew.start("hand-off", self._hand_off(session, mine))
        else:
            for partition in mine:
                self._tenure.overtaken(partition.ref, "a newer lane has taken over")
            self._handing_off.taken(owners)
            self._end_if_handed_off()

    async def _hand_off(self, session: ControlSession, leaving: list[SourcePartition]) -> None:
        if await self._handing_off.settle(leaving, session):
            gone = self._tenure.hand_off(leaving)
            self._handing_off.has_released(gone)
            await session.send(to_coordinator.Released(tuple(gone)))
            self._end_if_handed_off()

    def _end_if_handed_off(self) -> None:
        if self._handing_off.is_over(self._surroundings.topology):
            self._course.end("everything is handed off")

    def _apply(self, topology: Topology) -> None:
        self._surroundings.apply(topology)
        self._end_if_handed_off()

    async def _acknowledge(self, session: ControlSession) -> None:
        self._hearing.life.meets(StandingEvent.ADOPTED)
        await session.send(to_coordinator.AckSubscriptions(self._adopted.revision))
