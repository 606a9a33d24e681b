"""What a Spark task runs: a lane follows its partitions until its window ends.

    read the log -> match -> deliver or set aside -> settle -> save the position

in one asyncio loop. Order per partition is natural: a record is handed to the pipelines in the
order it was read. A lane starts at the stored position, whatever was planned, and claims nothing
before it has the subscriptions (tenure.py). What it says to the coordinator and what it hears
from there are in listening.py.

When its window is over, a lane gives its tally, so that Spark can start the next one, and goes on
until its successor has taken over, for as long as that takes: the successor claims the checkpoint
under a higher fence, and from then on nothing of the former lane counts. So a change of windows is
no pause, and a coordinator that goes away in the middle of one makes none.

A partition can also leave a lane in the middle of a window: handed off to another router, or taken
by a newer lane. The lane goes on with the others, and ends when it has none left.

It must never settle a record that it didn't match against every subscription it had acknowledged,
and never save under a fence that was overtaken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from headgate.errors import StorageFailed
from headgate.lane.course import Course
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.delivery.ledger import Ledger
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Around
from headgate.lane.life import Hold, Window, WindowEvent
from headgate.lane.listening import Listening
from headgate.lane.positions.claiming import Claiming
from headgate.lane.positions.crossing import Crossing
from headgate.lane.positions.grip import Grip
from headgate.lane.positions.handing_off import HandingOff
from headgate.lane.positions.saving import Saving
from headgate.lane.reading import Reading
from headgate.lane.reporting import Reporting
from headgate.lane.subscriptions.adopted import Adopted, KeptIndex
from headgate.lane.subscriptions.hearing import Hearing
from headgate.lane.subscriptions.matching import Matching
from headgate.lane.surroundings import Surroundings
from headgate.lane.telling import Telling
from headgate.lane.tenure import Tenure
from headgate.model.control import to_coordinator
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally
from headgate.model.notes import Entry, Left
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlSession
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.ports.notes import LaneNotes, NoNotes
from headgate.ports.transport import DeliveryTransport
from headgate.tasks import Crew, first_of
from headgate.telemetry import LogLine

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LanePorts:
    """What a lane needs from outside; `connect` opens its stream to the coordinator, `kept` is what
    an earlier lane of the same process left, `notes` what it leaves to other processes, and
    `evidence` what its lanes remember of their deliveries (None: nothing yet)."""

    reader: LogReader
    checkpoints: CheckpointStore
    letters: LetterStore
    transport: DeliveryTransport
    connect: Callable[[Callable[[], to_coordinator.Hello]], ControlSession]
    machine: Machine
    kept: KeptIndex = field(default_factory=KeptIndex)
    notes: LaneNotes = field(default_factory=NoNotes)
    evidence: LaneEvidence | None = None


class Lane:
    """One lane of one window: `run` is its whole life, `tally` comes when its window is over."""

    def __init__(self, spec: LaneSpec, ports: LanePorts) -> None:
        self._spec = spec
        self._ports = ports
        self._machine = machine = ports.machine
        self._crew = Crew("lane")
        self._intake = Crew("lane")
        """What ends first, so that the rest can be settled."""
        note = partial(note_down, ports.notes)
        self._adopted = Adopted(machine, kept=ports.kept, note=note)
        around = Around()
        self._evidence = evidence = ports.evidence or evidence_of(spec.settings, machine)
        grip = Grip(
            self._adopted,
            around,
            taken=lambda one: evidence.begins(one, one.read.seq),
            left=lambda one: evidence.ends(one, one.ref, one.read.seq),
        )
        self.holding = grip.holding
        self._saving = Saving(
            spec.settings,
            ports.checkpoints,
            self.holding.partitions,
            grip,
            machine=machine,
        )
        self._ledger = Ledger(self.holding, self._saving, grip, machine=machine)
        self._matching = Matching(self._adopted, spec.settings.soft_delete)
        self._dispatcher = Dispatcher(
            spec.settings,
            fence=(spec.window, spec.attempt),
            transport=ports.transport,
            store=ports.letters,
            matching=self._matching,
            holding=self.holding,
            ledger=self._ledger,
            evidence=evidence,
            crew=self._crew,
            machine=machine,
        )
        self._course = Course()
        self._hearing = Hearing()
        self._handing_off = HandingOff(
            spec.settings,
            holding=self.holding,
            hearing=self._hearing,
            saving=self._saving,
        )
        self._tally: asyncio.Future[LaneTally] = asyncio.get_running_loop().create_future()
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
        self._surroundings = Surroundings(
            spec.settings,
            around=around,
            matching=self._matching,
            dispatcher=self._dispatcher,
            crossing=self._crossing,
            note=note,
        )
        self._claiming = Claiming(spec, ports.checkpoints, note)
        self._tenure = Tenure(
            spec,
            course=self._course,
            grip=grip,
            hearing=self._hearing,
            adopted=self._adopted,
            surroundings=self._surroundings,
            claiming=self._claiming,
            handing_off=self._handing_off,
            dispatcher=self._dispatcher,
            reporting=self._reporting,
            notes=ports.notes,
            note=note,
            crew=self._crew,
        )
        self._listening = Listening(
            spec,
            course=self._course,
            holding=self.holding,
            hearing=self._hearing,
            adopted=self._adopted,
            surroundings=self._surroundings,
            handing_off=self._handing_off,
            tenure=self._tenure,
            dispatcher=self._dispatcher,
            telling=Telling(
                spec.settings, evidence, holding=self.holding, dispatcher=self._dispatcher
            ),
            crew=self._crew,
            machine=machine,
        )
        self._window_until_s = asyncio.get_running_loop().time() + spec.settings.window_s

    async def tally(self) -> LaneTally:
        return await asyncio.shield(self._tally)

    async def run(self) -> None:
        try:
            await self._run()
        except asyncio.CancelledError:
            self._tally.cancel()
            raise
        except Exception as error:
            # Spark must see the failure of a window that is still open, to count and to retry it.
            if not self._tally.done():
                self._tally.set_exception(error)
            raise
        finally:
            self._ports.notes.close(leave=self._tenure.may_hold)
            for one in self.holding.partitions.values():
                self._evidence.ends(one, one.ref, one.read.seq)
        self._give_tally()

    async def _run(self) -> None:
        self._crew.need("overtakings", self._tenure.heed())
        try:
            while (
                left := await self._converse(self._ports.connect(self._listening.hello))
            ) is not None:
                await self._tenure.begin_with(left)
        finally:
            await self._crew.close()  # also where it ends between two streams

    async def _converse(self, session: ControlSession) -> Left | None:
        """The lane's life on one stream: to its end, or to where it begins without the coordinator.
        It says that on another stream: this one's hello must not be answered any more."""
        left, stream = None, Crew("lane")
        stream.need("listening", self._listening.listen(session))
        stream.need("adopting", self._listening.adopt(session))
        stream.need("reporting", self._report(session))
        stream.need("window", self._watch_window(session))
        stream.need("looking", self._tenure.look_after(session))
        try:
            left = await first_of(self._tenure.begin(session), self._course.ends(), stream.failed())
            if left is None:
                await self._live(session, stream)
        finally:
            await stream.close()
            if left is None:
                await self._intake.close()
                await self._crew.close()
                # With a stream there is a goodbye, after which nobody waits for this lane's word.
                self._ports.notes.close(leave=self._tenure.may_hold and not session.connected)
            await session.close()
        return left

    async def _live(self, session: ControlSession, stream: Crew) -> None:
        settings = self._spec.settings
        if self._course.hold.state is Hold.READING:
            self._intake.need("reading", self._follow())
            self._intake.need("checkpoints", self._saving.run())
            self._intake.need("crossing", self._crossing.run())
        failures = (self._intake.failed(), self._crew.failed(), stream.failed())
        await first_of(self._course.ends(), *failures)
        await self._intake.close()
        if self.holding.partitions:
            await self._dispatcher.flush(settings.flush_timeout_s)
            await self._saving.save_all(settings.checkpoint_timeout_s)
        await session.send(self._reporting.report())

    async def _follow(self) -> None:
        await self._dispatcher.look_behind()
        self._dispatcher.start()
        await self._reading.run()

    async def _report(self, session: ControlSession) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spec.settings.report_interval_s):
                    await self._crossing.reached.wait()
            self._crossing.reached.clear()
            self._ports.notes.give_sign()
            await self._reading.look_ahead()
            await session.send(self._reporting.report(unclaimed=self._claiming.failing))

    async def _watch_window(self, session: ControlSession) -> None:
        """Give the tally when the window is over, then wait for the successor.

        The window isn't over while the coordinator is away: the next one's lanes could not learn
        the subscriptions, and this one can go on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._window_until_s):
                await self._course.window.reaches(Window.OVER)
        self._course.window.meets(WindowEvent.TIME_IS_UP)
        if session.connected:
            self._course.hand_over("time")
        await self._course.window.reaches(Window.OVER)
        # A fresh position leaves the successor little to repeat.
        await self._saving.save_all(self._spec.settings.checkpoint_timeout_s)
        self._give_tally()
        self._tenure.end_without_a_window()
        await self._crew.failed()  # until everything ends

    def _give_tally(self) -> None:
        if not self._tally.done():
            self._tally.set_result(self._reporting.tally(self._course.reason))


def evidence_of(settings: LaneSettings, machine: Machine) -> LaneEvidence:
    """With nothing in it yet."""
    return LaneEvidence(size=settings.evidence_size, age_s=settings.evidence_age_s, machine=machine)


def note_down(notes: LaneNotes, entry: Entry) -> None:
    """Goes on where that can't be; may be called in a thread."""
    try:
        notes.note(entry)
    except StorageFailed as error:
        log.warning(LogLine.NOTES_FAILED, error=error.message)
