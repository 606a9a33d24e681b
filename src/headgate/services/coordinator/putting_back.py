"""Notes where an operator wants the positions of consumer groups, for the consumers that claim them
next.

The owner of a target claims its position in a partition that the topic got later only when it first
saves it, and may have processed a lot by then. Invariant: before such a position is put back it is
claimed for the owner, under the epoch that it has. Otherwise the position that the owner saves last
would be its first claim, and undo the wish; and nobody would know that something was processed
ahead of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container

from headgate.errors import Fenced
from headgate.model.event import Fence, PartitionRef
from headgate.ports.checkpoints import CheckpointStore


async def put_back(
    checkpoints: CheckpointStore,
    ref: PartitionRef,
    settled: int,
    until: int,
    *,
    claimed: Container[PartitionRef],
    epoch: int,
    instead: bool = False,
) -> None:
    """`claimed` are the positions that owners have claimed, `epoch` is the last that the target of
    `ref` was given out under; 0: it never was. `instead`: of what was wanted of it before."""
    if epoch and ref not in claimed:
        with contextlib.suppress(Fenced):  # a newer owner has claimed it just then
            await checkpoints.claim(ref, Fence(epoch))
    await checkpoints.put_back(ref, settled, until, instead=instead)
