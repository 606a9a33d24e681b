"""How a lane that isn't told its subscriptions begins all the same, or says why it can't.

A lane claims a position only once it has its subscriptions: until then the former holder goes on.
Usually the coordinator tells them. While that is away, what a predecessor has noted will do, but
only where that one is gone and nobody has claimed the position since (decide/lane/notes.py says why
that is complete). Each partition is looked at by itself: what a lane that lives holds is left to
it, and of what nobody reads, the log and the router's /health hear.

Invariant: what was left is used for a position only by claiming it from one who left it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import structlog
from msgspec.structs import replace

from headgate.decide.lane.notes import by_reason
from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Entry, Left, Waits
from headgate.ports.notes import LaneNotes
from headgate.telemetry import LogLine

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
    "the coordinator can't be reached, and another lane has read on since the subscriptions that "
    "it can find were noted; start the coordinator"
)
SILENT = (
    "the coordinator can't be reached, and process {pid}, which holds it, gives no sign of life; "
    "start the coordinator, or end that process, and another lane goes on"
)


HANDED_OVER = (
    "the coordinator went away while it was handed over, so perhaps no lane has taken it; start "
    "the coordinator"
)


class StartUnheard:
    """Asked every `LOOK_EVERY_S` by a lane; `note` writes into its own `notes`."""

    def __init__(self, notes: LaneNotes, note: Callable[[Entry], None]) -> None:
        self._notes = notes
        self._note = note
        self._here_s = _now_s()
        self._outdated: dict[PartitionRef, frozenset[Fence]] = {}
        self._said: Mapping[PartitionRef, str] = {}
        self._said_s = 0.0

    async def without_coordinator(
        self,
        refs: Collection[PartitionRef],
        *,
        connected: bool,
        handed_over: Collection[PartitionRef] = (),
    ) -> Left | None:
        """What there is to begin with of `refs`, which this lane should read and doesn't, while the
        coordinator is away; None: nothing. It may have been the last to hear of what it has
        `handed_over`."""
        if connected:
            self._here_s = _now_s()
        if _now_s() - self._here_s < AWAY_S:
            self._say({})
            return None
        left = await self._notes.left(refs) if refs else Left()
        untried = {r: f for r, f in left.fences.items() if self._outdated.get(r) != f}
        if untried:
            return replace(left, fences=untried)
        troubles = {ref: why for ref in refs if (why := self._trouble(ref, left))}
        self._say(troubles | dict.fromkeys(handed_over, HANDED_OVER))
        return None

    def tried(self, left: Left, claimed: Collection[PartitionRef]) -> None:
        """Of what was left, these could be claimed; the rest other lanes have claimed since."""
        self._outdated |= {r: f for r, f in left.fences.items() if r not in claimed}
        if claimed:
            refs = [str(ref) for ref in claimed]
            log.warning(LogLine.GOES_ON_ALONE, partitions=refs, revision=left.revision)

    def _trouble(self, ref: PartitionRef, left: Left) -> str:
        """Why no lane reads it; empty where one does."""
        if (pid := left.held.get(ref)) is not None:
            return SILENT.format(pid=pid) if pid else ""
        return OUTDATED if ref in left.fences else UNKNOWN

    def _say(self, troubles: Mapping[PartitionRef, str]) -> None:
        is_news = troubles != self._said
        if is_news:
            self._note(Waits(tuple(troubles.items())))
        if is_news or (troubles and _now_s() - self._said_s >= SAY_EVERY_S):
            self._said, self._said_s = troubles, _now_s()
            for why, names in by_reason(troubles).items():
                log.error(LogLine.LANE_WAITS, partitions=names, reason=why)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
