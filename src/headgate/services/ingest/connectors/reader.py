"""One connector's reader: from the origin's changes to the owners of the partitions.

It claims every partition under its epoch, asks each how far it is, opens the origin behind the
lowest, and hands in what it reads. Whatever goes wrong, it begins there again: the partitions leave
out what they have. So nothing here needs to be finished, and being cancelled at any await is fine.

Invariants: a batch is handed in only behind what was handed in before; what a partition hasn't
taken yet is bounded by two batches, beside what the origin reads ahead, and holds it back; nothing
is passed over without a record that says so. Never decides where to go on after a loss: an operator
does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import structlog
from msgspec.structs import replace

from headgate import errors
from headgate.decide.connectors.intake_portions import up_to_oversized
from headgate.decide.connectors.plan import ConnectorPlan, in_turns
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.decide.connectors.snapshots.snapshotting import Due
from headgate.model.connector import Connector, ConnectorReport, ConnectorState
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.ports.origin import Changes, ChangeStream, Origin
from headgate.services.ingest.connectors.comparing import Comparing, begin_marker
from headgate.services.ingest.connectors.handing_in import HandingIn, all_of
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.snapshots import Snapshots
from headgate.services.ingest.connectors.standing import IntakeStanding
from headgate.services.ingest.connectors.stored_plan import (
    how_to_go_on,
    present_plan,
    stored_plan,
    why_lost,
)
from headgate.services.ingest.connectors.taking_in import TakingIn
from headgate.services.ingest.partitions import Partitions
from headgate.tasks import Helpers, end_if_told
from headgate.telemetry import LogLine

log = structlog.get_logger()

LOST = b"null"
"""The document of a record that has none."""
FEW = 50
"""So many changes aren't worth it to read ahead: what is read too early waits for a turn of its
own behind what was handed in before, and costs one."""
QUICK_TRIES = 10
"""So often a new plan is made at once where partitions have changed: nodes hear of it one after the
other. One that never fits is said, and waited for."""


class Intake:
    """`run` never returns by itself: it is cancelled when the connector changes or moves."""

    def __init__(
        self,
        connector: Connector,
        epoch: int,
        *,
        chunks: Iterator[int],
        origin: Callable[[], Origin],
        partitions: Partitions,
        taking_in: TakingIn,
        reader: LogReader,
        machine: Machine,
        options: IntakeOptions,
    ) -> None:
        self.connector = connector
        self.epoch = epoch
        self.too_low = 0
        """An epoch that a partition has met and that is higher than this reader's; 0: none."""
        self._open_origin = origin
        self._partitions = partitions
        self._reader = reader
        self._machine = machine
        self._options = options
        self._standing = IntakeStanding(connector, epoch)
        self._handing_in = HandingIn(
            connector,
            epoch,
            partitions=partitions,
            taking_in=taking_in,
            standing=self._standing,
            machine=machine,
            options=options,
        )
        self._snapshots = Snapshots(
            connector,
            epoch,
            chunks=chunks,
            standing=self._standing,
            comparing=Comparing(connector, reader, partitions),
            machine=machine,
            options=options,
        )
        self._tries = 0
        self._replanned = 0
        self._bereft: set[PartitionRef] = set()

    @property
    def report(self) -> ConnectorReport:
        return self._standing.report

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            end_if_told()
            try:
                await self._read()
            except errors.HeadgateError as error:
                await self._wait_after(error)
            except Exception as error:
                # A bug. Its crew notes it and begins again, which nobody would see here.
                self._tries += 1
                self._standing.say("retrying", _died(error))
                raise

    async def _wait_after(self, error: errors.HeadgateError) -> None:
        """Say what is the matter; until everything is to be tried again."""
        match error:
            case errors.StaleVersion() | errors.IntakeGap():
                # Nothing was lost: the partitions aren't what the plan was made for.
                log.info(LogLine.CONNECTOR_STATE, connector=self._name, reason=error.message)
                self._note_bereft(error)
                self._replanned += 1
                if self._replanned <= QUICK_TRIES:
                    await self._partitions.change(timeout_s=self._options.backoff.initial_s)
                    return
                self._standing.say("retrying", error.message)
            case errors.ConnectorFenced():
                self.too_low = max(self.too_low, error.epoch)
                self._standing.say("waiting", error.message)
            case errors.UnknownTopic():
                self._standing.say("waiting", error.message)
            case errors.OriginRefused() | errors.InvalidRequest():
                self._standing.say("stopped", error.message)
            case _:
                self._standing.say("retrying", error.message)
        await self._pause()

    def _note_bereft(self, error: errors.HeadgateError) -> None:
        """A partition that stands at nothing where it had a position: its store was lost."""
        said = error.details
        if isinstance(error, errors.IntakeGap) and not said.get("position"):
            self._bereft.add(PartitionRef(str(said.get("topic")), int(str(said.get("partition")))))

    async def _read(self) -> None:
        """As long as nothing is the matter, and until it may be over: how the origin stands is
        known all the while."""
        origin = self._open_origin()
        try:
            async with Helpers() as beside:
                beside.start(self._look_around(origin))
                try:
                    await self._read_from(origin)
                except errors.HeadgateError as error:
                    await self._wait_after(error)
        finally:
            await origin.close()

    async def _read_from(self, origin: Origin) -> None:
        planned = await self._planned()
        self._standing.stands_at(planned)
        if why := why_lost(planned, begun=self.report.begun):
            await self._end(planned, why)
        try:
            resume = of_stream(planned.resume)
            opening = origin.open(resume, begin_at=self.connector.begin_at, level=planned.level)
            async with opening as stream:
                await self._pin(planned, planned.resume or stream.position)
                self._standing.begins()
                if not self._tries:  # else there is more to it than to open the stream
                    self._goes_on()
                await self._follow(planned, stream, origin)
        except errors.OriginHistoryLost as error:
            if planned.resume:
                await self._pin(planned, planned.resume)
            await self._end(planned, error.message)
        except errors.ChangeTooLarge as error:
            if planned.resume:
                await self._pin(planned, planned.resume)
            await self._pass_over(planned, error)

    @property
    def _name(self) -> str:
        return self.connector.name

    async def _pause(self) -> None:
        """Before everything is tried again; a new topology ends it early."""
        delay_s = self._options.backoff.delay_s(self._tries, jitter=self._machine.jitter())
        self._tries += 1
        await asyncio.sleep(min(delay_s, self._options.backoff.initial_s))
        await self._partitions.change(timeout_s=delay_s)

    async def _stay(self, state: ConnectorState, error: str, **more: object) -> NoReturn:
        """Until this reader is cancelled, because an operator has said what to do."""
        self._standing.say(state, error, **more)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody answers that")

    # --- where to go on --------------------------------------------------------------------------

    async def _planned(self) -> ConnectorPlan:
        topics = [self._topic(name) for name in self.connector.topics]
        claims = [self._handing_in.claim(topic, ref) for topic in topics for ref in topic.refs()]
        await all_of(claims)
        # Whether it has begun, this reader may know before the coordinator does.
        connector = replace(self.connector, begun=self.report.begun)
        return await stored_plan(connector, topics, self._reader)

    def _topic(self, name: str) -> Topic:
        topic = self._partitions.topic(name)
        if topic.repartition is not None and topic.repartition.phase == "sealing":
            raise errors.NotNow(f"{name} is being repartitioned; it goes on behind that")
        return topic

    async def _pin(self, planned: ConnectorPlan, position: str) -> None:
        """Every partition stores where it stands before any of them takes a change. One that has
        lost its position, or begins anew behind it, gets a marker: it isn't known what it lacks."""
        lacking = planned.lacking(position, compares=self.connector.compares)
        bereft = lacking | self._bereft
        prefix = begin_marker(self.connector)
        pins = {
            ref: [_lost(f"{prefix}{position}/{ref.partition}", position)] if ref in bereft else []
            for ref in planned.unpinned()
        }
        await all_of(
            [
                self._handing_in.hand_in(planned, ref, pin, upto=position)
                for ref, pin in pins.items()
            ]
        )
        self._bereft -= pins.keys()

    # --- reading ---------------------------------------------------------------------------------

    async def _follow(self, planned: ConnectorPlan, stream: ChangeStream, origin: Origin) -> None:
        """The next batch is read while the one before it is handed in; behind a small one when
        that is done, with all that has come meanwhile."""
        loop = asyncio.get_running_loop()
        refreshed_s = loop.time()
        async with Helpers() as helpers:
            handing = helpers.start(self._pin(planned, stream.position))
            self._snapshots.begin(planned, stream, origin, helpers)
            is_small = False
            while True:
                if is_small:
                    await handing
                try:
                    changes = await stream.next(self._snapshots.patience_s)
                except errors.HeadgateError:
                    await handing  # what was read before that is taken first
                    raise
                end_if_told()
                await handing
                if stored := planned.stored:
                    stream.stored(stored)
                self._handing_in.check_versions(planned)
                self._heard(changes)
                planned.snapshots.settle()
                rows = await self._snapshots.follow(changes.events)
                is_small = rows is None and len(changes.events) < FEW
                is_due = loop.time() - refreshed_s >= self._options.refresh_s
                if not (changes.events or rows or is_due):
                    self._goes_on()
                else:
                    refreshed_s = loop.time() if is_due else refreshed_s
                    handing = helpers.start(self._take(planned, changes, rows, refresh=is_due))

    def _heard(self, changes: Changes) -> None:
        lag_ms: int | None = 0
        if changes.events:
            lag_ms = max(self._machine.wall_ms() - changes.time_ms, 0) if changes.time_ms else None
        self._standing.heard(changes.position, lag_ms)

    async def _look_around(self, origin: Origin) -> None:
        while True:
            await asyncio.sleep(self._options.look_every_s)
            if not self.report.position:  # not all partitions could be claimed so far
                with contextlib.suppress(errors.HeadgateError):
                    seen = await present_plan(self.connector, self._partitions, self._reader)
                    self._standing.stands_at(seen)
            self._standing.looked(await origin.standing(self.report.position))

    async def _take(
        self, planned: ConnectorPlan, changes: Changes, rows: Due | None, *, refresh: bool
    ) -> None:
        """Hand in all of `changes`, everywhere at once, and `rows` behind them; `refresh`: also
        where there are none."""
        events, oversized = up_to_oversized(
            changes.events,
            most_bytes=self._options.document_bytes,
            is_wanted=lambda one: planned.topic_of(one.collection) is not None,
        )
        upto = changes.position
        if oversized is not None:
            upto = (events[-1].source or "") if events else ""
        *before, last = in_turns(events)
        for some in before:
            await self._take_turn(planned, some, upto=some[-1].source or "")
        await self._take_turn(planned, last, upto=upto, refresh=refresh)
        if oversized is not None:
            raise self._too_large(oversized)
        if rows is not None:
            await self._take_turn(planned, rows.events, upto=rows.upto, refresh=True)
        self._goes_on()
        self._tries = self._replanned = 0

    def _goes_on(self) -> None:
        if self.report.state != "running":
            self._standing.say("running")

    async def _take_turn(
        self, planned: ConnectorPlan, events: Sequence[Event], *, upto: str, refresh: bool = False
    ) -> None:
        parts, unrouted = planned.split(events)
        refs = planned.refs if refresh else parts
        if upto:
            await all_of(
                [
                    self._handing_in.hand_in(planned, ref, parts.get(ref, ()), upto=upto)
                    for ref in refs
                ]
            )
        self._standing.left_out(unrouted)

    def _too_large(self, event: Event) -> errors.ChangeTooLarge:
        what = f"{event.op} of {event.collection} {event.key}"
        return errors.ChangeTooLarge(
            f"the {what} has a document of more than {self._options.document_bytes} bytes "
            "(ingest.max_document)",
            position=event.source or "",
            what=what,
        )

    # --- what can't be read ----------------------------------------------------------------------

    async def _end(self, planned: ConnectorPlan, why: str) -> NoReturn:
        """Say in every partition, in its place, that what comes next is lost."""
        for ref in planned.refs:
            if ref in planned.ended or ref not in planned.reached:
                continue
            reached = planned.reached[ref]
            marker = _lost(f"lost/{self._name}/{self.connector.beginning}/{ref.partition}", reached)
            await self._handing_in.hand_in(planned, ref, [marker], upto=reached, ends=True)
        await self._stay(
            "history-lost",
            how_to_go_on(self._name, why),
            stopped_at=min(planned.reached.values(), default=""),
        )

    async def _pass_over(self, planned: ConnectorPlan, error: errors.ChangeTooLarge) -> None:
        """Leave one change out, if an operator says so: a record says it in its place."""
        if self.connector.skip != error.position or not error.position:
            await self._stay(
                "stopped",
                f"{error.message}; leave it out with `headgate connector skip {self._name}`",
                stopped_at=error.position,
                stopped_what=error.what,
            )
        marker = _lost(f"skipped/{self._name}/{error.position}", error.position)
        parts, _ = planned.split([marker])
        # Everywhere, also where a former version has the record: who stays would read it again.
        await all_of(
            [
                self._handing_in.hand_in(planned, ref, parts.get(ref, ()), upto=error.position)
                for ref in planned.refs
            ]
        )


def _died(error: Exception) -> str:
    return (
        f"its reader has died of {type(error).__name__}, and begins again; the log of its node has "
        "more, please report this"
    )


def _lost(event_id: str, position: str) -> Event:
    return Event(event_id, LOST, None, "lost", "", None, position)
