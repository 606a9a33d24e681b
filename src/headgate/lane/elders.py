"""Which partitions' letters wait for older ones that are parked elsewhere, because the topic was
repartitioned: what is parked of its former versions, and may have the same keys, goes first.

Invariant: asked once where there is nothing. What comes before a version that is read is settled,
so nothing of it is parked later on.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.lane.holding import Holding
from headgate.model.event import PartitionRef
from headgate.ports.letters import LetterStore


class Elders:
    """Of what is parked for one gateway."""

    def __init__(self, gateway_id: str, store: LetterStore, holding: Holding) -> None:
        self._gateway_id = gateway_id
        self._store = store
        self._holding = holding
        self._gone: set[tuple[PartitionRef, int]] = set()
        """Partitions and versions before which nothing is parked elsewhere any more."""

    async def awaited_by(self, versions: Mapping[PartitionRef, int]) -> set[PartitionRef]:
        """Those of which something is parked elsewhere that comes before letters of that
        version."""
        before = {
            one: self._holding.before(*one) for one in versions.items() if one not in self._gone
        }
        wanted = {ref for elders in before.values() for ref in elders}
        found = await self._store.parked(self._gateway_id, wanted, each=1) if wanted else []
        oldest = {letter.ref: letter.delivery.seq for letter in found}
        waiting = {
            one
            for one, elders in before.items()
            if any(ref in oldest and oldest[ref] <= last for ref, last in elders.items())
        }
        self._gone.update(before.keys() - waiting)
        return {ref for ref, _ in waiting}
