"""Which partitions' letters wait for older ones that are parked elsewhere, because the topic was
repartitioned: what is parked of its former versions, and may have the same keys, goes first.

Invariant: asked once where there is nothing. What comes before a version that is read is settled,
so nothing of it is parked later on. Whether the older ones are on their way shows with time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from headgate.errors import HeadgateError
from headgate.lane.holding import Holding
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter
from headgate.ports.letters import LetterStore
from headgate.telemetry import LogLine

log = structlog.get_logger()

MOVES_WITHIN_S = 10.0
"""The oldest letter of a partition is another one after so long, or nothing is sent of it."""


class Elders:
    """The older letters that those parked for one gateway wait for."""

    def __init__(self, gateway_id: str, store: LetterStore, holding: Holding) -> None:
        self._gateway_id = gateway_id
        self._store = store
        self._holding = holding
        self._gone: set[tuple[PartitionRef, int]] = set()
        """Partitions and versions before which nothing is parked elsewhere any more."""
        self._oldest: dict[PartitionRef, tuple[int, float]] = {}
        """The oldest letter of each partition that others wait for, and since when it is."""

    async def awaited_by(
        self, versions: Mapping[PartitionRef, int], now_s: float
    ) -> dict[PartitionRef, bool]:
        """Those of which something is parked elsewhere that comes before letters of that version,
        and whether that is on its way."""
        before = {
            one: self._holding.before(*one) for one in versions.items() if one not in self._gone
        }
        wanted = {ref for elders in before.values() for ref in elders}
        oldest = await self._found(sorted(wanted)) if wanted else {}
        moving = {ref for ref, seq in oldest.items() if seq and self._moves(ref, seq, now_s)}
        waiting: dict[PartitionRef, bool] = {}
        for one, elders in before.items():
            parked = {ref for ref, last in elders.items() if oldest.get(ref, last + 1) <= last}
            if parked:
                waiting[one[0]] = not moving.isdisjoint(parked)
            else:
                self._gone.add(one)
        return waiting

    async def _found(self, refs: Sequence[PartitionRef]) -> dict[PartitionRef, int]:
        """The seq of the oldest letter of each that has any, damaged or not; 0 where that can't be
        read, which holds those alone that wait for it."""
        try:
            return self._seqs(await self._store.parked(self._gateway_id, refs, each=1))
        except HeadgateError:
            oldest: dict[PartitionRef, int] = {}
        for ref in refs:
            try:
                oldest |= self._seqs(await self._store.parked(self._gateway_id, [ref], each=1))
            except HeadgateError as error:
                oldest[ref] = 0
                log.error(
                    LogLine.LETTERS_FAILED,
                    gateway=self._gateway_id,
                    partition=str(ref),
                    error=error.message,
                )
        return oldest

    def _seqs(self, letters: Sequence[Letter]) -> dict[PartitionRef, int]:
        return {letter.ref: letter.delivery.seq for letter in letters}

    def _moves(self, ref: PartitionRef, seq: int, now_s: float) -> bool:
        known, since_s = self._oldest.get(ref, (0, now_s))
        if known != seq:
            self._oldest[ref] = seq, now_s
            return True
        return now_s - since_s < MOVES_WITHIN_S
