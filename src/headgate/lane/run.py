"""What a Spark task runs: a lane follows its partitions until its window ends.

    read the log -> match -> deliver or set aside -> settle -> save the position

in one asyncio loop. Order per partition is natural: a record is handed to the pipelines in the
order it was read. A lane starts at the stored position, whatever was planned, and claims nothing
before it has the subscriptions (beginning.py).

When its window is over, a lane gives its receipt, so that Spark can start the next one, and goes on
until its successor has taken over, for as long as that takes: the successor claims the checkpoint
under a higher fence, and from then on nothing of the former lane counts. So a change of windows is
no pause, and a coordinator that goes away in the middle of one makes none.

A partition can also leave a lane in the middle of a window: handed off to another router, or taken
by somebody newer. The lane goes on with the others, and ends when it has none left.

It must never settle a record that it didn't match against every subscription it had acknowledged,
and never save under a fence that somebody overtook.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from headgate.decide.routing import Routes
from headgate.errors import HeadgateError, StorageFailed
from headgate.lane.adopted import Adopted, KeptIndex
from headgate.lane.beginning import LOOK_EVERY_S, Beginning
from headgate.lane.claiming import Claiming
from headgate.lane.crossing import Crossing
from headgate.lane.delivering import Dispatcher
from headgate.lane.handing_off import HandingOff
from headgate.lane.hearing import Hearing
from headgate.lane.holding import Holding
from headgate.lane.ledger import Ledger
from headgate.lane.life import (
    HOLD,
    WINDOW,
    Awaited,
    Hold,
    HoldEvent,
    Standing,
    StandingEvent,
    Window,
    WindowEvent,
)
from headgate.lane.matching import Matching
from headgate.lane.partition import SourcePartition
from headgate.lane.reading import Reading
from headgate.lane.reporting import Reporting
from headgate.lane.saving import Saving
from headgate.model import control
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneReceipt, LaneSpec
from headgate.model.notes import Entry, Holds, Left
from headgate.model.topology import Owner, Topology
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlSession
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.ports.notes import LaneNotes, NoNotes
from headgate.ports.transport import DeliveryTransport
from headgate.tasks import Crew, first_of
from headgate.telemetry import LogEvent

log = structlog.get_logger()


class LeftBehind(HeadgateError):
    """Whoever read a partition of this lane's is dead, and only a lane that starts can take it."""


@dataclass(frozen=True, slots=True)
class LanePorts:
    """What a lane needs from outside; `connect` opens its stream to the coordinator, `kept` is what
    an earlier lane of the same process left, and `notes` what it leaves to other processes."""

    reader: LogReader
    checkpoints: CheckpointStore
    letters: LetterStore
    transport: DeliveryTransport
    connect: Callable[[Callable[[], control.Hello]], ControlSession]
    machine: Machine
    kept: KeptIndex = field(default_factory=KeptIndex)
    notes: LaneNotes = field(default_factory=NoNotes)


class Lane:
    """One lane of one window: `run` is its whole life, `receipt` comes when its window is over."""

    def __init__(self, spec: LaneSpec, ports: LanePorts) -> None:
        self._spec = spec
        self._ports = ports
        self._machine = machine = ports.machine
        self._crew = Crew("lane")
        self._intake = Crew("lane")
        """What ends first, so that the rest can be settled."""
        self._adopted = Adopted(machine, kept=ports.kept, note=self._note)
        self.holding = Holding(self._adopted)
        self._saving = Saving(
            spec.settings,
            ports.checkpoints,
            self.holding.partitions,
            self._overtaken,
            machine=machine,
        )
        self._ledger = Ledger(self.holding, self._saving, self._overtaken, machine=machine)
        self._matching = Matching(self._adopted, spec.settings.soft_delete)
        self._dispatcher = Dispatcher(
            spec.settings,
            fence=(spec.window, spec.attempt),
            transport=ports.transport,
            store=ports.letters,
            matching=self._matching,
            holding=self.holding,
            ledger=self._ledger,
            crew=self._crew,
            machine=machine,
        )
        self._life = Awaited(HOLD)
        self._window = Awaited(WINDOW)
        self._hearing = Hearing()
        self._handing_off = HandingOff(
            spec.settings,
            holding=self.holding,
            hearing=self._hearing,
            dispatcher=self._dispatcher,
            saving=self._saving,
        )
        self._topology = Topology(0)
        self._found_gateways = asyncio.Event()
        self._receipt: asyncio.Future[LaneReceipt] = asyncio.get_running_loop().create_future()
        self._crossing = Crossing(
            ports.checkpoints,
            holding=self.holding,
            dispatcher=self._dispatcher,
            saving=self._saving,
        )
        self._reading = Reading(
            spec.settings,
            ports.reader,
            holding=self.holding,
            matching=self._matching,
            dispatcher=self._dispatcher,
            saving=self._saving,
            crossing=self._crossing,
            machine=machine,
        )
        self._reporting = Reporting(
            spec,
            holding=self.holding,
            matching=self._matching,
            reading=self._reading,
            dispatcher=self._dispatcher,
            ledger=self._ledger,
            saving=self._saving,
            machine=machine,
        )
        self._reason = ""
        self._beginning = Beginning(ports.notes, self._note)
        self._claiming = Claiming(spec, ports.checkpoints, self._note)
        self._proof: asyncio.Task[None] | None = None
        self._window_until_s = asyncio.get_running_loop().time() + spec.settings.window_s

    async def receipt(self) -> LaneReceipt:
        return await asyncio.shield(self._receipt)

    async def run(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            self._receipt.cancel()
            raise
        except Exception as error:
            # Spark must see the failure of a window that is still open, to count and to retry it.
            if not self._receipt.done():
                self._receipt.set_exception(error)
            raise
        finally:
            self._ports.notes.close(leave=self._may_hold)
        self._give_receipt()

    async def _run(self) -> None:
        while (left := await self._converse(self._ports.connect(self._hello))) is not None:
            await self._begin_with(left)

    async def _converse(self, session: ControlSession) -> Left | None:
        """The lane's life on one stream: to its end, or to where it begins without the coordinator.
        It says that on another stream: this one's hello must not be answered any more."""
        left, stream = None, Crew("lane")
        stream.need("listening", self._listen(session))
        stream.need("adopting", self._adopt(session))
        stream.need("reporting", self._report(session))
        stream.need("window", self._watch_window(session))
        stream.need("looking", self._look_after(session))
        try:
            left = await first_of(self._begin(session), self._ends(), stream.failed())
            if left is None:
                await self._live(session, stream)
        finally:
            await stream.close()
            if left is None:
                await self._intake.close()
                await self._crew.close()
                # With a stream there is a goodbye, after which nobody waits for this lane's word.
                self._ports.notes.close(leave=self._may_hold and not session.connected)
            await session.close()
        return left

    async def _live(self, session: ControlSession, stream: Crew) -> None:
        settings = self._spec.settings
        if self._life.state is Hold.READING:
            self._intake.need("reading", self._follow())
            self._intake.need("checkpoints", self._saving.run())
            self._intake.need("crossing", self._crossing.run())
        failures = (self._intake.failed(), self._crew.failed(), stream.failed())
        await first_of(self._ends(), *failures)
        await self._intake.close()
        if self.holding.partitions:
            await self._dispatcher.flush(settings.flush_timeout_s)
            await self._saving.save_all(settings.checkpoint_timeout_s)
        await session.send(self._reporting.report())

    # --- beginning -------------------------------------------------------------------------------

    async def _begin(self, session: ControlSession) -> Left | None:
        """Claim what is planned once the subscriptions are there, or find that nothing can be; or
        return what else to begin with."""
        while self._life.state is Hold.WAITING:
            if await self._may_begin(session):
                await self._begin_as_told(session)
                self._end_without_a_window()
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
        holding = self.holding
        holding.gone |= self._claiming.fenced
        if holding.partitions:
            holding.gone |= self._claiming.failed.keys()
        if holding.gone.issuperset(self._planned):
            self._end("somebody newer has taken over")
        elif holding.partitions and hearing.is_same(session, stream):
            await self._say_claimed(session)
        elif holding.partitions:
            await self._prove(session)
        elif self._claiming.failed and hearing.is_same(session, stream):
            # A failed lane would cost the others of its router their window.
            self._life.meets(HoldEvent.RESTS)
            await self._say_claimed(session)

    async def _may_begin(self, session: ControlSession) -> bool:
        """Whether the subscriptions are there, and the gateways to deliver to, and whoever sent
        them; waits a while for that. The store of letters must be there, too: until it has said
        what is parked nothing is read, and whoever holds the partitions goes on without."""
        if not await self._dispatcher.store_answers(self._planned):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._hearing.life.reaches(Standing.TOLD, Standing.PROVED)
                await self._found_gateways.wait()
                if session.connected:
                    return True
                await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def _begin_with(self, left: Left) -> None:
        """Go on where lanes that are gone have left off, as far as they still held it."""
        self._apply(left.topology)
        await self._adopted.begin_with(left.revision, left.subscriptions)
        self._hearing.life.meets(StandingEvent.ADOPTED)
        owners = [owner for owner in self._spec.owns if owner.ref in left.fences]
        await self._take(owners, may=_always, after=left.fences)
        self._beginning.tried(left, self.holding.partitions)
        if self._life.state is Hold.WAITING:
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
        """All at once for whoever looks: what is adopted from then on is late for all of them."""
        assert self._hearing.is_told, "its predecessor goes on until it has the subscriptions"
        claimed = await self._claiming.claimed(owners, may=may, after=after)
        self.holding.partitions.update((one.ref, one) for one in claimed)
        if self.holding.partitions:
            self._life.meets(HoldEvent.CLAIMED)
        self._note_held()
        self._ports.notes.tidy()

    def _start_proof(self, session: ControlSession, asked_ms: int = 0) -> None:
        """Instead of one that is under way: what was asked last is what counts."""
        if self._proof is not None:
            self._proof.cancel()
        self._proof = self._crew.start("proof", self._prove(session, asked_ms=asked_ms))

    async def _prove(self, session: ControlSession, *, asked_ms: int = 0) -> None:
        """Show that nobody newer holds what the lane reads, and say so: whoever claimed it unheard
        counts, not who is heard first."""
        hearing, stream = self._hearing, self._hearing.stream
        lost = await self._claiming.lost(
            self.holding.partitions.values(), may=lambda: hearing.is_same(session, stream)
        )
        if lost is None:
            return  # the next stream begins with another proof
        for ref in lost:
            self._overtaken(ref, "somebody newer has taken over")
        for ref in self._claiming.failed:
            self._overtaken(ref, "its position can't be read, so nobody knows whose it is")
        if self.holding.partitions or self._claiming.failed:
            await self._say_claimed(session, asked_ms=asked_ms)

    async def _say_claimed(self, session: ControlSession, *, asked_ms: int = 0) -> None:
        await session.send(control.Claimed(self.holding.owned(), asked_ms))
        self._hearing.life.meets(StandingEvent.PROVED)
        if failed := tuple(self._claiming.failed.values()):
            await session.send(self._reporting.report(unclaimed=failed))

    async def _look_after(self, session: ControlSession) -> None:
        """Whoever holds the rest of what was planned may die while the coordinator is away."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._life.state is not Hold.READING or self._window.state is Window.OVER:
                continue
            left = await self._beginning.without_coordinator(
                [ref for ref in self._planned if not self.holding.knows_of(ref)],
                connected=session.connected,
                handed_over=self._handing_off.unheard(self._topology),
            )
            if left is not None:
                names = ", ".join(map(str, left.fences))
                raise LeftBehind(f"nobody reads {names} any more; this lane starts anew with them")

    @property
    def _planned(self) -> list[PartitionRef]:
        return [owner.ref for owner in self._spec.owns]

    @property
    def _has_begun(self) -> bool:
        return self._life.state in (Hold.READING, Hold.ENDING)

    @property
    def _may_hold(self) -> bool:
        return bool(self.holding.partitions) or self._claiming.is_open

    def _note(self, entry: Entry) -> None:
        """May be called in a thread."""
        try:
            self._ports.notes.note(entry)
        except StorageFailed as error:
            log.warning(LogEvent.NOTES_FAILED, error=error.message)

    def _note_held(self) -> None:
        self._note(Holds(tuple(self.holding.fences().items())))
        if self._claiming.failed:
            self._note(self._claiming.open_claims())

    def _overtaken(self, ref: PartitionRef, reason: str) -> None:
        """Somebody newer has `ref`, whoever found out."""
        if self.holding.let_go(ref):
            log.info(LogEvent.FENCED, partition=str(ref), error=reason)
            self._dispatcher.drop(ref)
            self._note_held()
        if not self.holding.partitions:
            self._end(reason)

    # --- reading ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        await self._dispatcher.look_behind()
        self._dispatcher.start()
        await self._reading.run()

    # --- the coordinator -------------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        spec = self._spec
        self._adopted.said_hello()
        self._hearing.greets()
        return control.Hello(
            role="lane",
            node_id=spec.router_id,
            incarnation=spec.incarnation,
            pid=self._machine.pid(),
            lane=spec.lane,
            window=spec.window,
            attempt=spec.attempt,
            assignment=spec.assignment,
            owns=self.holding.owned(),
            wants=() if self._has_begun or self._life.state is Hold.RESTING else spec.owns,
            generation=self._topology.generation,
            revision=self._adopted.revision,
        )

    async def _listen(self, session: ControlSession) -> None:
        async for message in session.messages():
            match message:
                case control.Welcome():
                    await self._welcomed(session)
                case control.PushTopology(topology):
                    if topology.generation > self._topology.generation:
                        self._apply(topology)
                case control.SubscriptionSnapshot() | control.SubscriptionChanges():
                    if self._adopted.hear(message):
                        await self._acknowledge(session)
                case control.EndWindow(reason, hand_over):
                    if hand_over:
                        self._hand_over(reason)
                    else:
                        self._end(reason)
                case control.LetGo(owners, settle):
                    self._let_go(session, owners, settle=settle)
                case control.TroubledGateways(gateway_ids):
                    self._dispatcher.hint(gateway_ids)
                case control.Prove(asked_ms):
                    self._start_proof(session, asked_ms)
                case control.ClaimNow(number):
                    self._hearing.answered(number)
                case control.LettersRevived():
                    self._dispatcher.look_for_letters()
                case control.Refused(reason):
                    self.holding.partitions.clear()
                    self._end(reason)
                case _:
                    pass

    def _apply(self, topology: Topology) -> None:
        self._topology = topology
        self._note(control.PushTopology(topology))
        gateways = [node for node in topology.of_role("gateway") if node.url]
        urls = self.holding.urls = {node.id: node.url for node in gateways}
        self.holding.incarnations = {node.id: node.incarnation for node in gateways}
        self.holding.topics = {topic.name: topic for topic in topology.topics}
        self._crossing.heard()
        settings = self._spec.settings
        self._matching.routes = Routes(
            urls, settings.mode, max_fanout=settings.max_fanout, ring=topology.ring
        )
        self._dispatcher.heard(gateways)
        self._found_gateways.set()
        self._end_if_handed_off()

    async def _adopt(self, session: ControlSession) -> None:
        while True:
            if await self._adopted.adopt(self.holding.read_so_far):
                await self._acknowledge(session)

    async def _welcomed(self, session: ControlSession) -> None:
        if self._has_begun:
            self._start_proof(session)
        if released := self._handing_off.released:
            # The coordinator may not have heard it the first time.
            await session.send(control.Released(tuple(released)))
        if self._window.state is Window.OVERDUE:
            self._hand_over("time")

    def _let_go(self, session: ControlSession, owners: Sequence[Owner], *, settle: bool) -> None:
        mine = self._handing_off.asked_for(owners)
        if settle:
            self._crew.start("hand-off", self._hand_off(session, mine))
        else:
            for partition in mine:
                self._overtaken(partition.ref, "somebody newer has taken over")
            self._handing_off.taken(owners)
            self._end_if_handed_off()

    async def _hand_off(self, session: ControlSession, leaving: list[SourcePartition]) -> None:
        gone = await self._handing_off.settle(leaving, session)
        if gone is not None:
            self._note_held()
            await session.send(control.Released(tuple(gone)))
            self._end_if_handed_off()

    def _end_if_handed_off(self) -> None:
        if self._handing_off.is_over(self._topology):
            self._end("everything is handed off")

    async def _acknowledge(self, session: ControlSession) -> None:
        self._hearing.life.meets(StandingEvent.ADOPTED)
        await session.send(control.AckSubscriptions(self._adopted.revision))

    async def _report(self, session: ControlSession) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spec.settings.report_interval_s):
                    await self._crossing.reached.wait()
            self._crossing.reached.clear()
            self._ports.notes.give_sign()
            await self._reading.look_ahead()
            await session.send(self._reporting.report(unclaimed=self._claiming.failing))

    # --- ending ----------------------------------------------------------------------------------

    async def _watch_window(self, session: ControlSession) -> None:
        """Give the receipt when the window is over, then wait for the successor.

        The window isn't over while the coordinator is away: the next one's lanes could not learn
        the subscriptions, and this one can go on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._window_until_s):
                await self._window.reaches(Window.OVER)
        self._window.meets(WindowEvent.TIME_IS_UP)
        if session.connected:
            self._hand_over("time")
        await self._window.reaches(Window.OVER)
        # A fresh position leaves the successor little to repeat.
        await self._saving.save_all(self._spec.settings.checkpoint_timeout_s)
        self._give_receipt()
        self._end_without_a_window()
        await self._crew.failed()  # until everything ends

    def _end_without_a_window(self) -> None:
        """A window that is over leaves a lane nothing to wait for that has, and will get, nothing:
        whoever held what it wanted still does."""
        is_over = self._window.state is Window.OVER
        if is_over and (self._life.state is Hold.RESTING or not self._may_hold):
            self._end(self._reason)

    def _hand_over(self, reason: str) -> None:
        if self._window.state is not Window.OVER:
            self._reason = reason
            self._window.meets(WindowEvent.HANDS_OVER)

    def _end(self, reason: str) -> None:
        if self._life.state in (Hold.WAITING, Hold.RESTING, Hold.READING):
            self._reason = reason
        self._life.meets(HoldEvent.ENDS)

    async def _ends(self) -> None:
        await self._life.reaches(Hold.ENDING, Hold.GIVING_UP)

    def _give_receipt(self) -> None:
        if not self._receipt.done():
            self._receipt.set_result(self._reporting.receipt(self._reason))


async def _always() -> bool:
    return True
