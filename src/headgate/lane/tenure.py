"""How a lane comes to hold its partitions, shows that it still does, and lets go of what a newer
lane has.

It claims nothing before it has the subscriptions: as the coordinator tells it to or, while that is
away, where lanes that are gone have left off (subscriptions/start_unheard.py). When it turns out
afterwards that another lane has a partition, from a gateway, a store, the coordinator or a proof,
the partition leaves the lane in the same way, and the lane ends when it has none left.

Invariants: partitions are added once, before anything is read, so one that was let go of never
comes back; what the lane holds is in its notes from the moment on that it does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from headgate.errors import HeadgateError
from headgate.lane.course import Course
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.life import Hold, HoldEvent, Standing, StandingEvent, Window
from headgate.lane.positions.claiming import Claiming
from headgate.lane.positions.grip import Grip
from headgate.lane.positions.handing_off import HandingOff
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.reporting import Reporting
from headgate.lane.subscriptions.adopted import Adopted
from headgate.lane.subscriptions.hearing import Hearing
from headgate.lane.subscriptions.start_unheard import LOOK_EVERY_S, StartUnheard
from headgate.lane.surroundings import Surroundings
from headgate.model.control import to_coordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneSpec
from headgate.model.notes import Entry, Holds, Left
from headgate.model.topology import Owner
from headgate.ports.control import ControlSession
from headgate.ports.notes import LaneNotes
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()


class LeftBehind(HeadgateError):
    """The lane that read a partition which is planned for this one is dead, and only a lane that
    starts can take it."""


class Tenure:
    """`note` writes an entry into the lane's `notes`; a proof runs in its `crew`."""

    def __init__(
        self,
        spec: LaneSpec,
        *,
        course: Course,
        grip: Grip,
        hearing: Hearing,
        adopted: Adopted,
        surroundings: Surroundings,
        claiming: Claiming,
        handing_off: HandingOff,
        dispatcher: Dispatcher,
        reporting: Reporting,
        notes: LaneNotes,
        note: Callable[[Entry], None],
        crew: Crew,
    ) -> None:
        self._spec = spec
        self._course = course
        self._grip = grip
        self._holding = grip.holding
        self._hearing = hearing
        self._adopted = adopted
        self._surroundings = surroundings
        self._claiming = claiming
        self._handing_off = handing_off
        self._dispatcher = dispatcher
        self._reporting = reporting
        self._notes = notes
        self._note = note
        self._crew = crew
        self._beginning = StartUnheard(notes, note)
        self._proof: asyncio.Task[None] | None = None

    # --- coming to hold --------------------------------------------------------------------------

    async def begin(self, session: ControlSession) -> Left | None:
        """Claim what is planned once the subscriptions are there, or find that nothing can be; or
        return what else to begin with."""
        while self._course.hold.state is Hold.WAITING:
            if await self._may_begin(session):
                await self._begin_as_told(session)
                self.end_without_a_window()
                continue
            left = await self._beginning.without_coordinator(
                self._planned, connected=session.connected
            )
            if left is not None:
                return left
        return None

    async def _begin_as_told(self, session: ControlSession) -> None:
        hearing, stream = self._hearing, self._hearing.ask_anew()
        await self._take(self._spec.owns, may=lambda: hearing.is_heard(session, stream))
        holding = self._holding
        self._grip.leave_to_others(self._claiming.fenced)
        if holding.partitions:
            self._grip.leave_to_others(self._claiming.failed)
        if holding.gone >= set(self._planned):
            self._course.end("a newer lane has taken over")
        elif holding.partitions and hearing.is_same(session, stream):
            await self._say_claimed(session)
        elif holding.partitions:
            await self._prove(session)
        elif self._claiming.failed and hearing.is_same(session, stream):
            # A failed lane would cost the others of its router their window.
            self._course.hold.meets(HoldEvent.RESTS)
            await self._say_claimed(session)

    async def _may_begin(self, session: ControlSession) -> bool:
        """Whether the subscriptions are there, the gateways to deliver to, and the coordinator that
        sent them; waits a while for that. The store of letters must be there, too: until it has
        said what is parked nothing is read, and the lane that holds the partitions goes on."""
        if not await self._dispatcher.store_answers(self._planned):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._hearing.life.reaches(Standing.TOLD, Standing.PROVED)
                await self._surroundings.found_gateways.wait()
                if session.connected and self._hearing.is_told:  # on this very stream
                    return True
                await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def begin_with(self, left: Left) -> None:
        """Go on where lanes that are gone have left off, as far as they still held it."""
        self._surroundings.apply(left.topology)
        await self._adopted.begin_with(left.revision, left.subscriptions)
        self._hearing.life.meets(StandingEvent.ADOPTED)
        owners = [owner for owner in self._spec.owns if owner.ref in left.fences]
        await self._take(owners, may=_always, after=left.fences)
        self._beginning.tried(left, self._holding.partitions)
        if self._course.hold.state is Hold.WAITING:
            # Somebody has claimed all of it since, and may know more.
            self._adopted.forget()
            self._hearing.life.meets(StandingEvent.FORGOT)

    async def _take(
        self,
        owners: Sequence[Owner],
        *,
        may: Callable[[], Awaitable[bool]],
        after: Mapping[PartitionRef, frozenset[Fence]] | None = None,
    ) -> None:
        """All at once: what is adopted from then on is late for all of them."""
        assert self._hearing.is_told, "its predecessor goes on until it has the subscriptions"
        claimed = await self._claiming.claimed(owners, may=may, after=after)
        self._grip.take(claimed)
        if self._holding.partitions:
            self._course.hold.meets(HoldEvent.CLAIMED)
        self.note_held()
        self._notes.tidy()

    # --- showing that it still does --------------------------------------------------------------

    def start_proof(self, session: ControlSession, asked_ms: int = 0) -> None:
        """Begin a proof instead of one that is under way: only the last request counts."""
        if self._proof is not None:
            self._proof.cancel()
        self._proof = self._crew.start("proof", self._prove(session, asked_ms=asked_ms))

    async def _prove(self, session: ControlSession, *, asked_ms: int = 0) -> None:
        """Show that no newer lane holds what this one reads, and say so: a lane that claimed it
        unheard counts, not the one that is heard first."""
        hearing, stream = self._hearing, self._hearing.stream
        lost = await self._claiming.lost(
            self._holding.partitions.values(), may=lambda: hearing.is_same(session, stream)
        )
        if lost is None:
            return  # the next stream begins with another proof
        for ref in lost:
            self.overtaken(ref, "a newer lane has taken over")
        for ref in self._claiming.failed:
            self.overtaken(ref, "its position can't be read, so its holder isn't known")
        if self._holding.partitions or self._claiming.failed:
            await self._say_claimed(session, asked_ms=asked_ms)

    async def _say_claimed(self, session: ControlSession, *, asked_ms: int = 0) -> None:
        await session.send(to_coordinator.Claimed(self._holding.owned(), asked_ms))
        self._hearing.life.meets(StandingEvent.PROVED)
        if failed := tuple(self._claiming.failed.values()):
            await session.send(self._reporting.report(unclaimed=failed))

    async def look_after(self, session: ControlSession) -> None:
        """The lane that holds the rest of what was planned may die while the coordinator is
        away."""
        course = self._course
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if course.hold.state is not Hold.READING or course.window.state is Window.OVER:
                continue
            left = await self._beginning.without_coordinator(
                [ref for ref in self._planned if not self._holding.knows_of(ref)],
                connected=session.connected,
                handed_over=self._handing_off.unheard(self._surroundings.topology),
            )
            if left is not None:
                names = ", ".join(map(str, left.fences))
                raise LeftBehind(f"no lane reads {names} any more; this one starts anew with them")

    # --- letting go ------------------------------------------------------------------------------

    async def heed(self) -> None:
        """Act upon what other parts of the lane find out, after they said so."""
        while True:
            self._leave(*await self._grip.next())

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """The lane itself has found out that a newer one has `ref`, or may have."""
        if self._grip.let_go(ref):
            self._leave(ref, reason)
        elif not self._holding.partitions:
            self._course.end(reason)

    def hand_off(self, settled: Iterable[SourcePartition]) -> list[Owner]:
        """Let go of these, which the coordinator has asked for, and that have settled what they
        could; returns those that were still the lane's."""
        gone = [one.owner for one in settled if self._grip.let_go(one.ref)]
        for owner in gone:
            self._dispatcher.drop(owner.ref)  # an unsettled partition doesn't hold the others
        self.note_held()
        return gone

    def refused(self, reason: str) -> None:
        """The coordinator won't have this lane, which holds nothing from now on."""
        self._grip.let_go_of_all()
        self._course.end(reason)

    def _leave(self, ref: PartitionRef, reason: str) -> None:
        """`ref` isn't held any more, because a newer lane has it."""
        log.info(LogLine.FENCED, partition=str(ref), error=reason)
        self._dispatcher.drop(ref)
        self.note_held()
        if not self._holding.partitions:
            self._course.end(reason)

    def end_without_a_window(self) -> None:
        """A window that is over leaves a lane nothing to wait for that has, and will get, nothing:
        the lanes that held what it wanted still do."""
        is_over = self._course.window.state is Window.OVER
        if is_over and (self._course.hold.state is Hold.RESTING or not self.may_hold):
            self._course.end(self._course.reason)

    # --- what it holds ---------------------------------------------------------------------------

    @property
    def may_hold(self) -> bool:
        return bool(self._holding.partitions) or self._claiming.is_open

    def note_held(self) -> None:
        self._note(Holds(tuple(self._holding.fences().items())))
        if self._claiming.failed:
            self._note(self._claiming.open_claims())

    @property
    def _planned(self) -> list[PartitionRef]:
        return [owner.ref for owner in self._spec.owns]


async def _always() -> bool:
    return True
