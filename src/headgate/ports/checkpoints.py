"""The authoritative position of every source partition, fenced.

A position is the highest seq with everything up to it settled (0: nothing yet). It outlives
windows, lanes and routers. After a fence was claimed, nothing under a lower one can move the
position.

A store that can't be reached in a few seconds raises StorageFailed. The answer alone may have got
lost, so that a claim or a save may have taken effect all the same; doing either again is harmless.
"""

from __future__ import annotations

from typing import Protocol

from headgate.model.event import Fence, PartitionRef


class CheckpointStore(Protocol):
    async def claim(self, ref: PartitionRef, fence: Fence) -> int:
        """Take the partition under `fence` and return its position.

        Raises Fenced when a higher fence holds it. Claiming again under the same fence is allowed.
        """

    async def save(self, ref: PartitionRef, fence: Fence, settled: int) -> None:
        """Move the position forward to `settled`; a lower one than stored is ignored.

        Durable on return. Raises Fenced when anything but `fence` holds the partition, also
        when nobody has claimed it.
        """

    async def list(self) -> dict[PartitionRef, int]:
        """Every stored position."""

    async def close(self) -> None: ...
