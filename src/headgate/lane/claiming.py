"""How a lane takes the positions of its partitions, and shows again that they are its own.

Invariants: what is about to be claimed is noted before (`Claims`), so that whoever goes on when
this process is dead knows that it may have been. With the coordinator, a claim is begun only when
that has just said, on the stream on which the subscriptions came, that it hears this lane: one of
which nobody hears doesn't count, and others are told "subscribed" without its word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import structlog

from headgate.errors import Fenced, StorageFailed
from headgate.lane.partition import SourcePartition
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneSpec
from headgate.model.notes import Claims, Entry
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogEvent

log = structlog.get_logger()

CLAIM_AGAIN_S = 0.5
CLAIM_TIMEOUT_S = 4.0
"""For one try; a coordinator that lost the stream waits a little longer (CLAIM_MS there)."""
CLAIM_PATIENCE_S = 30.0
"""How long a lane that starts puts up with a checkpoint store that is away."""

Left = Mapping[PartitionRef, frozenset[Fence]]
May = Callable[[], Awaitable[bool]]


class Claiming:
    """`note` writes an entry into the lane's notes."""

    def __init__(
        self, spec: LaneSpec, checkpoints: CheckpointStore, note: Callable[[Entry], None]
    ) -> None:
        self._spec = spec
        self._checkpoints = checkpoints
        self._note = note
        self.is_open = False
        """Whether something may have been claimed that `claimed` has not returned."""
        self.fenced: set[PartitionRef] = set()
        """What somebody newer held the last time."""

    async def claimed(
        self, owners: Sequence[Owner], *, may: May, after: Left | None = None
    ) -> list[SourcePartition]:
        """Those of `owners` that could be had, with `after` only from one of those who left each;
        begins no claim when it `may` not. Raises StorageFailed."""
        fences = {owner: self._fence(owner) for owner in owners}
        self._note(Claims(tuple((owner.ref, fence) for owner, fence in fences.items())))
        self.is_open, self.fenced = True, set()
        froms = after or {}
        claims = [
            self._claim(owner, fence, may, froms.get(owner.ref)) for owner, fence in fences.items()
        ]
        answers = await asyncio.gather(*claims, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self.is_open = False
        return [answer for answer in answers if isinstance(answer, SourcePartition)]

    async def _claim(
        self,
        owner: Owner,
        fence: Fence,
        may: May,
        after: Collection[Fence] | None,
    ) -> SourcePartition | None:
        deadline_s = asyncio.get_running_loop().time() + CLAIM_PATIENCE_S
        is_open = False
        while (may_claim := await may()) or is_open:
            if not may_claim:
                after = (fence,)  # nothing but whether it has taken effect
            try:
                async with asyncio.timeout(CLAIM_TIMEOUT_S):
                    position = await self._checkpoints.claim(owner.ref, fence, after=after)
            except Fenced as error:
                log.info(LogEvent.FENCED, partition=str(owner.ref), error=error.message)
                if may_claim:
                    self.fenced.add(owner.ref)
                return None
            except (StorageFailed, TimeoutError) as error:
                # A failed lane costs Spark one of its tries, and the next one fares no better.
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise StorageFailed(f"{owner.ref} can't be claimed: {error}") from error
                log.warning(LogEvent.CHECKPOINT_FAILED, partition=str(owner.ref), error=str(error))
                is_open = True
                after = None if after is None else frozenset((*after, fence))
                await asyncio.sleep(CLAIM_AGAIN_S)
            else:
                return SourcePartition(
                    owner, fence, position, read_limit=self._spec.settings.read_limit
                )
        return None

    async def lost(
        self, held: Iterable[SourcePartition], *, may: Callable[[], bool]
    ) -> list[PartitionRef] | None:
        """Which of those that are `held` somebody newer has claimed since; None when it `may` not
        be asked any more."""
        found = await asyncio.gather(*(self._is_lost(one, may) for one in list(held)))
        if not may():
            return None
        return [ref for ref in found if ref is not None]

    async def _is_lost(
        self, partition: SourcePartition, may: Callable[[], bool]
    ) -> PartitionRef | None:
        while may():
            try:
                async with asyncio.timeout(CLAIM_TIMEOUT_S):
                    await self._checkpoints.claim(partition.ref, partition.fence)
            except Fenced:
                return partition.ref
            except (StorageFailed, TimeoutError) as error:
                ref = str(partition.ref)
                log.warning(LogEvent.CHECKPOINT_FAILED, partition=ref, error=str(error))
                await asyncio.sleep(CLAIM_AGAIN_S)
            else:
                return None
        return None

    def _fence(self, owner: Owner) -> Fence:
        return Fence(owner.epoch, self._spec.window, self._spec.attempt)
