"""The authoritative position of every source partition, fenced.

A position is the highest seq with everything up to it settled (0: nothing yet). It outlives
windows, lanes and routers. After a fence was claimed, nothing under a lower one can move the
position.

A store that can't be reached in a few seconds raises StorageFailed. The answer alone may have got
lost, so that a claim or a save may have taken effect all the same; doing either again is harmless.
A store that answers, but has something else in place of a position, raises NoPosition to callers
that want that position.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally, Tries


class CheckpointStore(Protocol):
    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        """Take the partition under `fence` and return its position.

        Raises Fenced when a higher fence holds it, or one with the same numbers of another
        claimant; with `after`, when any other than one of those does, also when nobody has claimed
        it. Without, claiming again under the same fence is allowed, and so is saying who one is
        under one that nobody had said that of.
        """

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        """Move the position forward to `settled`, with what became of the records up to there.

        A position that isn't above the stored one changes nothing. Durable on return. Raises Fenced
        when anything but `fence` holds the partition, also when nobody has claimed it.
        """

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        """Keep with the position how often records after it were handed to consumers in vain,
        instead of what was kept of that before. Durable on return. Raises Fenced like `save`."""

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        """Keep with the position that no lane that claims it may read on after it, before it is
        reset (`Position.stopped`). Durable on return. Raises Fenced like `save`."""

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        """An operator's choice: claim under `fence` and put the position at `settled`, also back.

        Where it goes back, the records up to where it had been are marked as redeliveries when they
        are delivered again (`Position.redeliver_to`). Where it goes forward, the records in between
        count as skipped; with `resync` it stays, and the lane that claims it goes there when
        subscribers have been told (`Position.skip_to`). What was stopped goes on there. Raises
        Fenced when a higher fence holds it.
        """

    async def put_back(
        self, ref: PartitionRef, settled: int, until: int, *, instead: bool = False
    ) -> None:
        """An operator wants the records after `settled` again, of a position of a consumer group;
        those up to `until` may have been processed.

        Its holder goes on as before; the gateway that claims it under a higher fence begins there,
        if it is further by then (`Position.again_to`), and learns in any case of what was processed
        ahead of it (`Position.ahead_to`). Wanted twice, the lower and the further one count, but
        where this is wanted `instead` of the lower one. Nothing happens where nobody has claimed it
        yet. Durable on return.
        """

    async def put_ahead(self, ref: PartitionRef, settled: int) -> None:
        """An operator wants nothing up to `settled`, of a position of a consumer group, whether it
        was claimed before or not.

        Its holder goes on as before; the gateway that claims it learns that nothing up to there is
        to be read, and the consumer told (`Position.skip_to`). Of this and `put_back`, what is
        wanted last counts. Durable on return.
        """

    async def of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        """Every stored position of a consumer group's targets, as it is: nothing is claimed by
        looking, and a wish that nobody has taken up isn't in it."""

    async def list(self) -> dict[PartitionRef, Position]:
        """Every stored position of a topic's partitions; one that can't be read keeps nobody from
        the others (`Position.unreadable`).

        Not those of consumer groups (model.groups): there may be a thousand times as many, and each
        is only needed where it is claimed.
        """

    async def close(self) -> None: ...
