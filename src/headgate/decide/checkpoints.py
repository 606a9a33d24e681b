"""Who may move the position of a partition: the one rule that every checkpoint store applies.

Invariant: what these functions return has a fence and a position that are at least those stored. A
store must compare and set: what it passes in must still be there when it writes what comes out.
"""

from __future__ import annotations

import msgspec

from headgate.errors import Fenced
from headgate.model.event import Fence, PartitionRef

FIRST_VERSION = 1


class Checkpoint(msgspec.Struct, frozen=True):
    """A position and who holds it; `version` is the partitioning version it was made under."""

    epoch: int
    window: int
    attempt: int
    settled: int
    version: int = FIRST_VERSION

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.window, self.attempt)


def claimed(stored: Checkpoint | None, ref: PartitionRef, fence: Fence) -> Checkpoint:
    """What to store when `fence` claims the partition; raises Fenced."""
    if stored is None:
        return Checkpoint(fence.epoch, fence.window, fence.attempt, settled=0)
    if stored.fence > fence:
        raise fenced(ref, stored.fence, fence)
    return msgspec.structs.replace(
        stored, epoch=fence.epoch, window=fence.window, attempt=fence.attempt
    )


def moved(
    stored: Checkpoint | None, ref: PartitionRef, fence: Fence, *, settled: int
) -> Checkpoint:
    """What to store when the holder of `fence` saves `settled`; raises Fenced."""
    if stored is None or stored.fence != fence:
        raise fenced(ref, None if stored is None else stored.fence, fence)
    return msgspec.structs.replace(stored, settled=max(stored.settled, settled))


def fenced(ref: PartitionRef, held: Fence | None, fence: Fence) -> Fenced:
    holder = "nobody" if held is None else _named(held)
    return Fenced(
        f"the position of partition {ref.partition} of {ref.topic} is held by {holder}, not by "
        f"{_named(fence)}; claim it before moving it",
        topic=ref.topic,
        partition=ref.partition,
        epoch=0 if held is None else held.epoch,
    )


def _named(fence: Fence) -> str:
    return f"epoch {fence.epoch}, window {fence.window}, attempt {fence.attempt}"
