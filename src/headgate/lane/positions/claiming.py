"""How a lane takes the positions of its partitions, and shows again that they are its own.

Invariants: what is about to be claimed is noted before (`Claims`), so that a successor knows, when
this process is dead, that it may have been claimed. With the coordinator, a claim is begun only
when that has just said, on the stream on which the subscriptions came, that it hears this lane: one
of which nobody hears doesn't count, and others are told "subscribed" without its word.

A position that can't be had keeps nobody from the others: where the store answers for one of them,
the lane does without it after a moment, and the coordinator hears of it, which gives it out anew
once it can be claimed. A lane without the coordinator has nobody to leave it to, and fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from headgate.errors import Fenced, NoPosition, StorageFailed
from headgate.lane.positions.partition import SourcePartition
from headgate.model.event import Fence, PartitionRef
from headgate.model.lanes import LaneSpec
from headgate.model.notes import Claims, Entry
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogLine

log = structlog.get_logger()

CLAIM_AGAIN_S = 0.5
CLAIM_TIMEOUT_S = 4.0
"""For one try; a coordinator that lost the stream waits a little longer (CLAIM_MS there)."""
CLAIM_MOMENT_S = 2.0
"""How long one position that can't be had may keep a lane from the others."""
CLAIM_PATIENCE_S = 30.0
"""How long a lane that starts puts up with a checkpoint store that is away."""

Left = Mapping[PartitionRef, frozenset[Fence]]
May = Callable[[], Awaitable[bool]]


@dataclass(slots=True)
class _Look:
    """One look at what is held: two may be under way, because a stream broke between them."""

    may: Callable[[], bool]
    is_answered: bool = False
    failed: dict[PartitionRef, Owner] = field(default_factory=dict)


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
        """The partitions that newer lanes held the last time."""
        self.failed: dict[PartitionRef, Owner] = {}
        """What couldn't be claimed for a moment, so far or the last time: it may be this lane's all
        the same, which doesn't read it."""
        self._is_claiming = self._is_answered = False

    @property
    def failing(self) -> tuple[Owner, ...]:
        """What it can't claim at the moment, and tries to."""
        return tuple(self.failed.values()) if self._is_claiming else ()

    def open_claims(self) -> Claims:
        """Those that were given up, and may have taken effect."""
        return Claims(tuple((one.ref, self._fence(one)) for one in self.failed.values()))

    async def claimed(
        self, owners: Sequence[Owner], *, may: May, after: Left | None = None
    ) -> list[SourcePartition]:
        """The partitions of `owners` that could be claimed, with `after` only from one of the lanes
        that left each; begins no claim when it `may` not. A claim that fails raises StorageFailed
        with `after`; without, it is among the `failed`."""
        fences = {owner: self._fence(owner) for owner in owners}
        self._note(Claims(tuple((owner.ref, fence) for owner, fence in fences.items())))
        self.is_open, self.fenced, self.failed = True, set(), {}
        self._is_claiming, self._is_answered = True, False
        froms = after or {}
        claims = [
            self._claim(owner, fence, may, froms.get(owner.ref)) for owner, fence in fences.items()
        ]
        answers = await asyncio.gather(*claims, return_exceptions=True)
        self._is_claiming = False
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        self.is_open = bool(self.failed)
        return [answer for answer in answers if isinstance(answer, SourcePartition)]

    async def _claim(
        self,
        owner: Owner,
        fence: Fence,
        may: May,
        after: Collection[Fence] | None,
    ) -> SourcePartition | None:
        began_s = asyncio.get_running_loop().time()
        is_alone, is_open = after is not None, False
        while (may_claim := await may()) or is_open:
            if not may_claim:
                after = (fence,)  # nothing but whether it has taken effect
            try:
                async with asyncio.timeout(CLAIM_TIMEOUT_S):
                    position = await self._checkpoints.claim(owner.ref, fence, after=after)
            except Fenced as error:
                log.info(LogLine.FENCED, partition=str(owner.ref), error=error.message)
                self._answered(owner)
                if may_claim:
                    self.fenced.add(owner.ref)
                return None
            except (StorageFailed, TimeoutError) as error:
                # A failed lane costs Spark one of its tries, and the next one fares no better.
                failed_s = asyncio.get_running_loop().time() - began_s
                if is_alone and failed_s >= CLAIM_PATIENCE_S:
                    raise StorageFailed(f"{owner.ref} can't be claimed: {error}") from error
                log.warning(LogLine.CHECKPOINT_FAILED, partition=str(owner.ref), error=str(error))
                if not is_alone and failed_s >= CLAIM_MOMENT_S:
                    self.failed[owner.ref] = owner
                    if self._is_answered or failed_s >= CLAIM_PATIENCE_S:
                        return None
                is_open = True
                after = None if after is None else frozenset((*after, fence))
                await asyncio.sleep(CLAIM_AGAIN_S)
            else:
                self._answered(owner)
                return SourcePartition(
                    owner, fence, position, read_limit=self._spec.settings.read_limit
                )
        return None

    def _answered(self, owner: Owner) -> None:
        self._is_answered = True
        self.failed.pop(owner.ref, None)

    async def lost(
        self, held: Iterable[SourcePartition], *, may: Callable[[], bool]
    ) -> list[PartitionRef] | None:
        """Which of those that are `held` a newer lane has claimed since; None when it `may` not
        be asked any more. What can't be told of has `failed`, where the store tells of others, or
        that what it has is no position."""
        look = _Look(may)
        found = await asyncio.gather(*(self._is_lost(one, look) for one in list(held)))
        if not may():
            return None
        self.failed = look.failed
        return [ref for ref in found if ref is not None]

    async def _is_lost(self, partition: SourcePartition, look: _Look) -> PartitionRef | None:
        began_s = asyncio.get_running_loop().time()
        while look.may():
            try:
                async with asyncio.timeout(CLAIM_TIMEOUT_S):
                    await self._checkpoints.claim(partition.ref, partition.fence)
            except Fenced:
                look.is_answered = True
                return partition.ref
            except (StorageFailed, TimeoutError) as error:
                ref = str(partition.ref)
                log.warning(LogLine.CHECKPOINT_FAILED, partition=ref, error=str(error))
                look.is_answered |= isinstance(error, NoPosition)
                failed_s = asyncio.get_running_loop().time() - began_s
                if look.is_answered and failed_s >= CLAIM_MOMENT_S:
                    look.failed[partition.ref] = partition.owner
                    return None
                await asyncio.sleep(CLAIM_AGAIN_S)
            else:
                look.is_answered = True
                return None
        return None

    def _fence(self, owner: Owner) -> Fence:
        return Fence(owner.epoch, self._spec.window, self._spec.attempt)
