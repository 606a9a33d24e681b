"""Who may change the letters of a partition: the one rule that every letter store applies.

Invariant: of two lanes that have had a partition, the one with the lower fence changes nothing once
the other was seen. A store compares in the transaction that changes the letters.
"""

from __future__ import annotations

from headgate.errors import Fenced
from headgate.model.event import Fence, PartitionRef


def admitted(stored: Fence | None, ref: PartitionRef, fence: Fence) -> bool:
    """Whether `fence` is news, to be stored instead of `stored`; raises Fenced when it is lower."""
    if stored is None or stored < fence:
        return True
    if stored == fence:
        return False
    raise Fenced(
        f"the letters of partition {ref.partition} of {ref.topic} belong to epoch {stored.epoch}, "
        f"window {stored.window}, attempt {stored.attempt}: epoch {fence.epoch}, window "
        f"{fence.window}, attempt {fence.attempt} was overtaken and must let go",
        topic=ref.topic,
        partition=ref.partition,
        epoch=stored.epoch,
    )
