"""Which sender may still deliver a partition's records.

Invariant: once a fence was seen for a partition, from a delivery or as an epoch in a topology,
nothing under a lower one is admitted again.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.model.event import Fence, PartitionRef
from headgate.model.topology import Owner


class Fences:
    """The highest fence of every partition, as far as this gateway has heard."""

    def __init__(self) -> None:
        self._highest: dict[PartitionRef, Fence] = {}

    def may_admit(self, ref: PartitionRef, fence: Fence) -> bool:
        """Would `admit` say yes?"""
        highest = self._highest.get(ref)
        return highest is None or fence >= highest

    def admit(self, ref: PartitionRef, fence: Fence) -> bool:
        """May `fence` deliver? If so, nothing below it may any more."""
        if not self.may_admit(ref, fence):
            return False
        self._highest[ref] = fence
        return True

    def raise_to(self, sources: Iterable[Owner]) -> None:
        """Adopt the epochs of a topology; older ones are ignored."""
        for owner in sources:
            self.admit(owner.ref, Fence(owner.epoch))
