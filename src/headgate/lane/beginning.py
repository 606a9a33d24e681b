"""How a lane that isn't told its subscriptions begins all the same, or says why it can't.

A lane claims a position only once it has its subscriptions: until then whoever held it goes on.
Usually the coordinator tells them. While that is away, what a predecessor has noted will do, but
only where that one is gone and nobody has claimed the position since (decide/notes.py says why
that is complete). A lane that can prove neither waits, and says so loudly.

Invariant: what was left is used for a position only by claiming it from the one who left it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog

from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Entry, Holds, Left, Waits
from headgate.ports.notes import LaneNotes
from headgate.telemetry import LogEvent

log = structlog.get_logger()

AWAY_S = 3.0
"""For so long a coordinator that doesn't answer may only be slow."""
LOOK_EVERY_S = 1.0
SAY_EVERY_S = 60.0
UNKNOWN = (
    "the coordinator can't be reached, and no lane before this one has left its subscriptions "
    "where it can find them; start the coordinator"
)
OUTDATED = (
    "the coordinator can't be reached, and somebody else has read on since the subscriptions that "
    "it can find were noted; start the coordinator"
)
SILENT = (
    "the coordinator can't be reached, and process {pid}, which holds them, gives no sign of life; "
    "start the coordinator, or end that process, and another lane goes on"
)


class Beginning:
    """Asked every `LOOK_EVERY_S` by a lane that waits to read `refs`; `note` writes into its own
    `notes`."""

    def __init__(
        self, refs: Sequence[PartitionRef], notes: LaneNotes, note: Callable[[Entry], None]
    ) -> None:
        self._refs = refs
        self._notes = notes
        self._note = note
        self._here_s = _now_s()
        self._outdated: dict[PartitionRef, Fence] = {}
        self._said = ""
        self._said_s = 0.0

    async def without_coordinator(self, *, connected: bool) -> Left | None:
        """What to begin with while the coordinator is away; None: wait on."""
        if connected:
            self._here_s = _now_s()
            self._say("")
        if _now_s() - self._here_s < AWAY_S:
            return None
        left = await self._notes.left(self._refs)
        if left.is_held:
            self._say(SILENT.format(pid=left.silent) if left.silent else "")
        elif not left.fences:
            self._say(UNKNOWN)
        elif left.fences == self._outdated:
            self._say(OUTDATED)
        else:
            return left
        return None

    def is_outdated(self, left: Left) -> None:
        """Nothing could be claimed from those who have left it."""
        self._outdated = left.fences

    def done(self, left: Left, claimed: Collection[PartitionRef]) -> None:
        """The lane goes on with what it could claim; the rest has to wait for another window."""
        refs = [str(ref) for ref in claimed]
        log.warning(LogEvent.GOES_ON_ALONE, partitions=refs, revision=left.revision)
        self._lament([ref for ref in self._refs if ref not in left.fences], UNKNOWN)
        self._lament([r for r in self._refs if r in left.fences and r not in claimed], OUTDATED)

    def _say(self, trouble: str) -> None:
        """Why the lane can't begin, if somebody should know."""
        if trouble == self._said and (not trouble or _now_s() - self._said_s < SAY_EVERY_S):
            return
        if not trouble:
            self._note(Holds(()))
        self._lament(self._refs if trouble else (), trouble)
        self._said, self._said_s = trouble, _now_s()

    def _lament(self, refs: Sequence[PartitionRef], trouble: str) -> None:
        if refs:
            self._note(Waits(tuple(refs), trouble))
            log.error(LogEvent.LANE_WAITS, partitions=[str(ref) for ref in refs], reason=trouble)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
