"""Reads what snapshots want of an origin, beside the stream of one connector's reader.

The reader shows what the stream told, with nothing of it handed in yet, and hands in what is due
behind it. Rows are read on tasks of their own meanwhile; what fails there is said, and tried again,
and holds the stream up in no way.

Invariant: whatever this knows is stored by the partitions with what is handed in, so it may end at
any time (decide.connectors.snapshots.snapshotting).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from headgate import errors
from headgate.decide.connectors.plan import ConnectorPlan
from headgate.decide.connectors.snapshots.pace import rows_per_s
from headgate.decide.connectors.snapshots.snapshotting import (
    Ask,
    Due,
    Snapshotting,
    next_snapshot,
)
from headgate.model.chunk import Chunk
from headgate.model.connector import Connector, SnapshotReport
from headgate.model.event import Event
from headgate.ports.machine import Machine
from headgate.ports.origin import PATIENCE_S, ChangeStream, Listing, Origin
from headgate.services.ingest.connectors.comparing import Comparing
from headgate.services.ingest.connectors.handing_in import answered
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.standing import IntakeStanding
from headgate.tasks import Helpers

NAMED = 5
"""So many collections are named in a sentence."""


class Snapshots:
    """The snapshots of one connector, under one epoch. `begin` with each stream that is opened;
    `comparing` knows the log."""

    def __init__(
        self,
        connector: Connector,
        epoch: int,
        *,
        chunks: Iterator[int],
        standing: IntakeStanding,
        comparing: Comparing,
        machine: Machine,
        options: IntakeOptions,
    ) -> None:
        self._connector = connector
        self._epoch = epoch
        self._standing = standing
        self._comparing = comparing
        self._machine = machine
        self._options = options
        self._chunks = chunks
        """Of the epoch, over all streams: no place is given out twice."""
        self._rows_per_s = rows_per_s(connector.settings)
        self._present: Snapshotting | None = None

    def begin(
        self, planned: ConnectorPlan, stream: ChangeStream, origin: Origin, helpers: Helpers
    ) -> None:
        """Go on with what the partitions have stored; `helpers` end before `stream` does."""
        self._planned = planned
        self._stream = stream
        self._helpers = helpers
        self._loop = asyncio.get_running_loop()
        self._listing: asyncio.Future[Listing | errors.HeadgateError] | None = None
        self._reading: asyncio.Future[Chunk | errors.HeadgateError] | None = None
        self._asked: Ask | None = None
        self._listed: Listing | None = None
        self._not_before_s = 0.0
        self._tries = 0
        self._comparing.begin(planned, origin, helpers)
        self._go_on()

    @property
    def patience_s(self) -> float:
        """How long the stream may be waited for where nothing comes."""
        return PATIENCE_S if self._present is None else self._options.snapshot_patience_s

    async def follow(self, events: Sequence[Event]) -> Due | None:
        """The stream stands behind `events` now; all before them is handed in. What is to be handed
        in behind them, if anything is."""
        present = self._present
        if present is None:
            return None
        if present.progress.stage == "done":
            self._go_on()
            return None
        for position, progress in present.saw(events):
            self._planned.snapshots.add(position, progress)
        self._look_at_what_came(present)
        self._want(present)
        due = await self._due(present, events)
        if due is not None:
            self._tries = 0
            self._planned.snapshots.add(due.upto, due.progress)
            self._pace(len(due.events))
            self._say()
        return due

    # --- one after the other ---------------------------------------------------------------------

    def _go_on(self) -> None:
        """With the next one that isn't done."""
        wanted, planned = self._connector.snapshots, self._planned
        found = next_snapshot(wanted, planned.snapshots.newest)
        self._present = self._listed = None
        if found is not None:
            snapshot, progress = found
            self._present = Snapshotting(
                snapshot,
                progress,
                name=self._connector.name,
                epoch=self._epoch,
                chunks=self._chunks,
                level=planned.level,
                leads=lambda name: planned.topic_of(name) is not None,
            )
            self._say()
        elif wanted:
            newest = max(one.id for one in wanted)
            self._standing.snapshot(SnapshotReport(id=newest, done=True))

    def _want(self, present: Snapshotting) -> None:
        """Ask the origin for what is needed next."""
        if self._listing is not None or self._reading is not None:
            return
        if self._loop.time() < self._not_before_s:
            return
        if self._listed is None:
            self._listing = self._helpers.start(answered(self._stream.listing()))
        elif (ask := present.ask(self._stream.position)) is not None:
            self._asked = ask
            self._reading = self._helpers.start(
                answered(self._stream.chunk(ask.collection, ask.behind))
            )

    def _look_at_what_came(self, present: Snapshotting) -> None:
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing.result(), None
            if isinstance(listing, errors.HeadgateError):
                self._failed(listing)
            elif missing := self._never_there(present, listing):
                self._failed(_nothing_there(self._connector.name, missing))
            else:
                self._listed = listing
                present.listed(listing.collections)
                self._say()
        if self._reading is not None and self._reading.done():
            chunk, self._reading = self._reading.result(), None
            error = chunk if isinstance(chunk, errors.HeadgateError) else self._unfit(chunk)
            if error is not None:
                present.forget()
                self._failed(error)
            elif isinstance(chunk, Chunk) and self._asked is not None:
                if chunk.is_away:
                    present.away(self._asked)
                    self._list_again(self._asked.collection)
                else:
                    present.read(self._asked, chunk)

    def _list_again(self, away: str) -> None:
        """Is it gone for good, or not what is read any more, or back?"""
        self._failed(errors.NotFound(f"{away} isn't there now; it is looked for again"))
        self._listed = None

    def _never_there(self, present: Snapshotting, listing: Listing) -> list[str]:
        """What is asked for by name and isn't there; of what was dropped since there is nothing."""
        is_new = present.progress.step == 0
        return sorted(set(present.snapshot.collections) - set(listing.collections)) * is_new

    async def _due(self, present: Snapshotting, events: Sequence[Event]) -> Due | None:
        position = self._stream.position
        if present.progress.stage != "compare":
            return present.due(position)
        if self._listed is None or not present.is_level(position):
            return None
        if self._loop.time() < self._not_before_s and not self._comparing.is_under_way:
            return None
        try:
            found = await self._comparing.found(present.snapshot, self._listed, events)
        except errors.HeadgateError as error:
            self._comparing.forget()
            self._failed(error)
            return None
        if found is None:
            return None
        missing, are_all = found
        return present.missing(position, missing, are_all=are_all)

    # --- how it goes -----------------------------------------------------------------------------

    def _unfit(self, chunk: Chunk) -> errors.HeadgateError | None:
        """Why the log wouldn't take a row."""
        for row in chunk.rows:
            if len(row.document) > self._options.document_bytes:
                return errors.TooLarge(
                    f"row {row.key} of {row.collection} has a document of more than "
                    f"{self._options.document_bytes} bytes (ingest.max_document): raise that, and "
                    "restart the ingest nodes"
                )
        return None

    def _failed(self, error: errors.HeadgateError) -> None:
        """Say so, and try it again after a while."""
        delay_s = self._options.backoff.delay_s(self._tries, jitter=self._machine.jitter())
        self._tries += 1
        self._not_before_s = self._loop.time() + delay_s
        self._say(error.message)

    def _pace(self, rows: int) -> None:
        """No faster than the setting says, counted from where it might have gone on."""
        if self._rows_per_s is not None:
            begun_s = max(self._not_before_s, self._loop.time())
            self._not_before_s = begun_s + rows / self._rows_per_s

    def _say(self, error: str = "") -> None:
        present, listing = self._present, self._listed
        assert present is not None, "nothing is read"
        names, progress = present.collections, present.progress
        sizes = [listing.collections[name] for name in names] if listing is not None else [None]
        known = [size for size in sizes if size is not None]
        is_reading = progress.stage in ("rows", "again")
        through = [name for name in names if name < progress.collection] if is_reading else names
        self._standing.snapshot(
            SnapshotReport(
                id=present.snapshot.id,
                collection=progress.collection if is_reading else "",
                through=len(through),
                collections=len(names),
                rows=present.rows,
                expected=sum(known) if len(known) == len(sizes) else None,
                compares=progress.stage == "compare",
                error=error,
            )
        )


def _nothing_there(connector: str, missing: Sequence[str]) -> errors.NotFound:
    return errors.NotFound(
        f"its origin has no {', '.join(missing[:NAMED])}, or doesn't show it: correct that, or end "
        f"the snapshot with `headgate connector snapshot {connector} --cancel`"
    )
