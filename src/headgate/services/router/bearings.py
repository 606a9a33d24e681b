"""Which window it is, what there is to read and where everybody is.

All of it comes from the coordinator; what is worth a start without one is noted. A router that
starts while the coordinator is away goes on with that: the same epochs, and window numbers above
all that were given out before.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from headgate.errors import StorageFailed
from headgate.model.control.from_coordinator import Assign
from headgate.model.notes import RouterMemory
from headgate.model.topology import Owner, Topology
from headgate.ports.notes import RouterNotes
from headgate.telemetry import LogLine

log = structlog.get_logger()

T = TypeVar("T")


class Bearings:
    """`assignment` is None until the coordinator has said what to read, or `go_on_alone` has."""

    def __init__(self, notes: RouterNotes) -> None:
        self._notes = notes
        self._recalled = RouterMemory()
        """What it knew when it started."""
        self.window = 0
        self.assignment: Assign | None = None
        self.topology = Topology(0)

    def recall(self) -> None:
        self._notes.tidy()
        self._recalled = self._notes.recall()
        self.window = self._recalled.window

    @property
    def sources(self) -> tuple[Owner, ...]:
        return self.assignment.sources if self.assignment is not None else ()

    def has_something_to_read(self) -> bool:
        return bool(self.sources)

    # --- without the coordinator -----------------------------------------------------------------

    @property
    def could_go_on(self) -> bool:
        return bool(self._recalled.assignment.sources)

    def go_on_alone(self) -> bool:
        """Read what it did before, unless the coordinator has said what to read; returns whether
        that is new."""
        if self.assignment is not None or not self.could_go_on:
            return False
        memory = self._recalled
        sources = len(memory.assignment.sources)
        log.warning(LogLine.GOES_ON_ALONE, window=self.window, sources=sources)
        self.assignment, self.topology = memory.assignment, memory.topology
        return True

    # --- what the coordinator says ---------------------------------------------------------------

    def apply(self, topology: Topology) -> None:
        if topology.generation > self.topology.generation:
            self.topology = topology

    def assign(self, assignment: Assign) -> None:
        self.assignment = assignment
        log.info(LogLine.ASSIGNED, number=assignment.number, sources=len(assignment.sources))

    async def note(self, assignment: Assign) -> None:
        """A router that starts while the coordinator is away must know of it, if no window does
        yet."""
        memory = RouterMemory(self.window, assignment, self.topology)
        await _noted(self._notes.remember(memory))

    async def number_window(self, assignment: Assign | None) -> None:
        """Count on to the next window, which is noted before any lane of it can run: its number
        must not come again."""
        noted = assignment or self._recalled.assignment
        memory = RouterMemory(self.window, noted, self.topology)
        number = await _noted(self._notes.next_window(memory))
        self.window = memory.window + 1 if number is None else number


async def _noted(write: Coroutine[Any, Any, T]) -> T | None:
    """None where it can't be; it goes on without."""
    try:
        return await write
    except StorageFailed as error:
        log.warning(LogLine.NOTES_FAILED, error=error.message)
        return None
