"""Finds a record by its event id, in a bounded way.

The log remembers ids for a while (they are what makes a produce idempotent), and each partition has
its own. Beyond that, and for what connectors write, which leave none, only the newest records are
looked through. Invariant: no longer than LOOK_S, and what was looked at is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headgate import errors
from headgate.model.event import PartitionRef
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine

LOOK_S = 4.0
"""For all partitions."""
ASKED_AT_ONCE, READ_AT_ONCE = 16, 2
"""Partitions; a read may bring eight mebibytes."""
NEWEST = 500
"""Records of each partition that are looked through where the id isn't remembered."""

T = TypeVar("T")
Place = tuple[PartitionRef, int]
_Look = Callable[[PartitionRef, str], Awaitable[list[Place]]]


class Finding:
    def __init__(self, reader: LogReader, machine: Machine) -> None:
        self._reader = reader
        self._now_s = machine.monotonic_s

    async def found(
        self,
        event_id: str,
        refs: Sequence[PartitionRef],
        see: Callable[[Place], Awaitable[T | None]],
    ) -> list[tuple[Place, T]]:
        """Where it is, with what `see` makes of that, in the order of `refs`. What is nothing to
        see is as if it weren't there, and looked for as long. Raises NotFound, which says how far
        was looked."""
        until_s = self._now_s() + LOOK_S
        places, asked = await self._each(
            refs, until_s, self._remembered, event_id, at_once=ASKED_AT_ONCE
        )
        if seen := await _seen(places, see):
            return seen
        places, looked = await self._each(
            refs, until_s, self._newest, event_id, at_once=READ_AT_ONCE
        )
        if seen := await _seen(places, see):
            return seen
        short = event_id[:100]
        raise errors.NotFound(
            f"the log doesn't know the event id {short!r} any more, or never did: ids are "
            "remembered for as long as ingest.idempotency_ttl says, and not of what connectors "
            f"write; asked {asked} of {len(refs)} partitions, and looked through the newest "
            f"{NEWEST} records of {looked}. Name its place, TOPIC:PARTITION:SEQ",
            event_id=short,
        )

    async def _each(
        self,
        refs: Sequence[PartitionRef],
        until_s: float,
        look: _Look,
        event_id: str,
        *,
        at_once: int,
    ) -> tuple[list[Place], int]:
        """What is found in all of them, and in how many was looked before the time was over."""
        found: list[Place] = []
        looked = 0
        for begin in range(0, len(refs), at_once):
            if self._now_s() >= until_s:
                break
            some = refs[begin : begin + at_once]
            outcomes = await asyncio.gather(*(look(ref, event_id) for ref in some))
            looked += len(some)
            found += [place for places in outcomes for place in places]
        return found, looked

    async def _remembered(self, ref: PartitionRef, event_id: str) -> list[Place]:
        found = await self._reader.find(ref, [event_id])
        return [(ref, seq) for seq in found.values()]

    async def _newest(self, ref: PartitionRef, event_id: str) -> list[Place]:
        extent = await self._reader.extent(ref)
        after_seq = max(extent.earliest - 1, extent.head - NEWEST, 0)
        found: list[Place] = []
        while after_seq < extent.head:
            try:
                records = await self._reader.read(ref, after_seq=after_seq, limit=NEWEST)
            except errors.CorruptRecord as error:
                after_seq = error.seq
                continue
            if not records:
                break
            found += [(ref, one.seq) for one in records if one.event_id == event_id]
            after_seq = records[-1].seq
        return found


async def _seen(
    places: Sequence[Place], see: Callable[[Place], Awaitable[T | None]]
) -> list[tuple[Place, T]]:
    return [(place, one) for place in places if (one := await see(place)) is not None]
